"""Time to live, locks that run out, clocks that jump."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import lazaretto
from lazaretto import NEXT_SESSION, Broker, ManualClock, Message, MessageState
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.model.clock import to_datetime

from .actions import bodies, create, fail, peek_one, send, set_aside, states, take
from .conftest import Connect


class TestTimeToLive:
    """An expired message is discarded and counted, or dead-lettered if the queue says so."""

    def test_discarded_and_counted(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        send(broker, b"x", time_to_live=10)
        send(broker, b"y")
        clock.advance(10)
        assert bodies(broker.receiver("q").receive(5)) == [b"y"]
        found = broker.queue("q")
        assert (found.expired, found.counts.dead_letter, found.counts.active) == (1, 0, 0)

    def test_dead_lettered(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, dead_letter_on_expiration=True)
        number = send(broker, b"x", time_to_live=timedelta(seconds=15))
        clock.advance(15)
        assert broker.receiver("q").receive() == []
        letter = broker.dead_letter("q", number)
        assert letter.reason == "TTLExpiredException"
        assert letter.description == "The message expired and was dead lettered."
        assert broker.queue("q").expired == 0

    def test_not_a_moment_early(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        send(broker, b"x", time_to_live=10)
        clock.advance(9.999999)
        assert take(broker).body == b"x"

    def test_nobody_need_receive(self, connect: Connect) -> None:
        """With a clock that ticks, the broker's own timer looks after it."""
        broker = connect(clock=lazaretto.SystemClock())
        create(broker, dead_letter_on_expiration=True)
        send(broker, b"x", time_to_live=0.02)
        assert [e.kind for e in broker.events(kind="dead_lettered", max_wait=120)] == ["dead_lettered"]

    def test_the_queue_sets_the_most(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, default_time_to_live=10)
        send(broker, b"x")
        send(broker, b"y", time_to_live=60)
        send(broker, b"z", time_to_live=5)
        lives = [m.expires_at - m.enqueued_time for m in broker.peek("q", 5) if m.expires_at]
        assert [life.total_seconds() for life in lives] == [10, 10, 5]
        assert broker.peek("q", 1, 2)[0].time_to_live == timedelta(seconds=60)
        clock.advance(10)
        assert broker.receiver("q").receive() == []
        assert broker.queue("q").expired == 3

    @pytest.mark.parametrize("life", [922_337_203_685, 253_402_300_800, timedelta.max])
    def test_one_that_ends_after_the_year_9999_means_never(self, broker: Broker, life: Any) -> None:
        create(broker)
        create(broker, "long", default_time_to_live=922_337_203_685)
        send(broker, b"x", time_to_live=life)
        send(broker, b"y", path="long")
        for path in ("q", "long"):
            assert peek_one(broker, path).expires_at is None
            assert take(broker, path).expires_at is None

    def test_times_beyond_what_a_datetime_tells_are_the_last_there_is(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=922_337_203_685)
        west = timezone(-timedelta(hours=12))
        send(broker, b"x", scheduled_enqueue_time=datetime.max.replace(tzinfo=west))
        assert peek_one(broker).scheduled_enqueue_time == datetime.max.replace(tzinfo=UTC)

    def test_it_does_not_run_out_under_a_lock(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        send(broker, b"x", time_to_live=10)
        receiver = broker.receiver("q")
        (message,) = receiver.receive()
        clock.advance(30)
        assert peek_one(broker).state is MessageState.LOCKED
        receiver.complete(message)
        assert broker.queue("q").expired == 0

    @pytest.mark.parametrize("verb", ["abandon", "release"])
    def test_given_back_too_late_it_expires_at_once(
        self, broker: Broker, clock: ManualClock, verb: str
    ) -> None:
        create(broker)
        send(broker, b"x", time_to_live=10)
        receiver = broker.receiver("q")
        held = receiver.receive()
        clock.advance(30)
        getattr(receiver, verb)(held)
        assert receiver.receive() == []
        assert broker.queue("q").expired == 1

    def test_it_runs_while_delayed(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        send(broker, b"x", time_to_live=10)
        fail(broker, delay=60)
        clock.advance(10)
        broker.receiver("q").receive()
        assert broker.queue("q").expired == 1

    def test_deferred_messages_do_not_expire(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        number = send(broker, b"x", time_to_live=10)
        receiver = broker.receiver("q")
        receiver.defer(receiver.receive())
        clock.advance(1000)
        assert receiver.receive() == []
        receiver.abandon(receiver.receive_deferred(number))
        clock.advance(1000)
        assert bodies(receiver.receive_deferred(number)) == [b"x"]

    def test_dead_letters_do_not_expire(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, default_time_to_live=10)
        set_aside(broker, b"x")
        clock.advance(10_000_000)
        dead = broker.receiver("q;poison")
        assert dead.receive()[0].expires_at is None
        clock.advance(10_000_000)
        assert bodies(dead.receive()) == [b"x"]


class TestLocks:
    """A lock that runs out is a failed attempt."""

    def test_receivable_again_in_its_place(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, lock_duration=30)
        send(broker, b"x", b"y")
        take(broker)
        clock.advance(30)
        assert bodies(broker.receiver("q").receive(2)) == [b"x", b"y"]

    def test_often_enough_it_is_poison(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, lock_duration=30, receive_retry_count=2)
        number = send(broker, b"x")
        for _ in range(3):
            take(broker)
            clock.advance(30)
        assert broker.receiver("q").receive() == []
        counters = broker.dead_letter("q", number).counters
        assert (counters.lock_expiries, counters.failures, counters.delivery_count) == (3, 0, 3)

    def test_the_timer_alone_gives_it_back(self, connect: Connect) -> None:
        broker = connect(clock=lazaretto.SystemClock())
        create(broker, lock_duration=1)
        send(broker, b"x")
        take(broker)
        assert bodies(broker.receiver("q").receive(max_wait=120)) == [b"x"]


class TestClockJumps:
    """Time comes from the store's clock, and clocks do jump."""

    def test_backwards_nothing_is_lost(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, lock_duration=30)
        send(broker, b"x", time_to_live=60)
        receiver = broker.receiver("q")
        (message,) = receiver.receive()
        clock.advance(-3600)
        receiver.abandon(message, delay=5)
        clock.advance(5)
        receiver.complete(receiver.receive())
        assert broker.queue("q").counts.total == broker.queue("q").expired == 0

    def test_forwards_by_years(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, lock_duration=30, receive_retry_count=5, max_retry_cycles=2)
        send(broker, b"x")
        take(broker)
        clock.advance(10 * 365 * 86_400)
        message = take(broker)
        assert (message.attempt, message.delivery_count) == (2, 1)


def test_many_timers_at_once(broker: Broker, clock: ManualClock) -> None:
    create(broker)
    send(broker, *[b"%d" % n for n in range(700)], time_to_live=10)
    send(broker, b"last")
    clock.advance(10)
    assert bodies(broker.receiver("q").receive(5)) == [b"last"]


def test_a_delay_outlasted_by_time_to_live_shows_as_delayed(broker: Broker) -> None:
    create(broker)
    send(broker, b"x", time_to_live=10)
    fail(broker, delay=60)
    assert states(broker) == [(b"x", MessageState.DELAYED)]


class TestMuchIsDue:
    """Whoever receives finds what is there once all that is due is done, however much it is."""

    EXPIRED = 600

    def _store(self, connect: Connect, clock: ManualClock, **options: Any) -> Broker:
        """Return a broker whose store was left alone while much came due, and one message last of all."""
        broker = connect()
        create(broker, **options)
        session = "a" if options.get("requires_session") else None
        broker.sender("q").send([Message(b"old", time_to_live=5, session_id=session)] * self.EXPIRED)
        broker.sender("q").schedule(
            Message(b"new", session_id=session), to_datetime(clock.now() + 10_000_000)
        )
        broker.close()
        clock.advance(11)
        return connect()

    def test_consume(self, connect: Connect, clock: ManualClock) -> None:
        broker = self._store(connect, clock)
        found: list[bytes] = []
        broker.consume("q", lambda message: found.append(message.body), stop_when_idle=True)
        assert found == [b"new"]
        assert broker.queue("q").expired == self.EXPIRED

    @pytest.mark.parametrize("mode", ["peek_lock", "receive_and_delete"])
    def test_receive(self, connect: Connect, clock: ManualClock, mode: Any) -> None:
        broker = self._store(connect, clock)
        assert bodies(broker.receiver("q", mode=mode).receive(5)) == [b"new"]

    def test_take(self, connect: Connect, clock: ManualClock) -> None:
        handover = self._store(connect, clock).receiver("q").take(5, 0.0)
        assert handover is not None
        assert bodies(handover.messages) == [b"new"]

    def test_the_next_session(self, connect: Connect, clock: ManualClock) -> None:
        broker = self._store(connect, clock, requires_session=True)
        with broker.receiver("q", session=NEXT_SESSION) as receiver:
            assert bodies(receiver.receive(5)) == [b"new"]

    def test_by_number(self, connect: Connect, clock: ManualClock) -> None:
        broker = self._store(connect, clock)
        (message,) = broker.receiver("q").receive_by_number(self.EXPIRED + 2)
        assert message.body == b"new"

    def test_a_claim(self, connect: Connect, clock: ManualClock) -> None:
        broker = self._store(connect, clock)
        consumer = ClaimConsumer(broker._store, "q", "c")
        consumer.attach()
        assert consumer.take(0) == 1


class TestAClockMovedByHand:
    """What is seen is what there is at its time, though nobody has received since."""

    def test_counts_and_peek(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=20)
        send(broker, b"retried")
        fail(broker)
        send(broker, b"old", time_to_live=10)
        broker.sender("q").schedule(Message(b"later"), to_datetime(clock.now() + 20_000_000))
        assert states(broker) == [
            (b"retried", MessageState.DELAYED),
            (b"old", MessageState.ACTIVE),
            (b"later", MessageState.SCHEDULED),
        ]
        clock.advance(20)
        assert states(broker) == [(b"retried", MessageState.ACTIVE), (b"later", MessageState.ACTIVE)]
        found = broker.queue("q")
        assert (found.counts.active, found.counts.total, found.expired) == (2, 2, 1)

    def test_dead_letters(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, dead_letter_on_expiration=True)
        number = send(broker, b"x", time_to_live=10)
        clock.advance(11)
        assert [letter.sequence_number for letter in broker.dead_letters("q")] == [number]

    def test_within_a_transaction_of_the_same_thread(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        send(broker, b"x", time_to_live=10)
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE mine (n INTEGER)")
            clock.advance(11)
            assert bodies(broker.peek("q")) == [b"x"]
        assert broker.peek("q") == []
