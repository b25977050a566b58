"""Whether an entity accepts and delivers messages: enables, disables, halts and resumes it."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from lazaretto.engine.command import Command, Detail, OfPath
from lazaretto.engine.entities.queues import describe, refuse_topic, require_queue
from lazaretto.engine.four_eyes import count_letters
from lazaretto.engine.log import audit, note
from lazaretto.engine.outcome.dispositions import CulpritRecord, culprit_decoder, destination_of, dispose
from lazaretto.engine.queue_admission import admission_of
from lazaretto.engine.routing.forwards import start_forwarding
from lazaretto.errors import (
    EntityError,
    InvalidOption,
    NotAllowed,
    PoisonMessageError,
    QueueDisabled,
)
from lazaretto.model.checks import member, suggestion, text
from lazaretto.model.descriptions import QueueDescription
from lazaretto.model.entities import (
    STATUSES,
    SYSTEM_DEAD_LETTER_QUEUE,
    EntityKind,
    EntityPath,
    QueueStatus,
    Subqueue,
)
from lazaretto.model.keys import lower_bound
from lazaretto.model.policy import DISPOSITIONS, RETRY
from lazaretto.store.records.messages import LOCKED, MessageRow, QueueRecord
from lazaretto.store.sql.transaction import Transaction

#: An operator's possible decisions on the message that halted a queue.
VERDICTS = (RETRY, "move", "drop", "reject")


def refuse_sending(queue: QueueRecord) -> None:
    """Raise QueueDisabled if nothing can be sent to an entity."""
    if not queue.status.takes:
        raise _off(queue, "sent to")


def _off(queue: QueueRecord, verb: str) -> QueueDisabled:
    return QueueDisabled(
        f"{queue.kind.value} {queue.path!r} cannot be {verb}: it is {queue.status.value}, "
        "by an operator or by consecutive rollbacks; resume it, or set its status to active"
    )


def refuse_receiving(queue: QueueRecord, subqueue: Subqueue, *, by_dialogs: bool = False) -> None:
    """Raise an error if receiving is not possible: disabled, forwarding, a topic, a service's queue."""
    refuse_topic(queue, "receive from one of its subscriptions")
    if subqueue is Subqueue.MAIN and not by_dialogs:
        admission_of(queue).check_access(queue)
    options = queue.options
    destination = {
        Subqueue.MAIN: options.forward_to,
        Subqueue.DEAD_LETTER: options.forward_dead_lettered_messages_to,
    }.get(subqueue)
    if destination is not None:
        raise NotAllowed(
            f"{str(EntityPath(queue.path, subqueue))!r} cannot be received from: "
            f"its messages are forwarded to {destination!r}; receive them there"
        )
    error = _off_error(queue, subqueue)
    if error is not None:
        raise error


def _off_error(queue: QueueRecord, subqueue: Subqueue) -> QueueDisabled | None:
    off = queue.status in (QueueStatus.DISABLED, QueueStatus.RECEIVE_DISABLED)
    return _off(queue, "received from") if off and subqueue is Subqueue.MAIN else None


def stop_error(queue: QueueRecord, subqueue: Subqueue) -> EntityError | None:
    """Return the error that receiving from a disabled or halted queue raises, else None."""
    return _off_error(queue, subqueue) or halt_error(queue, subqueue)


def halt_error(queue: QueueRecord, subqueue: Subqueue) -> PoisonMessageError | None:
    """Return the error that receiving from a halted queue raises, None if it is not halted."""
    halted_by = queue.halted_by if subqueue is Subqueue.MAIN else None
    if subqueue is Subqueue.DEAD_LETTER:
        halted_by = queue.dead_letter_halted_by
    if halted_by is None:
        return None
    culprit = culprit_decoder.decode(halted_by)
    return PoisonMessageError(
        str(EntityPath(queue.path, subqueue)),
        culprit.sequence_number,
        culprit.delivery_count,
        culprit.cycle,
        culprit.reason,
        culprit.error,
    )


class SetStatus(OfPath[QueueStatus], frozen=True, kw_only=True):
    """Enable or disable a queue, topic or subscription."""

    action = "status"
    touched = ("{path}", "status")
    status: str

    def run(self, tx: Transaction, actor: str) -> QueueStatus:
        path = EntityPath.parse(self.path)
        status: QueueStatus = member("status", self.status, STATUSES)
        record = require_queue(tx, path)
        _check_status(record, path, status)
        if status is QueueStatus.ACTIVE:
            tx.queues.set_rollbacks(record.queue_id, 0)
            if record.halted_by is not None:
                # It stays halted when it is enabled.
                status = QueueStatus.HALTED
        if status is not record.status:
            before = record.status.value
            record = tx.queues.save(dataclasses.replace(record, status=status))
            note(tx, "status_set", record, status=status.value)
            audit(tx, actor, self.action, record.path, status=status.value, before=before)
            start_forwarding(tx, record)
            tx.wake(lower_bound(record.queue_id))
        return record.status

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        before = detail.get("before")
        return cls(path=path, status=str(before)) if before in STATUSES else None


