"""Thousands of messages with a zoo among them, through a queue: each bad one costs only itself."""

from __future__ import annotations

import os
from pathlib import Path

from bench.drill import zoo
from bench.drill.work import BAD_ZOO
from lazaretto import Broker, ReceivedMessage
from lazaretto.host import Handler, HandlerContext

from .serving import send, serve

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
TOTAL = 10_000 if SOAK else 3_000


def act(message: ReceivedMessage, context: HandlerContext) -> None:
    """Do what the body says; a good one is written down in the commit that completes it."""
    if message.body == b"good":
        context.execute("INSERT INTO done VALUES (?)", (message.sequence_number,))
    else:
        zoo.act(message.body)


def test_every_good_one_is_done_once_and_every_bad_one_is_set_aside(broker: Broker) -> None:
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE done (n INTEGER)")
    bad = {n: BAD_ZOO[(n // 100) % len(BAD_ZOO)] for n in range(50, TOTAL, 100)}
    bodies = [bad[n].encode() if n in bad else b"good" for n in range(TOTAL)]
    numbers = send(broker, "work", *bodies)
    handler = Handler("work", act, deadline=2.0, memory=200_000_000, batch_size=50)
    (report,) = serve(broker, handler)
    assert report.completed == TOTAL - len(bad)
    with broker.transaction() as tx:
        done = [n for (n,) in tx.execute("SELECT n FROM done ORDER BY n").fetchall()]
    assert done == [number for n, number in enumerate(numbers) if n not in bad]
    dead = {d.sequence_number: d for d in broker.dead_letters("work")}
    assert set(dead) == {numbers[n] for n in bad}
    for n, kind in bad.items():
        _, status, error, stack = zoo.ZOO[kind]
        letter = broker.dead_letter("work", numbers[n])
        assert letter.reason == zoo.REASONS[status], kind
        assert (letter.error_type or "").endswith(error or "?"), kind
        assert len(letter.attempts) == 2, kind
        assert stack is None or all(stack in (a.stack or "") for a in letter.attempts), kind
    assert [e.kind for e in broker.events() if e.kind.startswith("breaker")] == []
    assert not _left()


def _left() -> list[str]:
    """Return the processes that a sandbox of this process has left behind."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"PYTEST_CURRENT_TEST={os.environ['PYTEST_CURRENT_TEST']}".encode()
            words = (entry / "environ").read_bytes().split(b"\0")
            marked = any(word.startswith(b"LAZARETTO_SANDBOX=") for word in words)
            if (
                marked
                and mine in words
                and (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            ):
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found
