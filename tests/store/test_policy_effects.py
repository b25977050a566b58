"""What the poison policy does to messages: cycles, dispositions, lowered limits."""

from __future__ import annotations

from typing import Any

import pytest

from lazaretto import (
    Backoff,
    Broker,
    Disposition,
    Growth,
    InvalidMessage,
    ManualClock,
    MessageNotFound,
    MessageState,
    PoisonMessageError,
    PoisonPolicy,
    QueueStatus,
)

from .actions import Die, bodies, create, fail, kinds, numbers, peek_one, send, states, take
from .conftest import Connect

SYSTEM = "$system/deadletter"
FAULT, DROP = Disposition.FAULT, Disposition.DROP


def _attempts_until_gone(broker: Broker, clock: ManualClock, delay: float) -> int:
    """Fail the only message until it is gone from the queue; return how often it was handed out."""
    receiver, attempts = broker.receiver("q"), 0
    while True:
        messages = receiver.receive()
        if messages:
            attempts += 1
            receiver.abandon(messages, error="ValueError: no")
        elif broker.queue("q").counts.delayed:
            clock.advance(delay)
        else:
            return attempts


class TestCycles:
    """Immediate retries, then retry cycles after a delay in `;retry`."""

    @pytest.mark.parametrize(("retries", "cycles"), [(0, 0), (0, 1), (2, 0), (2, 1), (5, 2), (1, 3)])
    def test_total_attempts(self, broker: Broker, clock: ManualClock, retries: int, cycles: int) -> None:
        create(broker, receive_retry_count=retries, max_retry_cycles=cycles, retry_cycle_delay=60)
        number = send(broker, b"x")
        total = (retries + 1) * (cycles + 1)
        assert _attempts_until_gone(broker, clock, 60) == total
        letter = broker.dead_letter("q", number)
        assert letter.description == f"Message could not be consumed after {total} delivery attempts."
        assert letter.counters.failures == letter.counters.delivery_count == len(letter.attempts) == total

    def test_moves_are_counted_as_msmq_does(self, broker: Broker, clock: ManualClock) -> None:
        """Two for each cycle, to `;retry` and back, and one to `;poison`."""
        create(broker, receive_retry_count=1, max_retry_cycles=2, retry_cycle_delay=60)
        number = send(broker, b"x")
        _attempts_until_gone(broker, clock, 60)
        assert broker.dead_letter("q", number).counters.moves == 2 * 2 + 1

    def test_moves_are_counted_without_a_delay_too(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=0)
        number = send(broker, b"x")
        assert _attempts_until_gone(broker, clock, 0) == 2
        assert broker.dead_letter("q", number).counters.moves == 3

    def test_between_cycles_it_waits_in_retry(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=60)
        send(broker, b"x")
        fail(broker)
        assert states(broker, "q;retry") == [(b"x", MessageState.DELAYED)]
        assert peek_one(broker).cycle == 1
        clock.advance(59.9)
        assert broker.receiver("q").receive() == []
        clock.advance(0.1)
        assert take(broker).cycle == 1
        assert broker.peek("q;retry") == []

    def test_others_pass_it_and_it_keeps_its_place(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=60)
        send(broker, b"0", b"1", b"2")
        fail(broker)
        assert bodies(broker.receiver("q").receive()) == [b"1"]
        clock.advance(60)
        assert bodies(broker.receiver("q").receive(5)) == [b"0", b"2"]

    def test_growing_delays(self, broker: Broker, clock: ManualClock) -> None:
        backoff = Backoff(initial=10, growth=Growth.LINEAR)
        create(broker, receive_retry_count=0, max_retry_cycles=3, retry_cycle_delay=backoff)
        send(broker, b"x")
        for delay in (10, 20, 30):
            fail(broker)
            clock.advance(delay - 0.1)
            assert broker.receiver("q").receive() == []
            clock.advance(0.1)
        fail(broker)
        assert broker.queue("q").counts.dead_letter == 1

    def test_the_consumers_own_delay_goes_before_the_policys(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        create(broker, receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=60)
        send(broker, b"x")
        fail(broker, delay=5)
        clock.advance(5)
        assert take(broker).cycle == 1

    def test_counts_survive_a_restart(self, connect: Connect) -> None:
        for attempt in range(5):
            broker = connect()
            if attempt == 0:
                create(broker, receive_retry_count=4)
                send(broker, b"x")
            fail(broker)
            broker.close()
        assert connect().queue("q").counts.dead_letter == 1

    def test_receivers_share_one_count(self, connect: Connect) -> None:
        one, other = connect(), connect()
        create(one, receive_retry_count=3)
        send(one, b"x")
        for broker in (one, other, other, one):
            fail(broker)
        assert other.queue("q").counts.dead_letter == 1


class TestMove:
    """To the dead-letter subqueue, with reason, description, last error and history."""

    def test_moved(self, broker: Broker) -> None:
        create(broker, receive_retry_count=1)
        number = send(broker, b"x")
        fail(broker, error="KeyError: first")
        fail(broker, error="ValueError: second")
        message = take(broker, "q;poison")
        assert message.sequence_number == number
        assert message.dead_letter_reason == "MaxDeliveryCountExceeded"
        letter = broker.dead_letter("q", number)
        assert (letter.error_type, letter.error_message) == ("ValueError", "second")
        assert [a.error_type for a in letter.attempts] == ["KeyError", "ValueError"]
        (event,) = broker.events(kind="dead_lettered")
        assert (event.queue, event.sequence_number) == ("q", number)
        assert event.detail == {"reason": "MaxDeliveryCountExceeded", "error_type": "ValueError"}

    def test_the_rest_goes_on(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0)
        send(broker, b"0", b"1")
        fail(broker)
        assert take(broker).body == b"1"


class TestInvalid:
    """A message that can never succeed: no retries, `on_invalid` at once."""

    def test_no_retries(self, broker: Broker) -> None:
        create(broker, receive_retry_count=9, max_retry_cycles=9)
        number = send(broker, b"x")
        receiver = broker.receiver("q")
        receiver.invalid(receiver.receive(), error="JSONDecodeError: char 0")
        letter = broker.dead_letter("q", number)
        assert (letter.reason, letter.error_type) == ("InvalidMessage", "JSONDecodeError")
        assert [a.outcome.value for a in letter.attempts] == ["invalid"]

    @pytest.mark.parametrize("on_invalid", ["fault", "drop", "reject"])
    def test_its_own_disposition(self, broker: Broker, on_invalid: str) -> None:
        create(broker, on_poison="move", on_invalid=on_invalid)
        send(broker, b"x")
        receiver = broker.receiver("q")
        receiver.invalid(receiver.receive())
        found = broker.queue("q")
        assert found.counts.dead_letter == 0
        assert found.dropped == (on_invalid == "drop")
        assert (found.status is QueueStatus.HALTED) is (on_invalid == "fault")
        assert len(broker.peek(SYSTEM)) == (on_invalid == "reject")


class TestDrop:
    """Deleted, counted, an event written."""

    def test_dropped(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, on_poison=DROP)
        number = send(broker, b"x" * 3000)
        fail(broker, error="KeyError: x")
        found = broker.queue("q")
        assert (found.counts.total, found.dropped) == (0, 1)
        (event,) = broker.events(kind="dropped")
        assert (event.sequence_number, event.detail) == (
            number, {"reason": "MaxDeliveryCountExceeded", "error_type": "KeyError"},
        )  # fmt: skip
        assert broker.peek(SYSTEM) == []

    def test_past_its_time_to_live_it_goes_to_the_senders_queue(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        create(broker, receive_retry_count=0, on_poison=DROP)
        send(broker, b"x", time_to_live=10)
        receiver = broker.receiver("q")
        held = receiver.receive()
        clock.advance(20)
        receiver.abandon(held)
        returned = peek_one(broker, SYSTEM)
        assert returned.negative_acknowledgement is not None
        assert returned.negative_acknowledgement.text.startswith("TTLExpiredException")
        assert broker.queue("q").dropped == 1

    def test_unless_the_sender_has_none(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, receive_retry_count=0, on_poison=DROP)
        send(broker, b"x", time_to_live=10, dead_letter_queue=None)
        receiver = broker.receiver("q")
        held = receiver.receive()
        clock.advance(20)
        receiver.abandon(held)
        assert broker.peek(SYSTEM) == broker.peek("q") == []


class TestLoweredLimits:
    """The verdict is checked again at hand-over, so that a lowered limit takes effect."""

    def test_moved_instead_of_handed_out(self, broker: Broker) -> None:
        create(broker, receive_retry_count=9)
        send(broker, b"x", b"y")
        for _ in range(3):
            fail(broker, error="KeyError: x")
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=2))
        assert bodies(broker.receiver("q").receive(5)) == [b"y"]
        assert [(d.reason, d.error_type) for d in broker.dead_letters("q")] == [
            ("MaxDeliveryCountExceeded", "KeyError")
        ]

    def test_one_that_still_has_attempts_is_handed_out(self, broker: Broker) -> None:
        create(broker, receive_retry_count=9)
        send(broker, b"x")
        fail(broker)
        fail(broker)
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=2))
        assert fail(broker) == 1
        assert broker.queue("q").counts.dead_letter == 1

    def test_to_a_further_cycle_if_there_are_any(self, broker: Broker) -> None:
        create(broker, receive_retry_count=9)
        send(broker, b"x")
        fail(broker)
        broker.update_queue(
            "q", policy=PoisonPolicy(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=60)
        )
        assert broker.receiver("q").receive() == []
        assert bodies(broker.peek("q;retry")) == [b"x"]

    def test_halting(self, broker: Broker) -> None:
        create(broker, receive_retry_count=9)
        send(broker, b"x", b"y")
        fail(broker)
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=0, on_poison=FAULT))
        with pytest.raises(PoisonMessageError):
            broker.receiver("q").receive()
        assert broker.queue("q").status is QueueStatus.HALTED
        assert kinds(broker.events())[-1] == "queue_halted"

    def test_many_at_once(self, broker: Broker) -> None:
        create(broker, receive_retry_count=9)
        sent = send(broker, *[b"x"] * 20)
        receiver = broker.receiver("q")
        receiver.abandon(receiver.receive(20))
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=0))
        assert receiver.receive(20) == []
        assert numbers(broker.dead_letters("q")) == sent

    def test_a_raised_limit_gives_more_attempts(self, broker: Broker) -> None:
        create(broker, receive_retry_count=1)
        send(broker, b"x")
        fail(broker)
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=2))
        fail(broker)
        assert broker.queue("q").counts.dead_letter == 0
        fail(broker)
        assert broker.queue("q").counts.dead_letter == 1

    @pytest.mark.parametrize("retries", [0, 2])
    def test_of_cycles_while_it_waits_for_one(self, broker: Broker, clock: ManualClock, retries: int) -> None:
        """The message that waits in `;retry` has begun a cycle that there is no longer."""
        create(broker, receive_retry_count=retries, max_retry_cycles=3, retry_cycle_delay=60)
        number = send(broker, b"x")
        for _ in range(retries + 1):
            fail(broker)
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=retries, max_retry_cycles=0))
        clock.advance(61)
        assert broker.receiver("q").receive() == []
        letter = broker.dead_letter("q", number)
        assert (letter.reason, letter.counters.failures) == ("MaxDeliveryCountExceeded", retries + 1)

    def test_of_cycles_within_one(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, receive_retry_count=1, max_retry_cycles=2, retry_cycle_delay=60)
        send(broker, b"x")
        fail(broker)
        fail(broker)
        clock.advance(61)
        message = take(broker)
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=1))
        broker.receiver("q").abandon(message)
        assert broker.queue("q").counts.dead_letter == 1

    def test_of_a_deferred_message(self, broker: Broker) -> None:
        create(broker, receive_retry_count=5)
        bad, good = send(broker, b"bad", b"good")
        receiver = broker.receiver("q")
        receiver.defer(receiver.receive(2))
        for _ in range(2):
            receiver.abandon(receiver.receive_deferred(bad))
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=1))
        with pytest.raises(MessageNotFound, match=f"no deferred message {bad} "):
            receiver.receive_deferred([bad, good])
        assert numbers(broker.dead_letters("q")) == [bad]
        assert numbers(receiver.receive_deferred(good)) == [good]

    def test_deferring_alone_uses_no_limit_up(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0)
        number = send(broker, b"x")
        receiver = broker.receiver("q")
        receiver.defer(receiver.receive())
        for _ in range(3):
            receiver.defer(receiver.receive_deferred(number))
        receiver.complete(receiver.receive_deferred(number))

    def test_halting_for_a_deferred_message(self, broker: Broker) -> None:
        create(broker, receive_retry_count=5, on_poison=FAULT)
        number = send(broker, b"x")
        receiver = broker.receiver("q")
        receiver.defer(receiver.receive())
        receiver.abandon(receiver.receive_deferred(number))
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=0, on_poison=FAULT))
        with pytest.raises(PoisonMessageError):
            receiver.receive_deferred(number)
        broker.resume_queue("q", "retry")
        assert numbers(receiver.receive_deferred(number)) == [number]

    def test_of_worker_deaths(self, broker: Broker) -> None:
        create(broker, receive_retry_count=9, max_worker_deaths=3)
        number = send(broker, b"x")
        for _ in range(2):
            assert broker.receiver("q").take(1, 0.0) is not None
            broker._store.run(Die())
        broker.update_queue("q", policy=PoisonPolicy(max_worker_deaths=2))
        assert broker.receiver("q").receive() == []
        assert broker.dead_letter("q", number).reason == "WorkerCrashed"


def test_an_invalid_message_in_the_loop_halts_it_when_the_policy_says_fault(broker: Broker) -> None:
    create(broker, on_invalid=FAULT)
    send(broker, b"x", b"y")

    def handle(message: Any) -> None:
        raise InvalidMessage("no")

    with pytest.raises(PoisonMessageError, match="InvalidMessage"):
        broker.consume("q", handle, batch_size=1, stop_when_idle=True)
