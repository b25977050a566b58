"""Settling: complete, abandon, defer, dead-letter, release, renew; stale locks change nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lazaretto import (
    Broker,
    ManualClock,
    MessageLockLost,
    MessageState,
    NotAllowed,
    ReceivedMessage,
)

from .actions import bodies, create, peek_one, send, states, take
from .conftest import Connect

VERBS = ["complete", "abandon", "invalid", "defer", "dead_letter", "release", "renew_lock"]


class TestDeliveryCount:
    """What adds one to the delivery count: Service Bus's table, row by row."""

    @pytest.fixture(autouse=True)
    def queue(self, broker: Broker) -> None:
        create(broker, lock_duration=30)
        create(broker, "s", lock_duration=30, requires_session=True)

    def test_first_delivery_shows_zero(self, broker: Broker) -> None:
        send(broker, b"x", b"y")
        assert take(broker).delivery_count == 0
        assert take(broker, mode="receive_and_delete").delivery_count == 0

    @pytest.mark.parametrize(
        ("settle", "count"),
        [("abandon", 1), ("release", 0), ("defer", 1)],
    )
    def test_settling(self, broker: Broker, settle: str, count: int) -> None:
        send(broker, b"x")
        receiver = broker.receiver("q")
        getattr(receiver, settle)(receiver.receive())
        assert peek_one(broker).delivery_count == count

    def test_a_lock_that_runs_out(self, broker: Broker, clock: ManualClock) -> None:
        send(broker, b"x")
        take(broker)
        clock.advance(30)
        assert take(broker).delivery_count == 1

    def test_a_sessions_lock_that_runs_out(self, broker: Broker, clock: ManualClock) -> None:
        send(broker, b"x", path="s", session_id="a")
        take(broker, "s", session="a")
        clock.advance(30)
        assert take(broker, "s", session="a").delivery_count == 1

    def test_a_session_that_is_closed(self, broker: Broker) -> None:
        send(broker, b"x", path="s", session_id="a")
        with broker.receiver("s", session="a") as receiver:
            receiver.receive()
        assert take(broker, "s", session="a").delivery_count == 0

    def test_a_receiver_that_is_closed_keeps_its_locks_running(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        send(broker, b"x")
        with broker.receiver("q") as receiver:
            receiver.receive()
        assert (peek_one(broker).state, peek_one(broker).delivery_count) == (MessageState.LOCKED, 0)
        clock.advance(30)
        assert take(broker).delivery_count == 1

    @pytest.mark.parametrize("settle", ["abandon", "defer"])
    def test_a_deferred_message(self, broker: Broker, settle: str) -> None:
        number = send(broker, b"x")
        receiver = broker.receiver("q")
        receiver.defer(receiver.receive())
        (message,) = receiver.receive_deferred(number)
        assert message.delivery_count == 1
        getattr(receiver, settle)(message)
        assert (peek_one(broker).delivery_count, peek_one(broker).state) == (2, MessageState.DEFERRED)

    def test_dead_lettering_keeps_it(self, broker: Broker) -> None:
        send(broker, b"x", b"y")
        receiver = broker.receiver("q")
        x, y = receiver.receive(2)
        receiver.dead_letter(x)
        receiver.defer(y)
        receiver.dead_letter(receiver.receive_deferred(y.sequence_number))
        assert [m.delivery_count for m in broker.peek("q;poison", 5)] == [0, 1]

    def test_in_a_dead_letter_subqueue_nothing_does(self, broker: Broker, clock: ManualClock) -> None:
        send(broker, b"x")
        receiver, dead = broker.receiver("q"), broker.receiver("q;poison")
        receiver.dead_letter(receiver.receive())
        for _ in range(30):
            dead.abandon(dead.receive())
        assert len(dead.receive()) == 1
        clock.advance(30)
        (message,) = dead.receive()
        assert message.delivery_count == 0

    def test_max_delivery_count_is_the_number_of_deliveries(self, broker: Broker) -> None:
        send(broker, b"x")
        receiver = broker.receiver("q")
        shown = []
        while messages := receiver.receive():
            shown.append(messages[0].delivery_count)
            receiver.abandon(messages)
        assert shown == list(range(10))
        letter = broker.dead_letter("q", 1)
        assert letter.reason == "MaxDeliveryCountExceeded"
        assert letter.description == "Message could not be consumed after 10 delivery attempts."


class TestComplete:
    """The work is done."""

    def test_the_message_is_gone(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x" * 5000)
        receiver = broker.receiver("q")
        receiver.complete(receiver.receive())
        assert broker.queue("q").counts.total == 0

    def test_durably(self, connect: Connect) -> None:
        first = connect()
        create(first)
        send(first, b"x", b"y")
        receiver = first.receiver("q")
        receiver.complete(receiver.receive())
        first.close()
        assert bodies(connect().peek("q", 5)) == [b"y"]

    def test_by_any_receiver_of_any_broker(self, connect: Connect) -> None:
        one, other = connect(), connect()
        create(one)
        create(one, "elsewhere")
        send(one, b"x", b"y")
        x, y = one.receiver("q").receive(2)
        other.receiver("q").complete(x)
        other.receiver("elsewhere").complete(y)
        assert one.queue("q").counts.total == 0

    def test_after_the_receiver_was_closed(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        with broker.receiver("q") as receiver:
            (message,) = receiver.receive()
        broker.receiver("q").complete(message)
        assert broker.queue("q").counts.total == 0

    def test_a_dead_letter(self, broker: Broker) -> None:
        create(broker)
        number = send(broker, b"x")
        receiver, dead = broker.receiver("q"), broker.receiver("q", subqueue="dead_letter")
        receiver.dead_letter(receiver.receive())
        dead.complete(dead.receive())
        letter = broker.dead_letter("q", number)
        assert (letter.resolution, letter.message) == ("completed", None)
        assert list(broker.dead_letters("q")) == []


class TestAbandon:
    """The attempt failed."""

    def test_at_once_in_its_old_place(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x", b"y")
        receiver = broker.receiver("q")
        receiver.abandon(receiver.receive())
        assert bodies(receiver.receive(2)) == [b"x", b"y"]

    def test_after_a_delay(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        send(broker, b"x", b"y")
        receiver = broker.receiver("q")
        receiver.abandon(receiver.receive(), delay=10)
        assert states(broker) == [(b"x", MessageState.DELAYED), (b"y", MessageState.ACTIVE)]
        clock.advance(9.999)
        assert bodies(receiver.receive(2)) == [b"y"]
        clock.advance(0.001)
        assert bodies(receiver.receive(2)) == [b"x"]

    def test_the_delay_runs_with_nobody_connected(self, connect: Connect, clock: ManualClock) -> None:
        first = connect()
        create(first)
        send(first, b"x")
        receiver = first.receiver("q")
        receiver.abandon(receiver.receive(), delay=3600)
        first.close()
        clock.advance(3600)
        assert take(connect()).body == b"x"


class TestDeadLetter:
    """Set aside by the receiver, with its reasons."""

    def test_reason_and_description_travel_with_it(self, broker: Broker) -> None:
        create(broker)
        number = send(broker, b"x", subject="s", time_to_live=60)
        receiver = broker.receiver("q")
        receiver.dead_letter(receiver.receive(), reason="NoCustomer", description="customer 7 is unknown")
        message = take(broker, "q/$DeadLetterQueue")
        assert (message.body, message.subject, message.sequence_number) == (b"x", "s", number)
        assert message.dead_letter_reason == "NoCustomer"
        assert message.dead_letter_error_description == "customer 7 is unknown"

    def test_both_may_be_absent(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        receiver = broker.receiver("q")
        receiver.dead_letter(receiver.receive())
        message = peek_one(broker, "q;poison")
        assert (message.dead_letter_reason, message.dead_letter_error_description) == (None, None)

    def test_long_texts_are_cut_in_the_middle(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        receiver = broker.receiver("q")
        receiver.dead_letter(receiver.receive(), reason="r" * 9000, description="a" * 9000 + "z")
        message = peek_one(broker, "q;poison")
        assert (
            len(message.dead_letter_reason or "") == len(message.dead_letter_error_description or "") == 4096
        )
        assert (message.dead_letter_error_description or "").endswith("z")
        assert "characters left out" in (message.dead_letter_reason or "")

    def test_not_twice(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        receiver, dead = broker.receiver("q"), broker.receiver("q;poison")
        receiver.dead_letter(receiver.receive())
        (message,) = dead.receive()
        with pytest.raises(NotAllowed, match="is already a dead letter"):
            dead.dead_letter(message)
        dead.complete(message)


class TestRenew:
    """A lock prolonged."""

    def test_from_now_not_from_the_old_end(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, lock_duration=30)
        send(broker, b"x")
        receiver = broker.receiver("q")
        (message,) = receiver.receive()
        clock.advance(10)
        until = datetime.fromtimestamp(clock.now() / 1e6 + 30, UTC)
        assert receiver.renew_lock(message) == until == message.locked_until == peek_one(broker).locked_until

    def test_as_often_as_needed(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, lock_duration=30)
        send(broker, b"x", b"y")
        receiver = broker.receiver("q")
        messages = receiver.receive(2)
        for _ in range(10):
            clock.advance(29)
            receiver.renew_lock(messages)
        receiver.complete(messages)

    def test_not_after_it_ran_out(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, lock_duration=30)
        send(broker, b"x")
        receiver = broker.receiver("q")
        (message,) = receiver.receive()
        clock.advance(30)
        with pytest.raises(MessageLockLost):
            receiver.renew_lock(message)


@pytest.mark.parametrize("verb", VERBS)
class TestStale:
    """A settle under a lock that is no longer held raises and changes nothing."""

    def _refused(self, broker: Broker, verb: str, message: ReceivedMessage) -> None:
        before = [broker.queue("q").counts, broker.peek("q", 9), broker.peek("q;poison", 9), broker.events()]
        with pytest.raises(MessageLockLost) as raised:
            getattr(broker.receiver("q"), verb)(message)
        assert raised.value.sequence_numbers == (message.sequence_number,)
        after = [broker.queue("q").counts, broker.peek("q", 9), broker.peek("q;poison", 9), broker.events()]
        assert after == before

    @pytest.mark.parametrize("first", ["complete", "abandon", "defer", "dead_letter", "release"])
    def test_settled_already(self, broker: Broker, verb: str, first: str) -> None:
        create(broker)
        send(broker, b"x")
        receiver = broker.receiver("q")
        (message,) = receiver.receive()
        getattr(receiver, first)(message)
        self._refused(broker, verb, message)

    def test_run_out(self, broker: Broker, clock: ManualClock, verb: str) -> None:
        create(broker, lock_duration=30)
        send(broker, b"x")
        message = take(broker)
        clock.advance(30)
        self._refused(broker, verb, message)

    def test_held_by_another_receiver_now(self, broker: Broker, clock: ManualClock, verb: str) -> None:
        create(broker, lock_duration=30)
        send(broker, b"x")
        stale = take(broker)
        clock.advance(30)
        current = take(broker)
        self._refused(broker, verb, stale)
        broker.receiver("q").complete(current)


def test_release_gives_back_uncharged(broker: Broker) -> None:
    create(broker, receive_retry_count=0)
    send(broker, b"x")
    receiver = broker.receiver("q")
    for attempt in range(1, 6):
        (message,) = receiver.receive()
        assert (message.attempt, message.delivery_count) == (attempt, 0)
        receiver.release(message)
