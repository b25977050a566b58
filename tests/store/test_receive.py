"""Receiving: under a lock, for good, by number; order; waiting; peeking."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import pytest

from lazaretto import (
    Broker,
    BrokerClosed,
    ManualClock,
    Message,
    MessageNotFound,
    MessageState,
    NotAllowed,
    ReceivedMessage,
)

from .actions import bodies, create, fail, numbers, peek_one, send, states, take
from .conftest import Connect


class TestPeekLock:
    """A message handed over is locked for its receiver."""

    def test_nobody_else_gets_it(self, connect: Connect) -> None:
        one, other = connect(), connect()
        create(one)
        send(one, b"x")
        take(one)
        assert one.receiver("q").receive() == other.receiver("q").receive() == []

    def test_the_lock_runs_for_the_queues_duration(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, lock_duration=30)
        send(broker, b"x")
        until = datetime.fromtimestamp(clock.now() / 1e6 + 30, UTC)
        assert take(broker).locked_until == peek_one(broker).locked_until == until

    def test_every_hand_over_has_a_token_of_its_own(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x", b"y")
        receiver = broker.receiver("q")
        first = receiver.receive(2)
        receiver.release(first)
        again = receiver.receive(2)
        assert len({message.lock_token for message in first + again}) == 4

    def test_a_killed_consumers_message_waits_for_its_lock(
        self, connect: Connect, clock: ManualClock
    ) -> None:
        first = connect()
        create(first, lock_duration=30)
        send(first, b"x")
        take(first)
        first.close()
        second = connect()
        assert second.receiver("q").receive() == []
        clock.advance(30)
        message = take(second)
        assert (message.attempt, message.delivery_count) == (2, 1)


class TestOrder:
    """By sequence number among what is receivable."""

    def test_first_in_first_out(self, broker: Broker) -> None:
        create(broker)
        send(broker, *[b"%d" % n for n in range(5)])
        receiver = broker.receiver("q")
        assert bodies(receiver.receive(2) + receiver.receive(2) + receiver.receive(2)) == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"4",
        ]

    def test_a_retried_message_keeps_its_place(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"0", b"1", b"2", b"3")
        receiver = broker.receiver("q")
        zero, one = receiver.receive(2)
        receiver.abandon(one)
        receiver.abandon(zero)
        assert bodies(receiver.receive(4)) == [b"0", b"1", b"2", b"3"]

    def test_what_became_receivable_again_comes_before_what_is_new(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"0", b"1", b"2")
        receiver = broker.receiver("q")
        held = receiver.receive(2)
        receiver.release(held[1])
        assert bodies(receiver.receive(2)) == [b"1", b"2"]
        receiver.release(held[0])
        assert bodies(receiver.receive(2)) == [b"0"]

    def test_no_more_than_asked_for(self, broker: Broker) -> None:
        create(broker)
        send(broker, *[b"x"] * 5)
        receiver = broker.receiver("q")
        assert [len(receiver.receive(n)) for n in (1, 3, 3, 1)] == [1, 3, 1, 0]


class TestReceiveAndDelete:
    """Gone when handed over."""

    def test_gone(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x", b"y")
        with broker.receiver("q", mode="receive_and_delete") as receiver:
            assert bodies(receiver.receive(5)) == [b"x", b"y"]
        assert broker.peek("q") == []

    def test_nothing_to_settle(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        receiver = broker.receiver("q", mode="receive_and_delete")
        (message,) = receiver.receive()
        assert (message.lock_token, message.locked_until) == (None, None)
        for settle in (receiver.complete, receiver.abandon, receiver.defer, receiver.release):
            with pytest.raises(NotAllowed, match="received and deleted"):
                settle(message)
        with pytest.raises(NotAllowed):
            receiver.renew_lock(message)

    def test_deferred_messages_need_a_lock(self, broker: Broker) -> None:
        create(broker)
        with pytest.raises(NotAllowed, match="peek_lock"):
            broker.receiver("q", mode="receive_and_delete").receive_deferred(1)


class TestDeferred:
    """Set aside until received by sequence number."""

    @pytest.fixture
    def deferred(self, broker: Broker) -> list[int]:
        create(broker)
        send(broker, b"0", b"1", b"2")
        receiver = broker.receiver("q")
        messages = receiver.receive(2)
        receiver.defer(messages)
        return numbers(messages)

    def test_not_receivable_otherwise(self, broker: Broker, deferred: list[int]) -> None:
        assert bodies(broker.receiver("q").receive(5)) == [b"2"]
        assert states(broker)[0] == (b"0", MessageState.DEFERRED)

    def test_by_number(self, broker: Broker, deferred: list[int]) -> None:
        receiver = broker.receiver("q")
        found = receiver.receive_deferred(reversed(deferred))
        assert sorted(bodies(found)) == [b"0", b"1"]
        receiver.complete(found)
        assert bodies(broker.peek("q", 5)) == [b"2"]

    def test_one_number(self, broker: Broker, deferred: list[int]) -> None:
        assert bodies(broker.receiver("q").receive_deferred(deferred[1])) == [b"1"]

    def test_no_numbers(self, broker: Broker, deferred: list[int]) -> None:
        assert broker.receiver("q").receive_deferred([]) == []

    def test_all_or_none(self, broker: Broker, deferred: list[int]) -> None:
        receiver = broker.receiver("q")
        with pytest.raises(MessageNotFound, match="no deferred message 3, 99 in 'q'; nothing was locked"):
            receiver.receive_deferred([*deferred, 3, 99])
        assert len(receiver.receive_deferred(deferred)) == 2

    def test_a_locked_one_is_not_there(self, broker: Broker, deferred: list[int]) -> None:
        receiver = broker.receiver("q")
        receiver.receive_deferred(deferred)
        with pytest.raises(MessageNotFound):
            receiver.receive_deferred(deferred[0])

    @pytest.mark.parametrize("verb", ["abandon", "defer", "release"])
    def test_it_stays_deferred(self, broker: Broker, deferred: list[int], verb: str) -> None:
        receiver = broker.receiver("q")
        getattr(receiver, verb)(receiver.receive_deferred(deferred[0]))
        assert states(broker)[0] == (b"0", MessageState.DEFERRED)

    def test_it_stays_deferred_when_its_lock_runs_out(
        self, broker: Broker, deferred: list[int], clock: ManualClock
    ) -> None:
        broker.receiver("q").receive_deferred(deferred[0])
        clock.advance(61)
        assert len(broker.receiver("q").receive_deferred(deferred[0])) == 1

    def test_in_a_dead_letter_subqueue(self, broker: Broker) -> None:
        create(broker)
        number = send(broker, b"x")
        main, dead = broker.receiver("q"), broker.receiver("q;poison")
        main.dead_letter(main.receive())
        dead.defer(dead.receive())
        assert dead.receive() == []
        dead.complete(dead.receive_deferred(number))
        assert broker.queue("q").counts.total == 0


class TestPeek:
    """Looking at messages as they stand."""

    def test_every_state_in_order(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        send(broker, *[b"%d" % n for n in range(4)])
        broker.sender("q").schedule(Message(b"4"), datetime.fromtimestamp(clock.now() / 1e6 + 9, UTC))
        receiver = broker.receiver("q")
        first, second, _third = receiver.receive(3)
        receiver.defer(first)
        receiver.abandon(second, delay=5)
        assert states(broker) == [
            (b"0", MessageState.DEFERRED),
            (b"1", MessageState.DELAYED),
            (b"2", MessageState.LOCKED),
            (b"3", MessageState.ACTIVE),
            (b"4", MessageState.SCHEDULED),
        ]

    def test_from_a_number_on(self, broker: Broker) -> None:
        create(broker)
        send(broker, *[b"%d" % n for n in range(1, 8)])
        assert bodies(broker.peek("q", 2, 3)) == [b"3", b"4"]
        assert bodies(broker.peek("q", 9, 7)) == [b"7"]
        assert broker.peek("q", 9, 8) == broker.peek("q", 9, 1 << 61) == []

    def test_it_charges_nothing(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        for _ in range(20):
            peek_one(broker)
        message = take(broker)
        assert (message.attempt, message.delivery_count) == (1, 0)

    def test_the_retry_subqueue_shows_what_waits_for_its_retry(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x", b"y")
        fail(broker, delay=5)
        assert bodies(broker.peek("q;retry", 5)) == bodies(broker.peek("q", 5, subqueue="retry")) == [b"x"]

    def test_the_retry_subqueue_is_not_received_from(self, broker: Broker) -> None:
        create(broker)
        with pytest.raises(NotAllowed, match="can be peeked at but not received from"):
            broker.receiver("q;retry").receive()


class TestWaiting:
    """Long polling."""

    def test_nothing_came(self, broker: Broker) -> None:
        create(broker)
        start = time.monotonic()
        assert broker.receiver("q").receive(max_wait=0.02) == []
        assert time.monotonic() - start >= 0.02

    @staticmethod
    def _waiting(broker: Broker, path: str = "q") -> tuple[threading.Thread, list[ReceivedMessage]]:
        found: list[ReceivedMessage] = []
        receiver = broker.receiver(path)
        thread = threading.Thread(target=lambda: found.extend(receiver.receive(5, 30)), daemon=True)
        thread.start()
        end = time.monotonic() + 120
        while not broker._store.notifier.waiting:
            assert time.monotonic() < end
            time.sleep(0.001)
        return thread, found

    def test_a_send_wakes(self, broker: Broker) -> None:
        create(broker)
        thread, found = self._waiting(broker)
        send(broker, b"x")
        thread.join(120)
        assert bodies(found) == [b"x"]

    def test_a_send_of_another_broker_wakes(self, connect: Connect) -> None:
        one, other = connect(), connect()
        create(one)
        thread, found = self._waiting(one)
        send(other, b"x")
        thread.join(120)
        assert bodies(found) == [b"x"]

    def test_an_abandoned_message_wakes(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        receiver = broker.receiver("q")
        held = receiver.receive()
        thread, found = self._waiting(broker)
        receiver.abandon(held)
        thread.join(120)
        assert bodies(found) == [b"x"]

    def test_a_dead_letter_wakes_who_reads_dead_letters(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        receiver = broker.receiver("q")
        held = receiver.receive()
        thread, found = self._waiting(broker, "q;poison")
        receiver.dead_letter(held)
        thread.join(120)
        assert bodies(found) == [b"x"]

    def test_closing_the_broker_ends_the_wait(self, broker: Broker) -> None:
        create(broker)
        errors: list[Exception] = []

        def wait() -> None:
            try:
                broker.receiver("q").receive(max_wait=None)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        while not broker._store.notifier.waiting:
            time.sleep(0.001)
        broker.close()
        thread.join(120)
        assert [type(error) for error in errors] == [BrokerClosed]


def test_many_messages_are_handed_out_once_each(broker: Broker) -> None:
    create(broker, max_message_size=1024)
    with broker.sender("q") as sender:
        sender.send([Message(b"x") for _ in range(1100)])
    receiver = broker.receiver("q")
    found = [n for _ in range(12) for n in numbers(receiver.receive(100))]
    assert found == list(range(1, 1101))
