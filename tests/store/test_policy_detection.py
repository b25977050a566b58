"""Automatic detection, and the policy of a dead-letter subqueue."""

from __future__ import annotations

from typing import Any

import pytest

from lazaretto import (
    Broker,
    Disposition,
    InvalidOption,
    ManualClock,
    Message,
    PoisonMessageError,
    PoisonPolicy,
    QueueDisabled,
    QueueStatus,
)

from .actions import bodies, create, fail, peek_one, send, set_aside, take
from .conftest import Connect

SYSTEM = "$system/deadletter"
MOVE, FAULT, DROP, REJECT = Disposition.MOVE, Disposition.FAULT, Disposition.DROP, Disposition.REJECT


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
        for call in (
            lambda: take(broker),
            lambda: send(broker, b"x"),
            lambda: broker.transaction().receive("q"),
        ):
            with pytest.raises(QueueDisabled, match=r"queue 'q' cannot be .*: it is disabled"):
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
        with pytest.raises(
            InvalidOption, match="a dead letter cannot be moved to a further dead-letter subqueue"
        ):
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
