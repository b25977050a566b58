"""Thousands of messages with a zoo among them, through a queue: each bad one costs only itself."""

from __future__ import annotations

import os
from pathlib import Path

import zoo
from zoo import BAD_ZOO

from lazaretto import Broker, Message, ReceivedMessage
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
    handler = Handler("work", act, deadline=4.0, memory=200_000_000, batch_size=50)
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


def test_what_turns_against_its_isolation_costs_only_itself(broker: Broker) -> None:
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE done (n INTEGER)")
    bodies = [b for kind in zoo.AGAINST_ISOLATION for b in (b"good", kind.encode(), b"good")]
    numbers = send(broker, "work", *bodies)
    (report,) = serve(broker, Handler("work", act, deadline=4.0, memory=200_000_000, batch_size=10))
    words = [body.decode() for body in bodies]
    bad = {n: k for n, k in zip(numbers, words, strict=True) if k != "good" and zoo.ZOO[k][1] != "done"}
    assert report.completed == len(bodies) - len(bad)
    with broker.transaction() as tx:
        done = [n for (n,) in tx.execute("SELECT n FROM done ORDER BY n").fetchall()]
    assert done == [n for n, body in zip(numbers, bodies, strict=True) if body == b"good"]
    assert {d.sequence_number: d.reason for d in broker.dead_letters("work")} == {
        n: zoo.REASONS[zoo.ZOO[kind][1]] for n, kind in bad.items()
    }
    assert not _left()


def _unreadable(message: ReceivedMessage, context: HandlerContext) -> None:
    context.send("out", Message(b"x"))
    if message.body == b"garbles":
        assert context.effects is not None
        context.effects.verdict = "no such verdict"
    if message.body == b"breaks":
        assert context.effects is not None
        context.effects.sends = 7  # type: ignore[assignment]


def test_requests_that_cannot_be_read_fail_their_message(broker: Broker) -> None:
    send(broker, "work", b"good", b"garbles", b"breaks", b"good")
    (report,) = serve(broker, Handler("work", _unreadable))
    assert report.completed == 2
    assert {d.reason for d in broker.dead_letters("work")} == {"MaxDeliveryCountExceeded"}
    assert broker.queue("out").counts.active == 2


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
