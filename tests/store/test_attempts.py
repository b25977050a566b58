"""The history of every attempt that did not complete, and the four counters."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime

import pytest

from lazaretto import Broker, ManualClock, MessageNotFound, Outcome, PoisonPolicy

from .actions import create, fail, send, take
from .conftest import Connect


def test_every_field_of_an_attempt(broker: Broker, clock: ManualClock) -> None:
    create(broker)
    number = send(broker, b"x")
    started = datetime.fromtimestamp(clock.now() / 1e6, UTC)
    receiver = broker.receiver("q")
    held = receiver.receive()
    clock.advance(7)
    try:
        raise KeyError("customer")
    except KeyError as error:
        receiver.abandon(held, error=error)
    (attempt,) = broker.attempts("q", number)
    assert (attempt.number, attempt.started, attempt.outcome) == (1, started, Outcome.FAILED)
    assert (attempt.ended - started).total_seconds() == 7
    assert attempt.worker is not None
    assert attempt.worker.startswith(f"{socket.gethostname()}:{os.getpid()}:")
    assert (attempt.error_type, attempt.error_message) == ("KeyError", "'customer'")
    assert attempt.stack is not None
    assert 'raise KeyError("customer")' in attempt.stack


def test_every_outcome_in_order(broker: Broker, clock: ManualClock) -> None:
    create(broker, lock_duration=30)
    number = send(broker, b"x")
    receiver = broker.receiver("q")
    receiver.abandon(receiver.receive(), error="ValueError: 1")
    receiver.release(receiver.receive())
    receiver.receive()
    clock.advance(30)
    receiver.defer(receiver.receive())
    receiver.dead_letter(receiver.receive_deferred(number), reason="Enough", error="KeyError: 2")
    letter = broker.dead_letter("q", number)
    assert [(a.number, a.outcome.value, a.error_type) for a in letter.attempts] == [
        (1, "failed", "ValueError"),
        (2, "released", None),
        (3, "lock_expired", None),
        (4, "deferred", None),
        (5, "dead_lettered", "KeyError"),
    ]
    assert letter.attempts == broker.attempts("q", number)


def test_the_four_counters_are_kept_apart(broker: Broker, clock: ManualClock) -> None:
    create(broker, lock_duration=30)
    number = send(broker, b"x")
    receiver = broker.receiver("q")
    for _ in range(3):
        receiver.abandon(receiver.receive())
    for _ in range(2):
        receiver.receive()
        clock.advance(30)
    receiver.release(receiver.receive())
    receiver.dead_letter(receiver.receive())
    counters = broker.dead_letter("q", number).counters
    assert (counters.deliveries, counters.failures) == (7, 3)
    assert (counters.worker_deaths, counters.lock_expiries) == (0, 2)
    assert counters.delivery_count == 5


def test_the_clean_path_leaves_no_history(broker: Broker) -> None:
    create(broker)
    number = send(broker, b"x")
    receiver = broker.receiver("q")
    receiver.complete(receiver.receive())
    with pytest.raises(MessageNotFound, match=f"no message {number} in 'q'"):
        broker.attempts("q", number)


def test_a_live_message_that_never_failed(broker: Broker) -> None:
    create(broker)
    assert broker.attempts("q", send(broker, b"x")) == ()


class TestBounds:
    """A history cannot fill the disk."""

    def test_a_megabyte_of_traceback(self, broker: Broker) -> None:
        create(broker)
        number = send(broker, b"x")

        def deep(level: int) -> None:
            if not level:
                raise ValueError("x" * 1_000_000)
            deep(level - 1)

        try:
            deep(50)
        except ValueError as error:
            fail(broker, error=error)
        (attempt,) = broker.attempts("q", number)
        assert len(attempt.error_message or "") == 4096
        assert len(attempt.stack or "") == 8192
        assert "characters left out" in (attempt.stack or "")
        assert (attempt.stack or "").startswith("Traceback (most recent call last)")

    def test_the_latest_hundred_attempts(self, broker: Broker) -> None:
        create(broker, policy=PoisonPolicy(receive_retry_count=999))
        number = send(broker, b"x")
        for _ in range(130):
            fail(broker)
        kept = [attempt.number for attempt in broker.attempts("q", number)]
        assert kept == list(range(31, 131))
        assert take(broker).attempt == 131

    def test_text_that_cannot_be_stored(self, broker: Broker) -> None:
        create(broker)
        number = send(broker, b"x")
        fail(broker, error=ValueError("bad \ud800 name"))
        assert broker.attempts("q", number)[0].error_message == "bad \\ud800 name"


class TestDurable:
    """Each hand-over is recorded before the consumer sees the message."""

    def test_a_crash_of_the_consumer_does_not_lose_the_count(
        self, connect: Connect, clock: ManualClock
    ) -> None:
        first = connect()
        create(first, lock_duration=30)
        number = send(first, b"x")
        take(first)
        first.close()
        clock.advance(30)
        message = take(connect())
        assert (message.attempt, message.delivery_count) == (2, 1)
        (attempt,) = connect().attempts("q", number)
        assert (attempt.number, attempt.outcome) == (1, Outcome.LOCK_EXPIRED)

    def test_with_the_record_synced_before(self, connect: Connect) -> None:
        broker = connect(durable_attempts=True)
        create(broker)
        send(broker, b"x")
        assert take(broker).attempt == 1


def test_attempts_in_the_dead_letter_subqueue_are_kept_too(broker: Broker) -> None:
    create(broker)
    number = send(broker, b"x")
    receiver = broker.receiver("q")
    receiver.dead_letter(receiver.receive(), error="KeyError: main")
    fail(broker, "q;poison", error="ValueError: repair")
    assert [a.error_type for a in broker.attempts("q;poison", number)] == ["KeyError", "ValueError"]


def test_an_error_given_as_text(broker: Broker) -> None:
    create(broker)
    number = send(broker, b"x")
    fail(broker, error="shop.NoStock: item 7")
    (attempt,) = broker.attempts("q", number)
    assert (attempt.error_type, attempt.error_message, attempt.stack) == ("shop.NoStock", "item 7", None)
