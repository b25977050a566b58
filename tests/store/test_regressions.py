"""Faults that were found once, mostly by the model, and must not come back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import lazaretto
from lazaretto import ManualClock, Message, PoisonPolicy, QueueOptions
from lazaretto.broker.broker import Broker
from lazaretto.broker.settling import NEXT_SESSION
from lazaretto.errors import MessageNotFound, PoisonMessageError, TransactionError
from lazaretto.model.entities import QueueStatus
from lazaretto.model.policy import Disposition

START = 1_700_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    with lazaretto.connect(tmp_path / "store.db", clock=clock) as broker:
        yield broker


def _send(broker: Broker, path: str, *bodies: bytes, **fields: str | None) -> list[int]:
    return broker.sender(path).send([Message(body, **fields) for body in bodies])  # type: ignore[arg-type]


def test_a_store_copied_into_one_file_gets_its_log_back(tmp_path: Path) -> None:
    with lazaretto.connect(tmp_path / "store.db") as broker:
        broker.create_queue("q")
        _send(broker, "q", b"one")
    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        connection.execute("VACUUM INTO ?", [str(copy)])

    with lazaretto.connect(copy) as broker:
        assert broker.facts()["journal_mode"] == "wal"
        assert [m.body for m in broker.peek("q")] == [b"one"]


class TestAutomaticDetection:
    """What counts as a rolled-back receive, and what ends the row of them."""

    @pytest.fixture(autouse=True)
    def queue(self, broker: Broker) -> None:
        policy = PoisonPolicy(receive_retry_count=100, disable_after_rollbacks=2)
        broker.create_queue("q", QueueOptions(lock_duration=10, policy=policy))
        broker.create_queue("s", QueueOptions(lock_duration=10, policy=policy, requires_session=True))

    def test_a_lock_that_runs_out_in_the_dead_letter_subqueue_does_not_count(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        _send(broker, "q", b"one")
        receiver = broker.receiver("q")
        receiver.dead_letter(receiver.receive())
        dead = broker.receiver("q;poison")
        for _ in range(3):
            assert len(dead.receive()) == 1
            clock.advance(11)
        assert len(dead.receive()) == 1
        assert broker.queue("q").status is QueueStatus.ACTIVE

    def test_a_session_lock_that_runs_out_on_a_message_counts(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        _send(broker, "s", b"one", session_id="a")
        for _ in range(2):
            assert len(broker.receiver("s", session="a").receive()) == 1
            clock.advance(11)
            broker.receiver("q").receive()
        assert broker.queue("s").status is QueueStatus.DISABLED

    def test_receive_and_delete_is_a_commit(self, broker: Broker) -> None:
        _send(broker, "q", b"one", b"two")
        receiver = broker.receiver("q")
        receiver.abandon(receiver.receive())
        assert len(broker.receiver("q", mode="receive_and_delete").receive()) == 1
        receiver.abandon(receiver.receive())
        assert broker.queue("q").status is QueueStatus.ACTIVE

    def test_resuming_the_dead_letter_subqueue_leaves_the_row_as_it_is(self, broker: Broker) -> None:
        fault = PoisonPolicy(receive_retry_count=0, on_poison=Disposition.FAULT, on_invalid=Disposition.FAULT)
        broker.update_queue("q", dead_letter_policy=fault)
        _send(broker, "q", b"one", b"two")
        receiver, dead = broker.receiver("q"), broker.receiver("q;poison")
        receiver.dead_letter(receiver.receive())
        dead.abandon(dead.receive())
        receiver.abandon(receiver.receive())
        broker.resume_queue("q;poison", "drop")
        receiver.abandon(receiver.receive())
        assert broker.queue("q").status is QueueStatus.DISABLED


class TestHalted:
    """A queue that is halted gives nothing out, in no way, and keeps why it was halted."""

    @pytest.fixture(autouse=True)
    def queue(self, broker: Broker) -> None:
        policy = PoisonPolicy(on_poison=Disposition.FAULT, on_invalid=Disposition.FAULT)
        broker.create_queue("q", QueueOptions(policy=policy))

    def test_deferred_messages_are_not_given_out(self, broker: Broker) -> None:
        _send(broker, "q", b"one", b"two")
        receiver = broker.receiver("q")
        (deferred,) = receiver.receive()
        receiver.defer(deferred)
        receiver.invalid(receiver.receive())
        with pytest.raises(PoisonMessageError):
            receiver.receive_deferred(deferred.sequence_number)
        assert broker.queue("q").counts.deferred == 1

    def test_the_verdict_keeps_the_culprits_reason(self, broker: Broker) -> None:
        (number,) = _send(broker, "q", b"one")
        receiver = broker.receiver("q")
        receiver.invalid(receiver.receive())
        broker.resume_queue("q", "move")
        assert broker.dead_letter("q", number).reason == "InvalidMessage"


def test_any_receiver_renews_a_lock_for_the_messages_own_queue(broker: Broker, clock: ManualClock) -> None:
    broker.create_queue("short", QueueOptions(lock_duration=10, policy=PoisonPolicy.service_bus(1)))
    broker.create_queue("long", QueueOptions(lock_duration=100))
    _send(broker, "short", b"one")
    (message,) = broker.receiver("short").receive()
    other = broker.receiver("long")
    until = other.renew_lock(message)
    assert until.timestamp() == START + 10
    other.abandon(message)
    assert broker.queue("short").counts.dead_letter == 1


def test_purge_sets_aside_a_number_given_twice_once(broker: Broker) -> None:
    broker.create_queue("q")
    (number,) = _send(broker, "q", b"one")
    receiver = broker.receiver("q")
    receiver.dead_letter(receiver.receive())
    assert broker.purge("q", [number, number]) == [number]
    assert len(broker.events(kind="purged")) == 1


def test_a_rejected_message_brings_the_history_of_all_its_generations(broker: Broker) -> None:
    broker.create_queue(
        "q", QueueOptions(policy=PoisonPolicy(receive_retry_count=0, on_poison=Disposition.REJECT))
    )
    (number,) = _send(broker, "q", b"one")
    receiver = broker.receiver("q")
    receiver.dead_letter(receiver.receive(), error="ValueError: first")
    broker.resubmit("q", number)
    receiver.abandon(receiver.receive(), error="KeyError: second")

    (returned,) = broker.peek("$system/deadletter")
    attempts = broker.attempts("$system/deadletter", returned.sequence_number)
    assert [a.error_type for a in attempts] == ["ValueError", "KeyError"]


def test_a_lowered_limit_is_applied_to_a_sessions_messages_one_after_the_other(broker: Broker) -> None:
    policy = PoisonPolicy(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=10)
    broker.create_queue("s", QueueOptions(requires_session=True, policy=policy))
    first, second = _send(broker, "s", b"one", b"two", session_id="a")
    receiver = broker.receiver("s", session="a")
    receiver.abandon(receiver.receive(2))
    broker.update_queue(
        "s", policy=PoisonPolicy(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=10)
    )

    # The first waits for its second cycle and holds back the other, which is not due to be judged.
    assert receiver.receive(2) == []
    assert [m.sequence_number for m in broker.peek("s;retry", 10)] == [first]
    assert second in [m.sequence_number for m in broker.peek("s", 10) if m.cycle == 0]


class TestSavepoints:
    """Rolling back to a savepoint undoes what came after it, later savepoints too."""

    @pytest.mark.parametrize("sql", [False, True])
    def test_a_savepoint_that_was_undone_cannot_be_returned_to(self, broker: Broker, sql: bool) -> None:
        broker.create_queue("q")
        (number,) = _send(broker, "q", b"one")
        (message,) = broker.receiver("q").receive()
        with broker.transaction() as tx:
            first = tx.savepoint()
            if sql:
                tx.execute("SELECT 1")
            tx.complete(message)
            second = tx.savepoint()
            first.rollback()
            with pytest.raises(TransactionError, match="rollback to an earlier one"):
                second.rollback()
        assert [m.sequence_number for m in broker.peek("q")] == [number]

    def test_a_message_received_again_after_it_is_given_back(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        broker.create_queue("q", QueueOptions(lock_duration=10))
        (number,) = _send(broker, "q", b"one")
        with broker.transaction() as tx:
            assert len(tx.receive("q")) == 1
            point = tx.savepoint()
            clock.advance(11)
            assert len(tx.receive("q")) == 1
            point.rollback()
        assert broker.queue("q").counts.active == 1
        assert broker.peek("q")[0].sequence_number == number


def test_the_next_session_is_found_when_its_delay_is_over(broker: Broker, clock: ManualClock) -> None:
    broker.create_queue("s", QueueOptions(requires_session=True))
    _send(broker, "s", b"one", session_id="a")
    with broker.receiver("s", session="a") as receiver:
        receiver.abandon(receiver.receive(), delay=5)
    clock.advance(6)
    assert len(broker.receiver("s", session=NEXT_SESSION).receive()) == 1


def test_a_message_that_outlived_itself_under_a_lock_expires_when_the_lock_is_lost(
    broker: Broker, clock: ManualClock
) -> None:
    broker.create_queue("q", QueueOptions(lock_duration=10, dead_letter_on_expiration=True))
    broker.create_queue("other")
    broker.sender("q").send(Message(b"one", time_to_live=5))
    assert len(broker.receiver("q").receive()) == 1
    clock.advance(11)
    broker.receiver("other").receive()
    assert [letter.reason for letter in broker.dead_letters("q")] == ["TTLExpiredException"]


def test_a_message_that_is_gone_has_no_history(broker: Broker) -> None:
    broker.create_queue("q")
    (number,) = _send(broker, "q", b"one")
    receiver = broker.receiver("q")
    receiver.abandon(receiver.receive())
    receiver.complete(receiver.receive())
    with pytest.raises(MessageNotFound):
        broker.attempts("q", number)
