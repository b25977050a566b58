"""Dry runs: what a handler would do with dead letters, edited or not; nothing changes."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

from lazaretto import Broker, DeadLetterFilter, HandlerError, InvalidOption, Message, RepairNotFound
from lazaretto.host import Handler, HandlerContext
from lazaretto.host.dry_run import choose, dry_run, try_repair

from .actions import create, fail, numbers, send


def handle(message: Any, context: HandlerContext) -> None:
    if b"die" in message.body:
        os._exit(1)
    if b'"a": 1.10' not in message.body:
        raise ValueError(f"no a in {message.body!r}")
    context.send("out", Message(b"done"))
    context.execute("DELETE FROM somewhere")


@pytest.fixture(autouse=True)
def queue(broker: Broker) -> None:
    create(broker, receive_retry_count=0)
    for body, error in ((b'{"b": 1}', "KeyError: a"), (b'{"b": 2}', "KeyError: a"), (b"die", "OSError: b")):
        send(broker, body)
        fail(broker, error=error)


def test_it_says_what_would_happen_and_changes_nothing(broker: Broker) -> None:
    before, events = list(broker.dead_letters("q")), broker.last_event()
    found = dry_run(broker, "q", DeadLetterFilter(), Handler("q", handle))
    assert (found.letters, found.tried, found.succeeded, found.failed) == (3, 3, 0, 3)
    assert {failure.error_type: failure.count for failure in found.failures} == {
        "ValueError": 2,
        "WorkerCrashed": 1,
    }
    edited = dry_run(broker, "q", DeadLetterFilter(), Handler("q", handle), edit='{"a": 1.10}')
    assert (edited.tried, edited.succeeded, edited.failed, edited.edited) == (2, 2, 0, 2)
    assert list(edited.refused) == [3]
    assert (edited.sends, edited.statements) == ({"out": 2}, 2)
    assert [(cause.error_type, cause.letters, cause.is_gone) for cause in edited.causes] == [
        ("KeyError", 2, True), ("OSError", 1, False),
    ]  # fmt: skip
    assert (list(broker.dead_letters("q")), broker.last_event()) == (before, events)


def raise_key_error(message: Any) -> None:
    raise KeyError("a")


def test_it_tells_the_old_cause_from_others(broker: Broker) -> None:
    create(broker, "p", receive_retry_count=0)
    send(broker, b"x", path="p")
    host_like = Handler("p", raise_key_error)
    message = broker.receiver("p").receive()[0]
    try:
        raise_key_error(message)
    except KeyError as error:
        broker.receiver("p").abandon(message, error=error)
    (cause,) = dry_run(broker, "p", 1, host_like).causes
    assert (cause.tried, cause.succeeded, cause.again + cause.other) == (1, 0, 1)
    assert cause.is_gone is (cause.again == 0)


def test_a_sample_has_some_of_each_cause(broker: Broker) -> None:
    found = dry_run(broker, "q", DeadLetterFilter(), Handler("q", handle), sample=2)
    assert [cause.tried for cause in found.causes] == [1, 1]
    causes: dict[str | None, list[int]] = {"a": list(range(1, 1000)), "b": [1001], None: [2000, 2001]}
    assert choose(causes, None) == sorted(itertools.chain.from_iterable(causes.values()))
    picked = choose(causes, 10)
    assert (len(picked), {1001, 2000, 2001} <= set(picked)) == (10, True)
    assert choose(causes, 10) == picked


def test_wrong_values_are_refused(broker: Broker) -> None:
    odd: list[Any] = [0, -1, True, "5", 1.5]
    for value in odd:
        with pytest.raises(InvalidOption):
            dry_run(broker, "q", 1, Handler("q", handle), sample=value)
    with pytest.raises(HandlerError):
        dry_run(broker, "q", 1, Handler("q", handle), edit="nowhere_at_all:mend")
    assert numbers(broker.dead_letters("q")) == [1, 2, 3]


def test_a_repair(broker: Broker) -> None:
    repair = broker.plan_repair("q", DeadLetterFilter(), everything=True, edit='{"a": 1.10}', canary=0)
    broker.purge("q", 1)
    before, events = list(broker.dead_letters("q")), broker.last_event()
    found = try_repair(broker, repair.name, Handler("q", handle))
    assert (found.letters, found.tried, found.succeeded, found.edited) == (2, 1, 1, 1)
    assert (list(found.refused), found.sends, found.statements) == ([3], {"out": 1}, 1)
    assert [(cause.error_type, cause.is_gone) for cause in found.causes] == [
        ("KeyError", True), ("OSError", False),
    ]  # fmt: skip
    assert (list(broker.dead_letters("q")), broker.last_event()) == (before, events)
    assert [letter.sequence_number for letter in repair.left()] == [2, 3]
    assert [letter.message is None for letter in repair.left(messages=True)] == [False, False]
    repair.apply(in_flight=None)
    repair.run()
    assert try_repair(broker, repair.name, Handler("q", handle)).letters == 0
    with pytest.raises(RepairNotFound):
        try_repair(broker, "none", Handler("q", handle))
