"""Receiving active messages by their numbers, out of turn."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lazaretto import (
    Broker,
    InvalidOption,
    ManualClock,
    Message,
    MessageNotFound,
    MessageNotReceivable,
    MessageState,
    NotAllowed,
    Outcome,
    PoisonMessageError,
    PoisonPolicy,
    QueueDisabled,
    SessionHeld,
    SessionLockLost,
)
from lazaretto.errors import LazarettoError
from lazaretto.model.clock import to_datetime

from .actions import bodies, create, fail, numbers, peek_one, send, set_aside, states, take
from .conftest import Connect


def _refused(broker: Broker, number: int, path: str = "q") -> tuple[MessageState, str]:
    with pytest.raises(MessageNotReceivable) as caught:
        broker.receiver(path).receive_by_number(number)
    error = caught.value
    assert (error.entity, error.sequence_number) == (path, number)
    assert isinstance(error.state, MessageState)
    return error.state, str(error)


class TestActive:
    """A message that is active is handed over as by any receive."""

    def test_one_out_of_turn(self, connect: Connect) -> None:
        one, other = connect(), connect()
        create(one)
        send(one, b"1", b"2", b"3")
        receiver = one.receiver("q")
        (message,) = receiver.receive_by_number(2)
        assert (message.body, message.attempt, message.lock_token is None) == (b"2", 1, False)
        assert bodies(other.receiver("q").receive(9)) == [b"1", b"3"]
        receiver.complete(message)
        assert numbers(one.peek("q", 9)) == [1, 3]

    def test_several_in_one_call_by_number(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"1", b"2", b"3", b"4")
        receiver = broker.receiver("q")
        assert bodies(receiver.receive_by_number([4, 2, 4])) == [b"2", b"4"]
        assert bodies(receiver.receive(9)) == [b"1", b"3"]
        assert receiver.receive_by_number([]) == []

    def test_it_is_charged_as_any_hand_over(self, broker: Broker) -> None:
        create(broker, receive_retry_count=1)
        number = send(broker, b"x")
        receiver = broker.receiver("q")
        for attempt in (1, 2):
            (message,) = receiver.receive_by_number(number)
            assert message.attempt == attempt
            receiver.abandon(message, error="ValueError: no")
        letter = broker.dead_letter("q", number)
        assert (letter.reason, letter.counters.deliveries) == ("MaxDeliveryCountExceeded", 2)
        assert [a.outcome for a in letter.attempts] == [Outcome.FAILED, Outcome.FAILED]

    def test_its_lock_runs_out_like_any_other(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, lock_duration=30)
        send(broker, b"1", b"2")
        broker.receiver("q").receive_by_number(2)
        clock.advance(31)
        assert bodies(broker.receiver("q").receive(9)) == [b"2", b"1"]
        assert [a.outcome for a in broker.attempts("q", 2)] == [Outcome.LOCK_EXPIRED]

    def test_one_that_was_tried_before(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"1", b"2")
        fail(broker)
        assert states(broker)[0][1] is MessageState.ACTIVE
        assert bodies(broker.receiver("q").receive_by_number([1, 2])) == [b"1", b"2"]

    def test_among_others_that_are_locked_together(self, broker: Broker) -> None:
        create(broker)
        send(broker, *(b"%d" % i for i in range(1, 11)))
        receiver = broker.receiver("q")
        (fifth,) = receiver.receive_by_number(5)
        others = receiver.receive(20)
        assert numbers(others) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
        receiver.abandon(fifth)
        receiver.complete(others)
        assert bodies(receiver.receive(20)) == [b"5"]

    def test_a_lowered_limit_is_looked_at(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"1", b"2")
        fail(broker)
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=0))
        with pytest.raises(MessageNotFound, match=r"it is a dead letter, in 'q/\$deadletterqueue'"):
            broker.receiver("q").receive_by_number([1, 2])
        assert states(broker) == [(b"2", MessageState.ACTIVE)]
        assert numbers(broker.dead_letters("q")) == [1]

    def test_a_dead_letter_in_its_subqueue(self, broker: Broker) -> None:
        create(broker)
        set_aside(broker, b"1", b"2")
        dead = broker.receiver("q", subqueue="dead_letter")
        (message,) = dead.receive_by_number(2)
        dead.complete(message)
        assert numbers(broker.dead_letters("q")) == [1]
        assert broker.dead_letter("q", 2).resolution == "completed"

    def test_in_a_transaction(self, broker: Broker) -> None:
        create(broker)
        create(broker, "store")
        send(broker, b"1", b"2")
        with broker.transaction() as tx:
            (message,) = tx.receive_by_number("q", 2)
            tx.send("store", Message(message.body))
        assert (bodies(broker.peek("q", 9)), bodies(broker.peek("store", 9))) == ([b"1"], [b"2"])
        with pytest.raises(RuntimeError), broker.transaction() as tx:
            tx.receive_by_number("q", 1)
            raise RuntimeError("no")
        assert peek_one(broker).delivery_count == 1


class TestNotActive:
    """A message that is not active stays as it is, and the error says how that is."""

    def test_locked(self, broker: Broker) -> None:
        create(broker)
        number = send(broker, b"x")
        take(broker)
        state, text = _refused(broker, number)
        assert state is MessageState.LOCKED
        assert "is locked by " in text
        assert " until " in text

    def test_locked_with_others(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"1", b"2", b"3")
        broker.receiver("q").receive(3)
        assert _refused(broker, 2)[0] is MessageState.LOCKED

    def test_deferred(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        number = send(broker, b"x", time_to_live=10)
        receiver = broker.receiver("q")
        receiver.defer(receiver.receive())
        clock.advance(11)
        assert _refused(broker, number) == (
            MessageState.DEFERRED,
            f"message {number} of 'q' is deferred; receive it with receive_deferred. Nothing was locked",
        )

    def test_delayed(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=60)
        number = send(broker, b"x")
        fail(broker)
        state, text = _refused(broker, number)
        assert (state, "waits for its next attempt until " in text) == (MessageState.DELAYED, True)

    def test_scheduled(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        at = to_datetime(clock.now()) + timedelta(minutes=1)
        (number,) = broker.sender("q").schedule([Message(b"x")], at)
        state, text = _refused(broker, number)
        assert (state, "is scheduled for " in text) == (MessageState.SCHEDULED, True)

    def test_one_of_several_and_nothing_is_locked(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"1", b"2")
        take(broker)
        with pytest.raises(MessageNotReceivable, match=r"message 1 of 'q'.*Nothing was locked"):
            broker.receiver("q").receive_by_number([2, 1])
        assert states(broker) == [(b"1", MessageState.LOCKED), (b"2", MessageState.ACTIVE)]

    def test_a_dead_letter_and_what_became_of_it(self, broker: Broker) -> None:
        create(broker)
        (number,) = set_aside(broker, b"x")
        receiver = broker.receiver("q")
        with pytest.raises(MessageNotFound, match=r"it is a dead letter, in 'q/\$deadletterqueue'"):
            receiver.receive_by_number(number)
        broker.purge("q", number)
        with pytest.raises(MessageNotFound, match="it was a dead letter, and was purged"):
            receiver.receive_by_number(number)

    def test_one_that_is_not_there(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        receiver = broker.receiver("q")
        with pytest.raises(MessageNotFound, match="no message 9 in 'q': it never existed"):
            receiver.receive_by_number(9)
        number = send(broker, b"x", time_to_live=1)
        clock.advance(2)
        with pytest.raises(MessageNotFound, match="or has expired"):
            receiver.receive_by_number(number)
        (live,) = [send(broker, b"y")]
        with pytest.raises(MessageNotFound, match="it is in 'q'"):
            broker.receiver("q;poison").receive_by_number(live)

    @pytest.mark.parametrize("number", [0, -1, True, "1", 1.0, None])
    def test_what_is_no_number(self, broker: Broker, number: object) -> None:
        create(broker)
        with pytest.raises(InvalidOption):
            broker.receiver("q").receive_by_number(number)  # type: ignore[arg-type]


class TestQueuesThatGiveNothing:
    """What stands against receiving stands against receiving by number."""

    def test_a_halted_queue(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, on_poison="fault")
        send(broker, b"1", b"2")
        fail(broker)
        for number in (1, 2):
            with pytest.raises(PoisonMessageError):
                broker.receiver("q").receive_by_number(number)

    def test_a_queue_that_is_switched_off(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        broker.set_status("q", "receive_disabled")
        with pytest.raises(QueueDisabled):
            broker.receiver("q").receive_by_number(1)

    @pytest.mark.parametrize("mode", ["receive_and_delete", "retry"])
    def test_other_ways_of_receiving(self, broker: Broker, mode: str) -> None:
        create(broker)
        send(broker, b"x")
        path, how = ("q;retry", "peek_lock") if mode == "retry" else ("q", mode)
        receiver = broker.receiver(path, mode=how)  # type: ignore[arg-type]
        with pytest.raises(NotAllowed):
            receiver.receive_by_number(1)


class TestSessions:
    """Messages of a session are for its receiver."""

    @pytest.fixture(autouse=True)
    def numbers(self, broker: Broker) -> list[int]:
        """Return the numbers of two messages of session a, one of b, and another one of a."""
        create(
            broker, requires_session=True, receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=60,
            on_poison_session="block",
        )  # fmt: skip
        found = (b"a1", b"a2", b"b3", b"a4")
        return [send(broker, body, session_id=body[:1].decode()) for body in found]

    def test_only_under_its_sessions_lock(
        self, broker: Broker, clock: ManualClock, numbers: list[int]
    ) -> None:
        _, second, third, _ = numbers
        with pytest.raises(NotAllowed, match="requires sessions"):
            broker.receiver("q").receive_by_number(1)
        receiver = broker.receiver("q", session="a")
        assert bodies(receiver.receive_by_number(second)) == [b"a2"]
        with pytest.raises(MessageNotReceivable, match="is in session 'b', not in 'a'"):
            receiver.receive_by_number(third)
        assert bodies(receiver.receive(9)) == [b"a1", b"a4"]
        clock.advance(61)
        with pytest.raises(SessionLockLost):
            receiver.receive_by_number(second)

    def test_none_behind_one_that_waits_for_its_retry(self, broker: Broker, numbers: list[int]) -> None:
        receiver = broker.receiver("q", session="a")
        (first, second) = receiver.receive_by_number(numbers[:2])
        receiver.release(first)
        receiver.abandon(second)
        with pytest.raises(MessageNotReceivable, match=f"waits behind message {numbers[1]} of its session"):
            receiver.receive_by_number(numbers[3])
        assert bodies(receiver.receive_by_number(numbers[0])) == [b"a1"]

    def test_none_of_a_held_session(self, broker: Broker, clock: ManualClock, numbers: list[int]) -> None:
        receiver = broker.receiver("q", session="a")
        receiver.abandon(receiver.receive())
        clock.advance(61)
        receiver = broker.receiver("q", session="a")
        receiver.abandon(receiver.receive())
        with pytest.raises(SessionHeld):
            receiver.receive_by_number(numbers[1])

    def test_none_alone_of_a_session_that_is_one_unit(self, broker: Broker) -> None:
        create(broker, "w", requires_session=True, on_poison_session="whole")
        send(broker, b"x", path="w", session_id="s")
        receiver = broker.receiver("w", session="s")
        with pytest.raises(NotAllowed, match="settled as a unit"):
            receiver.receive_by_number(1)


def test_every_error_is_one_of_ours(broker: Broker) -> None:
    with pytest.raises(LazarettoError):
        broker.receiver("nowhere").receive_by_number(1)
