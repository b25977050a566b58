"""Handlers, in a module without Spark: so that a sandbox can be forked, and a crash costs little."""

from __future__ import annotations

from typing import Any

import zoo


def act(message: Any, context: Any) -> Any:
    """Do what the body says."""
    import json
    import os
    import re
    import time

    body = bytes(message.body)
    match body:
        case b"raise":
            raise ValueError("no")
        case b"exit":
            os._exit(3)
        case b"abort":
            os.abort()
        case b"sleep":
            time.sleep(60)
        case b"regex":
            re.match(r"(a+)+$", "a" * 60 + "b")
        case b"wide":
            return {"n": 1 << 80, "text": "too large"}
        case b"odd":
            return {"n": "seven", "text": []}
        case b"emit":
            context.send("out", _message(b"hello"))
        case b"nowhere":
            context.send("nowhere", _message(b"hello"))
        case b"defer":
            context.defer()
        case b"dead":
            context.dead_letter("asked for")
        case b"sql":
            context.execute("DELETE FROM anything")
        case b"nothing":
            return None
        case b"\xff\xfe":
            body.decode()
    n = json.loads(body) if body[:1].isdigit() else message.sequence_number
    return {"n": n, "text": message.subject}


def _message(body: bytes) -> Any:
    from lazaretto import Message

    return Message(body)


def act_first(message: Any, context: Any) -> Any:
    """Fail on even numbers. A body that is a folder: tell that it has begun, and wait for its gate."""
    import fcntl
    from pathlib import Path

    if message.body[:1] == b"/":
        folder = Path(message.body.decode())
        with (folder / "gate").open() as gate:
            (folder / "begun").write_text("x")
            fcntl.flock(gate, fcntl.LOCK_SH)
    return _differ(message, context, "first", 2)


def act_second(message: Any, context: Any) -> Any:
    """Fail on every third number."""
    return _differ(message, context, "second", 3)


def _differ(message: Any, context: Any, name: str, fails: int) -> Any:
    from lazaretto import Message

    if message.sequence_number % fails == 0:
        raise ValueError(name)
    context.send("out", Message(b"%d" % message.sequence_number, subject=name))
    return {"n": message.sequence_number, "text": name}


def act_zoo(message: Any) -> Any:
    """Do what a kind of the zoo does, or be good."""
    if message.body == b"good":
        return {"n": message.sequence_number}
    zoo.act(message.body)
    return None