def _check_status(record: QueueRecord, path: EntityPath, status: QueueStatus) -> None:
    if path.subqueue is not Subqueue.MAIN or path.key == SYSTEM_DEAD_LETTER_QUEUE:
        raise NotAllowed(f"{str(path)!r} has no status of its own; set the status of its queue")
    topic, subscription = (record.kind is k for k in (EntityKind.TOPIC, EntityKind.SUBSCRIPTION))
    if (topic and status is QueueStatus.RECEIVE_DISABLED) or (
        subscription and status is QueueStatus.SEND_DISABLED
    ):
        what = "received from" if topic else "sent to"
        raise InvalidOption(f"a {record.kind.value} cannot be {what} directly: set active or disabled")


class ResumeQueue(OfPath[QueueDescription], frozen=True, kw_only=True):
    """Resume a halted or disabled queue.

    `verdict`: on the message that halted it: "retry" (with new attempts), "move", "drop" or "reject".
    """

    action = "resume"
    touched = SetStatus.touched
    verdict: str | None = None

    def run(self, tx: Transaction, actor: str) -> QueueDescription:
        path = EntityPath.parse(self.path)
        if self.verdict is not None:
            text("verdict", self.verdict, 64)
        record = require_queue(tx, path)
        dead = path.subqueue is Subqueue.DEAD_LETTER
        halted_by = record.dead_letter_halted_by if dead else record.halted_by
        disabled = record.status not in (QueueStatus.ACTIVE, QueueStatus.HALTED) and not dead
        if halted_by is None and not disabled:
            raise EntityError(f"{str(path)!r} is neither halted nor disabled; there is nothing to resume")
        if self.verdict is not None and self.verdict not in VERDICTS:
            raise InvalidOption(f"unknown verdict {self.verdict!r}{suggestion(self.verdict, VERDICTS)}")
        if dead:
            changes: dict[str, Any] = {"dead_letter_halted_by": None}
        else:
            changes = {"halted_by": None, "status": QueueStatus.ACTIVE}
        culprit = None
        if halted_by is not None:
            if self.verdict is None:
                raise InvalidOption(
                    f"expected a verdict on the message that halted {str(path)!r}: {', '.join(VERDICTS)}"
                )
            culprit = culprit_decoder.decode(halted_by)
        record = tx.queues.save(dataclasses.replace(record, **changes))
        if not dead:
            tx.queues.set_rollbacks(record.queue_id, 0)
        if culprit is not None:
            self._judge(tx, record, culprit, actor)
        number = culprit.sequence_number if culprit else None
        note(tx, "queue_resumed", record, number, verdict=self.verdict)
        audit(tx, actor, self.action, str(path), verdict=self.verdict, sequence_number=number)
        start_forwarding(tx, record)
        tx.wake(lower_bound(record.queue_id, path.subqueue))
        return describe(tx, tx.queues.by_id(record.queue_id) or record)

    def destination(self, tx: Transaction) -> str | None:
        path = EntityPath.parse(self.path)
        record = require_queue(tx, path)
        dead = path.subqueue is Subqueue.DEAD_LETTER
        halted_by = record.dead_letter_halted_by if dead else record.halted_by
        if halted_by is None or self.verdict is None:
            return None
        row = self._row(tx, record, culprit_decoder.decode(halted_by))
        return None if row is None else destination_of(tx, record, row, self.verdict)

    def _row(self, tx: Transaction, record: QueueRecord, culprit: CulpritRecord) -> MessageRow | None:
        subqueue = EntityPath.parse(self.path).subqueue
        return tx.row(lower_bound(record.queue_id, subqueue) + culprit.sequence_number)

    def _judge(self, tx: Transaction, record: QueueRecord, culprit: CulpritRecord, actor: str) -> None:
        dead = EntityPath.parse(self.path).subqueue is Subqueue.DEAD_LETTER
        if dead and self.verdict == "move":
            raise InvalidOption("a dead letter cannot be moved further: resume with retry, drop or reject")
        row = self._row(tx, record, culprit)
        # The culprit may be gone, because it expired.
        if row is None or row.state == LOCKED:
            return
        if self.verdict == RETRY:
            tx.save_row(msgspec.structs.replace(row, cycle_attempts=0, cycle=0))
        else:
            assert self.verdict is not None
            if dead:
                count_letters(tx, actor, 1, "delete")
            dispose(tx, record, row, DISPOSITIONS[self.verdict], culprit.reason)
