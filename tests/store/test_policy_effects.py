"""What the poison policy does to messages and queues."""

from __future__ import annotations

from typing import Any

import pytest

from lazaretto import (
    Backoff,
    Broker,
    Disposition,
    Growth,
    InvalidMessage,
    InvalidOption,
    LazarettoError,
    ManualClock,
    Message,
    MessageState,
    PoisonMessageError,
    PoisonPolicy,
    QueueDisabled,
    QueueStatus,
)

from .actions import bodies, create, fail, kinds, numbers, peek_one, send, set_aside, states, take
from .conftest import Connect

SYSTEM = "$system/deadletter"
MOVE, FAULT, DROP, REJECT = Disposition.MOVE, Disposition.FAULT, Disposition.DROP, Disposition.REJECT


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

    def test_the_consumers_own_delay_goes_before_the_policys(self, broker: Broker, clock: ManualClock) -> None:
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


class TestFault:
    """The message stays; the queue stops being receivable, durably; sending goes on."""

    @pytest.fixture
    def culprit(self, broker: Broker) -> int:
        """The number of the message that halted `q`; another waits behind it."""
        create(broker, receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=0, on_poison=FAULT)
        numbers = send(broker, b"bad", b"good")
        for _ in range(4):
            fail(broker, error="KeyError: x")
        return numbers[0]

    def test_receivers_are_told_everything(self, broker: Broker, culprit: int) -> None:
        with pytest.raises(PoisonMessageError) as raised:
            broker.receiver("q").receive()
        error = raised.value
        assert (error.entity, error.sequence_number, error.delivery_count) == ("q", culprit, 4)
        assert (error.cycle, error.reason) == (1, "MaxDeliveryCountExceeded")

    def test_no_way_of_receiving_is_open(self, broker: Broker, culprit: int) -> None:
        for call in (
            lambda: broker.receiver("q", mode="receive_and_delete").receive(),
            lambda: broker.transaction().receive("q"),
            lambda: broker.consume("q", print, stop_when_idle=True),
            lambda: broker.receiver("q").receive(max_wait=5),
        ):
            with pytest.raises(PoisonMessageError):
                call()

    def test_the_description_names_the_culprit(self, broker: Broker, clock: ManualClock, culprit: int) -> None:
        found = broker.queue("q")
        assert found.status is QueueStatus.HALTED
        assert found.halted_by is not None
        assert (found.halted_by.sequence_number, found.halted_by.reason) == (culprit, "MaxDeliveryCountExceeded")
        assert found.halted_by.time.timestamp() == clock.now() / 1e6
        assert found.counts.active == 2

    def test_sending_and_peeking_go_on(self, broker: Broker, culprit: int) -> None:
        send(broker, b"more")
        assert bodies(broker.peek("q", 5)) == [b"bad", b"good", b"more"]

    def test_it_survives_a_restart(self, broker: Broker, connect: Connect, culprit: int) -> None:
        broker.close()
        with pytest.raises(PoisonMessageError):
            connect().receiver("q").receive()

    def test_another_broker_halts_too(self, broker: Broker, connect: Connect, culprit: int) -> None:
        with pytest.raises(PoisonMessageError):
            connect().receiver("q").receive()

    def test_it_is_told_once(self, broker: Broker, culprit: int) -> None:
        (event,) = broker.events(kind="queue_halted")
        assert (event.sequence_number, event.detail["delivery_count"], event.detail["cycle"]) == (culprit, 4, 1)

    def test_messages_held_meanwhile_can_be_settled(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, on_poison=FAULT)
        send(broker, b"bad", b"good")
        receiver = broker.receiver("q")
        bad, good = receiver.receive(2)
        receiver.abandon(bad)
        receiver.complete(good)
        assert bodies(broker.peek("q", 5)) == [b"bad"]

    def test_the_first_culprit_stays(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, on_poison=FAULT)
        first, second = send(broker, b"x", b"y")
        receiver = broker.receiver("q")
        held = receiver.receive(2)
        receiver.abandon(held[1])
        receiver.abandon(held[0])
        halted_by = broker.queue("q").halted_by
        assert halted_by is not None
        assert halted_by.sequence_number == second != first


