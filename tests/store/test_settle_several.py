"""Settling several messages in one commit, in a consumer's loop, and by lock token."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from lazaretto import (
    Broker,
    InvalidMessage,
    InvalidOption,
    ManualClock,
    MessageLockLost,
    MessageState,
    ReceivedMessage,
)

from .actions import bodies, create, numbers, send, states, take
from .conftest import Connect


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
