"""Settling: complete, abandon, defer, dead-letter, release, renew; stale locks change nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from lazaretto import (
    Broker,
    InvalidMessage,
    InvalidOption,
    ManualClock,
    MessageLockLost,
    MessageState,
    NotAllowed,
    ReceivedMessage,
)

from .actions import bodies, create, numbers, peek_one, send, states, take
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


class TestSeveral:
    """One call settles several messages in one commit, or none."""

    @pytest.mark.parametrize("verb", ["complete", "abandon", "defer", "dead_letter", "release"])
    def test_one_that_is_lost_keeps_all_as_they_are(self, broker: Broker, verb: str) -> None:
        create(broker)
        send(broker, b"0", b"1", b"2")
        receiver = broker.receiver("q")
        messages = receiver.receive(3)
        receiver.complete(messages[1])
        with pytest.raises(MessageLockLost) as raised:
            getattr(receiver, verb)(messages)
        assert raised.value.sequence_numbers == (2,)
        assert states(broker) == [(b"0", MessageState.LOCKED), (b"2", MessageState.LOCKED)]

    @pytest.mark.parametrize("verb", ["complete", "abandon", "defer", "dead_letter", "release"])
    def test_a_message_named_twice(self, broker: Broker, verb: str) -> None:
        create(broker)
        send(broker, b"x")
        receiver = broker.receiver("q")
        (message,) = receiver.receive()
        with pytest.raises(MessageLockLost):
            getattr(receiver, verb)([message, message])
        assert states(broker) == [(b"x", MessageState.LOCKED)]

    def test_of_several_hand_overs(self, broker: Broker) -> None:
        create(broker)
        send(broker, *[b"%d" % n for n in range(6)])
        receiver = broker.receiver("q")
        messages = receiver.receive(2) + receiver.receive(3) + receiver.receive(1)
        receiver.complete(message for message in messages if message.body != b"3")
        assert bodies(broker.peek("q", 9)) == [b"3"]

    def test_of_several_queues(self, broker: Broker) -> None:
        create(broker, "a")
        create(broker, "b")
        send(broker, b"x", path="a")
        send(broker, b"y", path="b")
        broker.receiver("a").complete([take(broker, "a"), take(broker, "b")])
        assert broker.queue("a").counts.total == broker.queue("b").counts.total == 0

    @pytest.mark.parametrize("verb", ["complete", "abandon", "defer", "dead_letter", "release"])
    def test_none_at_all(self, broker: Broker, verb: str) -> None:
        create(broker)
        getattr(broker.receiver("q"), verb)([])


def test_release_gives_back_uncharged(broker: Broker) -> None:
    create(broker, receive_retry_count=0)
    send(broker, b"x")
    receiver = broker.receiver("q")
    for attempt in range(1, 6):
        (message,) = receiver.receive()
        assert (message.attempt, message.delivery_count) == (attempt, 0)
        receiver.release(message)


class TestConsume:
    """The plain consumer loop settles by what the handler does."""

    @pytest.fixture(autouse=True)
    def queue(self, broker: Broker) -> None:
        create(broker, receive_retry_count=1)
        send(broker, b"good", b"bad", b"never", b"fine")

    @staticmethod
    def _handler(handled: list[bytes]) -> Callable[[ReceivedMessage], None]:
        def handle(message: ReceivedMessage) -> None:
            handled.append(message.body)
            if message.body == b"bad":
                raise KeyError("customer")
            if message.body == b"never":
                raise InvalidMessage("not JSON")

        return handle

    def test_done_failed_and_invalid(self, broker: Broker) -> None:
        handled: list[bytes] = []
        report = broker.consume("q", self._handler(handled), stop_when_idle=True)
        assert (report.completed, report.failed, report.invalid, report.locks_lost) == (2, 2, 1, 0)
        assert sorted(handled) == [b"bad", b"bad", b"fine", b"good", b"never"]
        assert [(d.reason, d.error_type) for d in broker.dead_letters("q")] == [
            ("MaxDeliveryCountExceeded", "KeyError"),
            ("InvalidMessage", "lazaretto.errors.InvalidMessage"),
        ]

    def test_an_interrupt_leaves_the_rest_untried(self, broker: Broker) -> None:
        handled: list[Any] = []

        def handle(message: ReceivedMessage) -> None:
            if handled:
                raise KeyboardInterrupt
            handled.append(message)

        with pytest.raises(KeyboardInterrupt):
            broker.consume("q", handle, stop_when_idle=True)
        assert numbers(handled) == [1]
        assert [(m.state, m.delivery_count) for m in broker.peek("q", 9)] == [(MessageState.ACTIVE, 0)] * 3

    def test_a_message_whose_lock_ran_out_is_counted_as_lost(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        def handle(message: ReceivedMessage) -> None:
            if message.attempt == 1 and message.body == b"good":
                clock.advance(61)

        report = broker.consume("q", handle, batch_size=1, stop_when_idle=True)
        assert (report.completed, report.locks_lost) == (5, 1)
        assert broker.queue("q").counts.total == 0


class TestByLockToken:
    """What one receiver holds, another one settles that knows the lock tokens."""

    @pytest.fixture(autouse=True)
    def queue(self, broker: Broker) -> None:
        create(broker, lock_duration=30)
        create(broker, "s", lock_duration=30, requires_session=True)

    def test_settled_by_another_broker(self, broker: Broker, connect: Connect) -> None:
        send(broker, b"a", b"b", b"c")
        tokens = [m.lock_token for m in broker.receiver("q").receive(3) if m.lock_token]
        with connect() as other:
            there = other.receiver("q")
            held = there.messages_held(tokens)
            assert bodies(held) == [b"a", b"b", b"c"]
            assert [m.lock_token for m in held] == tokens
            there.complete(held[0])
            there.abandon(held[1])
            there.dead_letter(held[2], reason="R")
        assert bodies(broker.peek("q", 5)) == [b"b"]
        assert [letter.reason for letter in broker.dead_letters("q")] == ["R"]

    def test_renewed(self, broker: Broker, clock: ManualClock) -> None:
        send(broker, b"a")
        token = take(broker).lock_token
        assert token is not None
        clock.advance(29)
        receiver = broker.receiver("q")
        receiver.renew_lock(receiver.messages_held(token))
        clock.advance(29)
        receiver.complete(receiver.messages_held(token))
        assert broker.peek("q") == []

    def test_of_a_dead_letter(self, broker: Broker) -> None:
        send(broker, b"a")
        first = broker.receiver("q")
        first.dead_letter(first.receive())
        dead = broker.receiver("q", subqueue="dead_letter")
        (token,) = (m.lock_token for m in dead.receive())
        assert token is not None
        dead.complete(dead.messages_held(token))
        assert broker.dead_letter("q", 1).resolution == "completed"

    def test_of_a_session(self, broker: Broker) -> None:
        send(broker, b"a", path="s", session_id="one")
        taken = take(broker, "s", session="one")
        assert taken.lock_token is not None
        receiver = broker.receiver("s")
        (held,) = receiver.messages_held(taken.lock_token)
        assert held.lock == taken.lock
        receiver.complete(held)
        assert broker.peek("s") == []

    def test_of_none_that_is_held(self, broker: Broker, clock: ManualClock) -> None:
        send(broker, b"a", b"b")
        first, second = broker.receiver("q").receive(2)
        assert first.lock_token is not None
        assert second.lock_token is not None
        receiver = broker.receiver("q")
        receiver.complete(receiver.messages_held(first.lock_token))
        with pytest.raises(MessageLockLost) as lost:
            receiver.messages_held([first.lock_token, second.lock_token])
        assert lost.value.sequence_numbers == (first.sequence_number,)
        for forged in (
            uuid.UUID(int=(1 << 128) - 1),
            uuid.UUID(int=0),
            uuid.UUID(int=second.lock_token.int + 1),
        ):
            with pytest.raises(MessageLockLost):
                receiver.messages_held(forged)
        clock.advance(30)
        with pytest.raises(MessageLockLost):
            receiver.messages_held(second.lock_token)
        with pytest.raises(InvalidOption):
            receiver.messages_held("x")  # type: ignore[arg-type]