class TestResume:
    """A halted queue goes on after a verdict on the culprit."""

    @pytest.fixture(autouse=True)
    def halted(self, broker: Broker) -> None:
        create(broker, receive_retry_count=1, on_poison=FAULT)
        send(broker, b"bad", b"good")
        for _ in range(2):
            fail(broker, error="KeyError: x")

    def test_it_demands_a_verdict(self, broker: Broker) -> None:
        with pytest.raises(InvalidOption, match="expected a verdict on the message that halted 'q': retry, move"):
            broker.resume_queue("q")
        with pytest.raises(InvalidOption, match=r"unknown verdict 'retyr'; did you mean 'retry'\?"):
            broker.resume_queue("q", "retyr")
        assert broker.queue("q").status is QueueStatus.HALTED

    def test_retry_starts_its_attempts_again(self, broker: Broker) -> None:
        assert broker.resume_queue("q", "retry").status is QueueStatus.ACTIVE
        assert fail(broker) == fail(broker) == 1
        found = broker.queue("q")
        assert found.status is QueueStatus.HALTED
        assert found.halted_by is not None
        assert found.halted_by.delivery_count == 4

    def test_retry_and_cured(self, broker: Broker) -> None:
        broker.resume_queue("q", "retry")
        receiver = broker.receiver("q")
        receiver.complete(receiver.receive(5))
        assert broker.queue("q").counts.total == 0

    def test_move(self, broker: Broker) -> None:
        found = broker.resume_queue("q", "move")
        assert (found.counts.dead_letter, found.halted_by) == (1, None)
        letter = broker.dead_letter("q", 1)
        assert (letter.reason, letter.error_type) == ("MaxDeliveryCountExceeded", "KeyError")
        assert take(broker).body == b"good"

    def test_drop(self, broker: Broker) -> None:
        found = broker.resume_queue("q", "drop")
        assert (found.counts.total, found.dropped) == (1, 1)
        assert take(broker).body == b"good"

    def test_reject(self, broker: Broker) -> None:
        broker.resume_queue("q", "reject")
        assert peek_one(broker, SYSTEM).body == b"bad"
        assert take(broker).body == b"good"

    def test_told_and_audited(self, broker: Broker) -> None:
        broker.resume_queue("q", "drop", actor="ann")
        (event,) = broker.events(kind="queue_resumed")
        assert (event.sequence_number, event.detail) == (1, {"verdict": "drop"})
        (entry,) = broker.audit()
        assert (entry.actor, entry.action, entry.queue) == ("ann", "resume", "q")
        assert entry.detail == {"verdict": "drop", "sequence_number": 1}

    def test_twice(self, broker: Broker) -> None:
        broker.resume_queue("q", "drop")
        with pytest.raises(LazarettoError, match="neither halted nor disabled"):
            broker.resume_queue("q", "drop")

    def test_a_culprit_that_is_gone(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, "r", receive_retry_count=0, on_poison=FAULT)
        send(broker, b"x", path="r", time_to_live=10)
        fail(broker, "r")
        clock.advance(20)
        assert broker.receiver("$system/deadletter").receive() == []
        assert broker.queue("r").counts.total == 0
        assert broker.resume_queue("r", "move").status is QueueStatus.ACTIVE

    def test_receivers_that_wait_are_woken(self, broker: Broker) -> None:
        broker.resume_queue("q", "move")
        assert bodies(broker.receiver("q").receive(max_wait=30)) == [b"good"]


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

    def test_past_its_time_to_live_it_goes_to_the_senders_queue(self, broker: Broker, clock: ManualClock) -> None:
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


