"""Differences by worker and host: one bad host of several is found, and restarts explain nothing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lazaretto import (
    Broker,
    ComparedWith,
    DeadLetterFilter,
    ManualClock,
    Message,
    PoisonPolicy,
    QueueOptions,
)

from .actions import stored

Connect = Callable[..., Broker]
Host = Callable[[str], contextlib.AbstractContextManager[Broker]]
POLICY = PoisonPolicy(receive_retry_count=0)
HOSTS = "ant", "bee", "cat"


@pytest.fixture
def on_host(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Return what opens the store as another machine does."""

    @contextlib.contextmanager
    def on(name: str) -> Iterator[Broker]:
        with monkeypatch.context() as patched:
            patched.setattr(socket, "gethostname", lambda: name)
            broker = connect()
        with broker:
            yield broker

    return on


def order(r: random.Random, **fields: Any) -> dict[str, Any]:
    return {"id": r.randrange(10**9), "to": r.choice("ABCDE"), "amount": r.randrange(1_000), **fields}


def send(broker: Broker, bodies: list[dict[str, Any]]) -> None:
    with broker.sender("orders") as sender:
        sender.send([Message(json.dumps(body).encode()) for body in bodies])


def work(broker: Broker, number: int, fails: Callable[[dict[str, Any]], bool]) -> None:
    """Let a host process messages, some of which fail."""
    with broker.receiver("orders") as receiver:
        for message in receiver.receive(number):
            if fails(json.loads(message.body)):
                receiver.abandon(message, error=OSError("no disk"))
            else:
                receiver.complete(message)


def day(on_host: Host, clock: ManualClock, r: random.Random, bad: str, *, rounds: int = 40) -> None:
    """Let three hosts work side by side; all but a few messages of the bad one fail."""
    with contextlib.ExitStack() as stack:
        brokers = {name: stack.enter_context(on_host(name)) for name in HOSTS}
        for _ in range(rounds):
            send(brokers["ant"], [order(r) for _ in range(600)])
            for name, broker in brokers.items():
                work(broker, 200, (lambda _: r.random() < 0.05) if name == bad else lambda _: False)
            clock.advance(300)


@pytest.fixture
def queue(broker: Broker) -> str:
    broker.create_queue("orders", QueueOptions(policy=POLICY, breaker=None))
    return "orders"


@pytest.mark.stores("sqlite", *(["postgres"] if "LAZARETTO_SOAK" in os.environ else []))
def test_one_bad_host_of_three_is_found_and_selects_its_letters(
    broker: Broker, queue: str, on_host: Host, clock: ManualClock
) -> None:
    day(on_host, clock, random.Random(1), "bee")
    workers = {row[0] for row in stored(broker, "SELECT worker FROM lazaretto_samples")}
    assert {worker.split(":")[0] for worker in workers} == set(HOSTS)
    (cause,) = broker.explain(queue)
    assert cause.filter == "sys.Host = 'bee'"
    assert cause.compared_with is ComparedWith.COMPLETED
    assert cause.letters > 300
    assert (cause.differences[0].letters, cause.unexplained) == (cause.letters, 0)
    # Of the good ones of the same hours, those that the host completed are counted.
    assert 0 < cause.differences[0].good < 0.6 * cause.good
    (same,) = cause.differences[0].also
    assert same.startswith("sys.Worker = 'bee:")
    kept = broker.cause(queue, cause.causes[0]).difference
    assert kept is not None
    assert (kept.filter, kept.letters, kept.good) == (cause.filter, cause.letters, cause.differences[0].good)
    # What is printed selects the letters, and those of no other host.
    for filter_, number in ((cause.filter, cause.letters), (same, cause.letters), ("sys.Host = 'ant'", 0)):
        which = DeadLetterFilter(where=filter_)
        assert len(list(broker.dead_letters(queue, which))) == number
    plan = broker.plan_repair(queue, DeadLetterFilter(where=cause.filter))
    assert plan.status().letters == cause.letters
    (without,) = broker.explain(queue, leave_out=["SYS.host", "sys.worker"])
    assert without.filter is None


@pytest.mark.stores("sqlite")
def test_what_is_in_the_messages_is_preferred_and_other_hosts_explain_nothing(
    broker: Broker, queue: str, on_host: Host, clock: ManualClock
) -> None:
    r = random.Random(2)
    with contextlib.ExitStack() as stack:
        brokers = [stack.enter_context(on_host(name)) for name in HOSTS]
        for number in range(40):
            send(brokers[0], [order(r, to="X") if n % 40 == number % 40 else order(r) for n in range(600)])
            for broker_ in brokers:
                work(broker_, 200, lambda body: body["to"] == "X")
            clock.advance(300)
    (cause,) = broker.explain(queue)
    assert cause.filter == "body.to = 'X'"
    assert cause.good == len(stored(broker, "SELECT key FROM lazaretto_samples"))


@pytest.mark.stores("sqlite")
@pytest.mark.skipif("LAZARETTO_SOAK" not in os.environ, reason="takes 16 seconds: LAZARETTO_SOAK=1")
def test_hosts_that_were_replaced_before_the_letters_came_explain_nothing(
    broker: Broker, queue: str, on_host: Host, clock: ManualClock
) -> None:
    r = random.Random(3)
    for generation in range(3):
        with on_host(f"old-{generation}") as old:
            send(old, [order(r) for _ in range(8_000)])
            work(old, 8_000, lambda body: False)
        clock.advance(86_400)
    with on_host("new-1") as one, on_host("new-2") as two:
        for _ in range(20):
            send(one, [order(r) for _ in range(200)])
            for new in (one, two):
                work(new, 100, lambda body: r.random() < 0.1)
            clock.advance(60)
    (cause,) = broker.explain(queue)
    assert cause.filter is None
    assert cause.letters > 200
