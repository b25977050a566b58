"""What an error handler (`on_poison`) of the service host decides counts, instead of the policy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from lazaretto import (
    Broker,
    Disposition,
    InvalidMessage,
    Message,
    MessageState,
    PoisonPolicy,
    QueueStatus,
    ReceivedMessage,
)
from lazaretto.host import Handler, HandlerReport, PoisonMessage, ServiceHost

from .actions import bodies, create, numbers, send
from .conftest import Connect


@pytest.fixture
def broker(connect: Connect) -> Broker:
    """A broker whose clock goes, as that of a host must."""
    return connect(clock=None)


def _fail(message: ReceivedMessage) -> None:
    if message.body == b"invalid":
        raise InvalidMessage("nonsense")
    if message.body != b"good":
        raise ValueError("no good")


def _serve(
    broker: Broker, hooks: Any, path: str = "q", until: Callable[[], bool] | None = None
) -> HandlerReport:
    """Run a handler that fails until nothing is left to be handed out, or `until`."""
    handler = Handler(path, _fail, isolation="inline", on_poison=hooks)
    waiting = ("active", "locked", "suspect", "delayed")

    def over() -> bool:
        counts = broker.queue(path.removesuffix(";poison")).counts
        return not any(getattr(counts, state) for state in waiting)

    with ServiceHost(broker, handler) as host:
        end = time.monotonic() + 120
        while not (until or over)():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.01)
    (report,) = host.reports()
    return report


def _standing(broker: Broker) -> dict[str, Any]:
    queue = broker.queue("q")
    counts = queue.counts
    return {
        name: value
        for name, value in {
            "dead": counts.dead_letter,
            "dropped": queue.dropped,
            "returned": len(broker.peek("returns", 9)),
            "halted": int(queue.status is QueueStatus.HALTED),
        }.items()
        if value
    }


EFFECTS = {
    Disposition.MOVE: {"dead": 1},
    Disposition.DROP: {"dropped": 1},
    Disposition.REJECT: {"returned": 1},
    Disposition.FAULT: {"halted": 1},
}


@pytest.mark.parametrize("given", list(Disposition))
@pytest.mark.parametrize("policy", [Disposition.MOVE, Disposition.DROP, Disposition.FAULT])
def test_its_disposition_counts(broker: Broker, policy: Disposition, given: Disposition) -> None:
    create(broker, receive_retry_count=1, on_poison=policy)
    create(broker, "returns")
    told: list[Disposition] = []

    def decide(poison: PoisonMessage) -> str:
        told.append(poison.disposition)
        return given.value

    broker.sender("q").send(Message(b"bad", dead_letter_queue="returns"))
    halts = given is Disposition.FAULT
    report = _serve(broker, decide, until=(lambda: bool(_standing(broker))) if halts else None)
    assert told == [policy]
    assert (_standing(broker), report.dead) == (EFFECTS[given], 1)
    assert broker.check() == []


def test_retry_starts_its_attempts_again(broker: Broker) -> None:
    create(broker, receive_retry_count=1)
    number = send(broker, b"bad")
    answers = ["retry", "retry", None]
    deliveries: list[int] = []

    def decide(poison: PoisonMessage) -> str | None:
        deliveries.append(poison.message.deliveries)
        return answers.pop(0)

    report = _serve(broker, decide)
    assert deliveries == [2, 4, 6]
    letter = broker.dead_letter("q", number)
    assert (letter.counters.failures, len(letter.attempts)) == (6, 6)
    assert (report.retried, report.dead) == (5, 1)


def test_what_can_never_be_processed_too(broker: Broker) -> None:
    create(broker, on_invalid="move")
    send(broker, b"invalid")
    told: list[str] = []

    def decide(poison: PoisonMessage) -> Disposition:
        told.append(poison.reason)
        return Disposition.DROP

    _serve(broker, decide)
    assert told == ["InvalidMessage"]
    assert (broker.queue("q").counts.total, broker.queue("q").dropped) == (0, 1)


def test_it_decides_before_the_message_is_settled_and_for_that_message_alone(broker: Broker) -> None:
    create(broker, receive_retry_count=0)
    seen: list[tuple[MessageState, int]] = []

    def decide(poison: PoisonMessage) -> str | None:
        (message,) = broker.peek("q", 1, poison.message.sequence_number)
        seen.append((message.state, broker.queue("q").counts.dead_letter))
        return "drop" if poison.message.body == b"2" else None

    send(broker, b"good", b"1", b"2", b"3")
    _serve(broker, decide)
    assert seen == [(MessageState.LOCKED, 0)] * 3
    assert bodies(broker.peek("q;poison", 9)) == [b"1", b"3"]
    assert broker.queue("q").dropped == 1


def test_the_first_that_decides_and_all_are_told(broker: Broker) -> None:
    create(broker, receive_retry_count=0)
    told: list[PoisonMessage] = []
    send(broker, b"bad")
    _serve(broker, [told.append, lambda poison: "drop", lambda poison: "move", told.append])
    assert len(told) == 2
    assert (broker.queue("q").counts.dead_letter, broker.queue("q").dropped) == (0, 1)


@pytest.mark.parametrize("nonsense", [True, "park", 5, ["drop"]])
def test_nonsense_leaves_it_to_the_policy(
    broker: Broker, nonsense: object, caplog: pytest.LogCaptureFixture
) -> None:
    create(broker, receive_retry_count=0)
    send(broker, b"bad")
    with caplog.at_level(logging.ERROR):
        _serve(broker, lambda poison: nonsense)
    assert numbers(broker.dead_letters("q")) == [1]
    assert "expected an on_poison function to return None, move, fault, drop, reject or retry" in caplog.text


def test_a_session_that_would_wait_for_an_operator_goes_on(broker: Broker) -> None:
    create(broker, requires_session=True, on_poison_session="block", receive_retry_count=0)
    bad, _ = [send(broker, body, session_id="s") for body in (b"bad", b"good")]
    _serve(broker, lambda poison: Disposition.MOVE)
    assert broker.held_sessions("q") == []
    assert numbers(broker.dead_letters("q")) == [bad]
    assert broker.queue("q").counts.total == 1


def test_a_session_that_is_one_unit_shares_what_was_decided(broker: Broker) -> None:
    create(broker, requires_session=True, on_poison_session="whole", receive_retry_count=0)
    for body in (b"good", b"bad", b"good"):
        send(broker, body, session_id="s")
    _serve(broker, lambda poison: "drop")
    assert (broker.queue("q").counts.total, broker.queue("q").dropped) == (0, 3)


@pytest.mark.parametrize("answer", ["drop", "move", "reject"])
def test_in_a_dead_letter_queue_nothing_can_be_moved(broker: Broker, answer: str) -> None:
    create(
        broker, receive_retry_count=0,
        dead_letter_policy=PoisonPolicy(
            receive_retry_count=1, on_poison=Disposition.DROP, on_invalid=Disposition.DROP
        ),
    )  # fmt: skip
    send(broker, b"bad")
    _serve(broker, [])
    told: list[PoisonMessage] = []

    def decide(poison: PoisonMessage) -> str:
        told.append(poison)
        return answer

    _serve(broker, decide, "q;poison", until=lambda: not broker.queue("q").counts.dead_letter)
    assert len(told) == 1
    assert len(broker.peek("$system/deadletter", 9)) == (1 if answer == "reject" else 0)
    assert broker.queue("q").dropped == (0 if answer == "reject" else 1)