class TestReject:
    """Back to the sender's dead-letter queue, with a negative acknowledgement."""

    @pytest.fixture(autouse=True)
    def queue(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, on_poison=REJECT)

    def test_to_the_systems_queue(self, broker: Broker, clock: ManualClock) -> None:
        number = send(broker, b"x", subject="s", properties={"a": 1})
        clock.advance(5)
        fail(broker, error="KeyError: x")
        message = take(broker, SYSTEM)
        assert (message.body, message.subject, message.properties) == (b"x", "s", {"a": 1})
        assert message.enqueued_sequence_number == number
        assert message.delivery_count == 0
        assert message.enqueued_time.timestamp() == clock.now() / 1e6
        assert broker.queue("q").counts.total == 0

    def test_the_negative_acknowledgement(self, broker: Broker) -> None:
        number = send(broker, b"x")
        fail(broker)
        word = peek_one(broker, SYSTEM).negative_acknowledgement
        assert word is not None
        assert (word.kind, word.status, word.code) == ("rejected", "not_delivered", 0xC004)
        assert (word.queue, word.sequence_number) == ("q", number)
        assert word.text == "MaxDeliveryCountExceeded: Message could not be consumed after 1 delivery attempts."

    def test_the_history_goes_along(self, broker: Broker) -> None:
        send(broker, b"x")
        fail(broker, error="KeyError: x")
        (attempt,) = broker.attempts(SYSTEM, peek_one(broker, SYSTEM).sequence_number)
        assert (attempt.error_type, attempt.error_message) == ("KeyError", "x")

    def test_a_large_body_goes_along(self, broker: Broker) -> None:
        send(broker, b"x" * 50_000)
        fail(broker)
        assert take(broker, SYSTEM).body == b"x" * 50_000

    def test_to_the_queue_the_sender_named(self, broker: Broker) -> None:
        create(broker, "Mine")
        send(broker, b"x", dead_letter_queue="mine")
        fail(broker)
        assert take(broker, "mine").negative_acknowledgement is not None
        assert broker.peek(SYSTEM) == []

    def test_a_sender_that_has_none_moved_not_lost(self, broker: Broker) -> None:
        number = send(broker, b"x", dead_letter_queue=None)
        fail(broker)
        assert broker.dead_letter("q", number).reason == "Rejected"
        assert peek_one(broker, "q;poison").body == b"x"

    def test_a_named_queue_that_was_deleted(self, broker: Broker) -> None:
        create(broker, "mine")
        send(broker, b"x", dead_letter_queue="mine")
        broker.delete_queue("mine")
        fail(broker)
        assert peek_one(broker, SYSTEM).body == b"x"

    def test_a_named_queue_that_is_the_queue_itself(self, broker: Broker) -> None:
        number = send(broker, b"x", dead_letter_queue="q")
        fail(broker)
        assert broker.dead_letter("q", number).reason == "Rejected"

    def test_a_named_queue_that_does_not_exist_is_an_error_at_send(self, broker: Broker) -> None:
        with pytest.raises(LazarettoError, match="no queue exists at 'nowhere', which the message names"):
            send(broker, b"x", dead_letter_queue="nowhere")

    def test_rejected_again_it_goes_to_the_system(self, broker: Broker) -> None:
        create(broker, "mine", receive_retry_count=0, on_poison=REJECT)
        send(broker, b"x", dead_letter_queue="mine")
        fail(broker)
        fail(broker, "mine")
        word = peek_one(broker, SYSTEM).negative_acknowledgement
        assert word is not None
        assert word.queue == "mine"

    def test_rejected_by_the_system_it_stays_there(self, broker: Broker) -> None:
        broker.update_queue(SYSTEM, policy=PoisonPolicy(receive_retry_count=0, on_poison=REJECT))
        send(broker, b"x")
        fail(broker)
        fail(broker, SYSTEM)
        assert peek_one(broker, f"{SYSTEM};poison").body == b"x"

    def test_a_senders_queue_with_sessions(self, broker: Broker) -> None:
        create(broker, "mine", requires_session=True)
        send(broker, b"x", dead_letter_queue="mine", session_id="a")
        number = send(broker, b"y", dead_letter_queue="mine")
        fail(broker)
        fail(broker)
        assert bodies(broker.receiver("mine", session="a").receive(5)) == [b"x"]
        (letter,) = broker.dead_letters("mine")
        assert (letter.reason, letter.sequence_number) == ("Session ID is null.", number)

    def test_headers_that_grow_past_the_quota(self, broker: Broker) -> None:
        """The acknowledgement adds to the headers; a message that has no room for it is set aside."""
        filler = {"a": "x" * 32_000, "b": "x" * 32_000, "c": "x" * 1_380}
        send(broker, b"x", properties=filler)
        fail(broker, error="KeyError: x")
        (letter,) = broker.dead_letters(SYSTEM)
        assert letter.reason == "HeaderSizeExceeded"
        assert letter.description == "The size quota for this stream has been exceeded."
        message = take(broker, f"{SYSTEM};poison")
        assert (message.body, message.properties) == (b"x", filler)
        assert broker.queue("q").counts.total == 0

    def test_told(self, broker: Broker) -> None:
        number = send(broker, b"x")
        fail(broker)
        (event,) = broker.events(kind="rejected")
        assert (event.queue, event.sequence_number) == ("q", number)
        assert event.detail == {"reason": "MaxDeliveryCountExceeded", "to": SYSTEM}


