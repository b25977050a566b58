"""A signal's exception at any step of a call: the broker is as usable afterwards as before."""

from __future__ import annotations

import linecache
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import lazaretto
from lazaretto import Broker, ManualClock, Message

PACKAGE = str(Path(lazaretto.__file__).parent)


class Interruption:
    """Raises KeyboardInterrupt at the n-th line that is run within the package, as Ctrl-C would.

    Not at a line that begins with `with`: Python lets no signal in between a lock's taking and the
    block that gives it back, nor before it does.
    """

    def __init__(self, step: int) -> None:
        self._left = step

    def __enter__(self) -> None:
        sys.settrace(self._call)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            self._left -= not line.lstrip().startswith("with ")
            if self._left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._line


def _send(broker: Broker) -> None:
    broker.sender("q").send([Message(b"interrupted"), Message(b"interrupted")])


def _receive(broker: Broker) -> None:
    broker.receiver("q").receive(2)


def _settle(broker: Broker) -> None:
    receiver = broker.receiver("q")
    receiver.complete(receiver.receive(1))


def _fail(broker: Broker) -> None:
    receiver = broker.receiver("q")
    receiver.abandon(receiver.receive(1), error=ValueError("again"))


def _transaction(broker: Broker) -> None:
    with broker.transaction() as tx:
        tx.receive("q")
        tx.send("other", Message(b""))


def _usable(broker: Broker) -> None:
    """Every thread can send, the file is not locked for others, and what is sent is synced to disk."""
    broker.sender("q").send(Message(b"same thread"))
    done: list[int] = []
    thread = threading.Thread(
        target=lambda: done.append(broker.sender("q").send(Message(b"other thread"))), daemon=True
    )
    thread.start()
    thread.join(120)
    assert done
    writer = broker._store._connection
    assert not writer.in_transaction
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
    other = sqlite3.connect(Path(broker.facts()["path"]), timeout=0, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.close()


@pytest.mark.parametrize("call", [_send, _receive, _settle, _fail, _transaction])
def test_interrupted_at_every_step(tmp_path: Path, call: Callable[[Broker], None]) -> None:
    clock = ManualClock()
    with lazaretto.connect(tmp_path / "steps.db", clock=clock) as broker:
        for path in ("q", "other"):
            broker.create_queue(path)
        _usable(broker)
        interrupted = True
        step = 0
        while interrupted:
            step += 1
            # Written by nobody else, so that each step is the same step of the same path.
            with broker.receiver("q", mode="receive_and_delete") as drain:
                drain.receive(100)
            clock.advance(120)
            broker.sender("q").send([Message(b"1"), Message(b"2")])
            try:
                with Interruption(step):
                    call(broker)
                interrupted = False
            except KeyboardInterrupt:
                # Both were sent, or neither.
                bodies = [m.body for m in broker.peek("q", 10_000)]
                assert bodies.count(b"interrupted") in (0, 2)
                _usable(broker)
        assert step > 50
        assert broker.check() == []