class TestAutomaticDetection:
    """Five rolled-back receives in a row switch the queue off both ways."""

    @pytest.fixture(autouse=True)
    def queue(self, broker: Broker) -> None:
        create(broker, receive_retry_count=99, disable_after_rollbacks=5)
        send(broker, *[b"%d" % n for n in range(3)])

    @staticmethod
    def _roll_back(broker: Broker) -> None:
        with pytest.raises(ZeroDivisionError), broker.transaction() as tx:
            assert tx.receive("q")
            raise ZeroDivisionError

    def test_by_transactions(self, broker: Broker) -> None:
        for _ in range(4):
            self._roll_back(broker)
        assert broker.queue("q").status is QueueStatus.ACTIVE
        self._roll_back(broker)
        assert broker.queue("q").status is QueueStatus.DISABLED

    def test_by_abandoning(self, broker: Broker) -> None:
        for _ in range(5):
            fail(broker)
        assert broker.queue("q").status is QueueStatus.DISABLED

    def test_by_locks_that_run_out(self, broker: Broker, clock: ManualClock) -> None:
        for _ in range(5):
            take(broker)
            clock.advance(61)
        with pytest.raises(QueueDisabled):
            take(broker)

    def test_off_is_off_both_ways(self, broker: Broker) -> None:
        for _ in range(5):
            self._roll_back(broker)
        for call in (lambda: take(broker), lambda: send(broker, b"x"), lambda: broker.transaction().receive("q")):
            with pytest.raises(QueueDisabled, match="queue 'q' was switched off by consecutive rollbacks"):
                call()
        assert len(broker.peek("q", 5)) == 3

    def test_an_event_says_so_once(self, broker: Broker) -> None:
        for _ in range(5):
            self._roll_back(broker)
        (event,) = broker.events(kind="queue_disabled")
        assert (event.queue, event.detail) == ("q", {"rollbacks": 5})

    def test_a_commit_between_starts_the_count_again(self, broker: Broker) -> None:
        for _ in range(4):
            self._roll_back(broker)
        with broker.transaction() as tx:
            tx.receive("q")
        for _ in range(4):
            self._roll_back(broker)
        assert broker.queue("q").status is QueueStatus.ACTIVE

    def test_completing_outside_a_transaction_does_too(self, broker: Broker) -> None:
        for _ in range(4):
            fail(broker)
        receiver = broker.receiver("q")
        receiver.complete(receiver.receive())
        fail(broker)
        assert broker.queue("q").status is QueueStatus.ACTIVE

    def test_rolling_back_to_a_savepoint_does_not_count(self, broker: Broker) -> None:
        for _ in range(10):
            with broker.transaction() as tx:
                point = tx.savepoint()
                tx.receive("q")
                point.rollback()
        assert broker.queue("q").status is QueueStatus.ACTIVE

    def test_rolling_back_a_batch_is_one_receive(self, broker: Broker) -> None:
        for _ in range(4):
            with broker.transaction() as tx:
                assert len(tx.receive("q", 3)) == 3
                tx.rollback()
        assert broker.queue("q").status is QueueStatus.ACTIVE

    def test_a_transaction_that_received_nothing_does_not_count(self, broker: Broker) -> None:
        for _ in range(10):
            with broker.transaction() as tx:
                tx.send("q", Message(b"x"))
                tx.rollback()
        assert broker.queue("q").status is QueueStatus.ACTIVE

    def test_it_survives_a_restart(self, broker: Broker, connect: Connect) -> None:
        for _ in range(4):
            self._roll_back(broker)
        broker.close()
        again = connect()
        self._roll_back(again)
        assert again.queue("q").status is QueueStatus.DISABLED

    def test_resumed_it_needs_no_verdict_and_five_more(self, broker: Broker) -> None:
        for _ in range(5):
            self._roll_back(broker)
        assert broker.resume_queue("q").status is QueueStatus.ACTIVE
        for _ in range(4):
            self._roll_back(broker)
        assert broker.queue("q").status is QueueStatus.ACTIVE

    def test_no_message_is_set_aside(self, broker: Broker) -> None:
        for _ in range(5):
            self._roll_back(broker)
        assert broker.queue("q").counts.active == 3
        assert broker.peek("q")[0].delivery_count == 5

    def test_off_by_default(self, broker: Broker) -> None:
        create(broker, "other", receive_retry_count=99)
        send(broker, b"x", path="other")
        for _ in range(20):
            fail(broker, "other")
        assert broker.queue("other").status is QueueStatus.ACTIVE


class TestPoisonQueue:
    """Reading a dead-letter subqueue with a policy of its own."""

    @staticmethod
    def _create(broker: Broker, **policy: Any) -> None:
        given = {"on_poison": DROP, "on_invalid": DROP, **policy}
        create(broker, dead_letter_policy=PoisonPolicy(**given))
        set_aside(broker, b"x", b"y", reason="Because")

    def test_without_one_nothing_counts(self, broker: Broker) -> None:
        create(broker)
        set_aside(broker, b"x")
        for _ in range(30):
            fail(broker, "q;poison", error="KeyError: x")
        assert peek_one(broker, "q;poison").delivery_count == 0

    def test_retries_apply_and_cycles_do_not(self, broker: Broker) -> None:
        self._create(broker, receive_retry_count=2, max_retry_cycles=5)
        for _ in range(3):
            assert fail(broker, "q;poison") == 1
        assert bodies(broker.peek("q;poison", 5)) == [b"y"]

    def test_move_is_refused_when_configured(self, broker: Broker) -> None:
        with pytest.raises(InvalidOption, match="a dead letter cannot be moved to a further dead-letter subqueue"):
            self._create(broker, on_poison=MOVE)

    def test_drop(self, broker: Broker) -> None:
        self._create(broker, receive_retry_count=0)
        number = fail(broker, "q;poison")
        assert broker.dead_letter("q", number).resolution == "dropped"
        assert broker.queue("q").dropped == 1

    def test_reject(self, broker: Broker) -> None:
        self._create(broker, receive_retry_count=0, on_poison=REJECT)
        number = fail(broker, "q;poison")
        assert peek_one(broker, SYSTEM).body == b"x"
        assert broker.dead_letter("q", number).resolution == "rejected"

    def test_reject_where_the_sender_has_none_is_not_lost(self, broker: Broker) -> None:
        policy = PoisonPolicy(receive_retry_count=0, on_poison=REJECT, on_invalid=DROP)
        create(broker, dead_letter_policy=policy)
        send(broker, b"x", dead_letter_queue=None)
        receiver = broker.receiver("q")
        receiver.dead_letter(receiver.receive())
        fail(broker, "q;poison")
        assert peek_one(broker, SYSTEM).body == b"x"

    def test_invalid(self, broker: Broker) -> None:
        self._create(broker, receive_retry_count=9)
        dead = broker.receiver("q;poison")
        dead.invalid(dead.receive())
        assert bodies(broker.peek("q;poison", 5)) == [b"y"]

    def test_fault_halts_the_subqueue_alone(self, broker: Broker) -> None:
        self._create(broker, receive_retry_count=0, on_poison=FAULT)
        number = fail(broker, "q;poison")
        with pytest.raises(PoisonMessageError) as raised:
            broker.receiver("q;poison").receive()
        assert (raised.value.entity, raised.value.sequence_number) == ("q/$deadletterqueue", number)
        found = broker.queue("q")
        assert (found.status, found.halted_by) == (QueueStatus.ACTIVE, None)
        assert found.dead_letter_halted_by is not None
        send(broker, b"z")
        assert take(broker).body == b"z"

    @pytest.mark.parametrize(("verdict", "left"), [("retry", 2), ("drop", 1), ("reject", 1)])
    def test_resumed_with_a_verdict(self, broker: Broker, verdict: str, left: int) -> None:
        self._create(broker, receive_retry_count=0, on_poison=FAULT)
        fail(broker, "q;poison")
        found = broker.resume_queue("q;poison", verdict)
        assert (found.dead_letter_halted_by, found.counts.dead_letter) == (None, left)
        assert len(broker.receiver("q;poison").receive(5)) == left

    def test_not_with_move(self, broker: Broker) -> None:
        self._create(broker, receive_retry_count=0, on_poison=FAULT)
        fail(broker, "q;poison")
        with pytest.raises(InvalidOption, match="retry, drop or reject"):
            broker.resume_queue("q;poison", "move")
        assert broker.queue("q").dead_letter_halted_by is not None


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


def test_an_invalid_message_in_the_loop_halts_it_when_the_policy_says_fault(broker: Broker) -> None:
    create(broker, on_invalid=FAULT)
    send(broker, b"x", b"y")

    def handle(message: Any) -> None:
        raise InvalidMessage("no")

    with pytest.raises(PoisonMessageError, match="InvalidMessage"):
        broker.consume("q", handle, batch_size=1, stop_when_idle=True)
