"""Operations on queues themselves: create, change, delete, describe, resume."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from lazaretto.clock import to_datetime
from lazaretto.engine.dispositions import CulpritRecord, dispose
from lazaretto.engine.log import audit, note
from lazaretto.entities import (
    FIXED_OPTIONS,
    SYSTEM_DEAD_LETTER_QUEUE,
    Culprit,
    EntityKind,
    EntityPath,
    MessageCounts,
    QueueDescription,
    QueueOptions,
    QueueStatus,
    Subqueue,
    names_subscription,
)
from lazaretto.errors import (
    EntityError,
    EntityExists,
    EntityNotFound,
    InvalidOption,
    InvalidPath,
    NotAllowed,
    PoisonMessageError,
    QueueDisabled,
)
from lazaretto.keys import first_key, last_key
from lazaretto.options import refuse_unknown, suggestion
from lazaretto.policy import DISPOSITIONS
from lazaretto.store.contract import Operation, Transaction
from lazaretto.store.records import DEFERRED, DELAYED, FRESH, LOCKED, READY, SCHEDULED, SUSPECT, QueueRecord

_culprit = msgspec.json.Decoder(CulpritRecord)

#: What an operator may decide on the message that halted a queue, besides the dispositions.
RETRY = "retry"
VERDICTS = (RETRY, "move", "drop", "reject")


def require_queue(tx: Transaction, path: EntityPath) -> QueueRecord:
    """Return the queue at a path. Raises EntityNotFound, with the path most like it."""
    record = tx.queue(path.key)
    if record is None:
        known = [q.path for q in tx.queues()]
        raise EntityNotFound(f"no queue exists at {path.queue!r}{suggestion(path.queue, known)}")
    return record


def refuse_topic(queue: QueueRecord, instead: str) -> None:
    """Raise NotAllowed if it is a topic; `instead`: what to do."""
    if queue.kind is EntityKind.TOPIC:
        raise NotAllowed(f"{queue.path!r} is a topic: {instead}")


def refuse_disabled(queue: QueueRecord) -> None:
    """Raise QueueDisabled if the queue is switched off."""
    if queue.status is QueueStatus.DISABLED:
        raise QueueDisabled(
            f"queue {queue.path!r} was switched off by consecutive rollbacks; resume it to go on"
        )


def stop_error(queue: QueueRecord, subqueue: Subqueue) -> EntityError | None:
    """Return the error that receiving raises from a queue that is switched off or halted, else None."""
    if subqueue is Subqueue.MAIN:
        try:
            refuse_disabled(queue)
        except QueueDisabled as error:
            return error
    return halt_error(queue, subqueue)


def halt_error(queue: QueueRecord, subqueue: Subqueue) -> PoisonMessageError | None:
    """Return the error that receiving from a halted queue raises, None if it is not halted."""
    halted_by = queue.halted_by if subqueue is Subqueue.MAIN else None
    if subqueue is Subqueue.DEAD_LETTER:
        halted_by = queue.dead_letter_halted_by
    if halted_by is None:
        return None
    culprit = _culprit.decode(halted_by)
    return PoisonMessageError(
        str(EntityPath(queue.path, subqueue)),
        culprit.sequence_number,
        culprit.delivery_count,
        culprit.cycle,
        culprit.reason,
    )


def _shown(halted_by: str | None) -> Culprit | None:
    if halted_by is None:
        return None
    c = _culprit.decode(halted_by)
    return Culprit(c.sequence_number, c.delivery_count, c.cycle, c.reason, to_datetime(c.time))


def describe(tx: Transaction, queue: QueueRecord) -> QueueDescription:
    """Return a queue with its exact counts."""
    queue_id = queue.queue_id
    main = tx.count_states(first_key(queue_id), last_key(queue_id))
    dead, transfer = (
        sum(tx.count_states(first_key(queue_id, part), last_key(queue_id, part)).values())
        for part in (Subqueue.DEAD_LETTER, Subqueue.TRANSFER_DEAD_LETTER)
    )
    expired, dropped = tx.discarded(queue_id)
    return QueueDescription(
        path=queue.path,
        options=queue.options,
        status=queue.status,
        halted_by=_shown(queue.halted_by),
        dead_letter_halted_by=_shown(queue.dead_letter_halted_by),
        counts=MessageCounts(
            active=main.get(FRESH, 0) + main.get(READY, 0),
            locked=main.get(LOCKED, 0),
            deferred=main.get(DEFERRED, 0),
            scheduled=main.get(SCHEDULED, 0),
            delayed=main.get(DELAYED, 0),
            suspect=main.get(SUSPECT, 0),
            dead_letter=dead,
            transfer_dead_letter=transfer,
        ),
        expired=expired,
        dropped=dropped,
        held_sessions=tx.count_held_sessions(first_key(queue_id), last_key(queue_id)),
        created=to_datetime(queue.created),
        updated=to_datetime(queue.updated),
    )


def _refuse_subqueue(path: EntityPath, verb: str) -> None:
    if path.subqueue is not Subqueue.MAIN:
        raise NotAllowed(f"a subqueue cannot be {verb}: {str(path)!r} belongs to {path.queue!r}")


def _refuse_system(path: EntityPath, verb: str) -> None:
    if path.key == SYSTEM_DEAD_LETTER_QUEUE:
        raise NotAllowed(f"{SYSTEM_DEAD_LETTER_QUEUE} belongs to the system and cannot be {verb}")


class OpenStore(Operation[None]):
    """Make sure the system's dead-letter queue exists."""

    def run(self, tx: Transaction) -> None:
        if tx.queue(SYSTEM_DEAD_LETTER_QUEUE) is None:
            tx.insert_queue(SYSTEM_DEAD_LETTER_QUEUE, QueueOptions())


@dataclasses.dataclass(slots=True)
class CreateQueue(Operation[QueueDescription]):
    """Create a queue."""

    path: EntityPath
    options: QueueOptions

    def run(self, tx: Transaction) -> QueueDescription:
        _refuse_subqueue(self.path, "created")
        if names_subscription(self.path):
            raise InvalidPath(f"{self.path.queue!r} is the path of a subscription: create_subscription")
        taken = tx.queue(self.path.key)
        if taken is not None:
            raise EntityExists(f"a {taken.kind.value} exists at {self.path.queue!r} already")
        record = tx.insert_queue(self.path.queue, self.options)
        note(tx, "queue_created", record)
        return describe(tx, record)


@dataclasses.dataclass(slots=True)
class UpdateQueue(Operation[QueueDescription]):
    """Change some of a queue's options."""

    path: EntityPath
    changes: Mapping[str, Any]
    actor: str

    def run(self, tx: Transaction) -> QueueDescription:
        _refuse_subqueue(self.path, "changed")
        record = require_queue(tx, self.path)
        refuse_topic(record, "update_topic")
        return describe(tx, change_options(tx, record, self.changes, self.actor))


def change_options(
    tx: Transaction, record: QueueRecord, changes: Mapping[str, Any], actor: str
) -> QueueRecord:
    """Change some of an entity's options; return it as it is then. Raises InvalidOption."""
    names = [field.name for field in dataclasses.fields(QueueOptions)]
    refuse_unknown(changes, names, f"{record.kind.value} {record.path!r}")
    options = dataclasses.replace(record.options, **changes)
    for name in FIXED_OPTIONS:
        if getattr(options, name) != getattr(record.options, name):
            raise InvalidOption(
                f"{name} is fixed when a {record.kind.value} is created and cannot be changed"
            )
    changed = [name for name in names if getattr(options, name) != getattr(record.options, name)]
    if changed:
        record = tx.save_queue(dataclasses.replace(record, options=options))
        note(tx, "queue_updated", record, changed=changed)
        audit(tx, actor, "update", record.path, changed=changed)
        tx.wake(first_key(record.queue_id))
    return record


@dataclasses.dataclass(slots=True)
class DeleteQueue(Operation[None]):
    """Delete a queue with all its messages."""

    path: EntityPath
    actor: str

    def run(self, tx: Transaction) -> None:
        _refuse_subqueue(self.path, "deleted")
        _refuse_system(self.path, "deleted")
        record = require_queue(tx, self.path)
        refuse_topic(record, "delete_topic")
        delete(tx, record, self.actor)


def delete(tx: Transaction, record: QueueRecord, actor: str) -> None:
    """Delete an entity with all its messages."""
    note(tx, "queue_deleted", record)
    audit(tx, actor, "delete", record.path)
    tx.delete_queue(record)
    tx.wake(first_key(record.queue_id))


@dataclasses.dataclass(slots=True)
class ResumeQueue(Operation[QueueDescription]):
    """Let a halted or disabled queue be used again; a halted one needs a verdict on the culprit."""

    path: EntityPath
    verdict: str | None
    actor: str

    def run(self, tx: Transaction) -> QueueDescription:
        record = require_queue(tx, self.path)
        dead = self.path.subqueue is Subqueue.DEAD_LETTER
        halted_by = record.dead_letter_halted_by if dead else record.halted_by
        disabled = record.status is QueueStatus.DISABLED and not dead
        if halted_by is None and not disabled:
            raise EntityError(
                f"{str(self.path)!r} is neither halted nor disabled; there is nothing to resume"
            )
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
                    f"expected a verdict on the message that halted {str(self.path)!r}: {', '.join(VERDICTS)}"
                )
            culprit = _culprit.decode(halted_by)
        record = tx.save_queue(dataclasses.replace(record, **changes))
        if not dead:
            tx.set_rollbacks(record.queue_id, 0)
        if culprit is not None:
            self._judge(tx, record, culprit)
        number = culprit.sequence_number if culprit else None
        note(tx, "queue_resumed", record, number, verdict=self.verdict)
        audit(tx, self.actor, "resume", str(self.path), verdict=self.verdict, sequence_number=number)
        tx.wake(first_key(record.queue_id, self.path.subqueue))
        return describe(tx, tx.queue_by_id(record.queue_id) or record)

    def _judge(self, tx: Transaction, record: QueueRecord, culprit: CulpritRecord) -> None:
        dead = self.path.subqueue is Subqueue.DEAD_LETTER
        if dead and self.verdict == "move":
            raise InvalidOption("a dead letter cannot be moved further: resume with retry, drop or reject")
        row = tx.row(first_key(record.queue_id, self.path.subqueue) + culprit.sequence_number)
        # The culprit may be gone: its time to live may have run out meanwhile.
        if row is None or row.state == LOCKED:
            return
        if self.verdict == RETRY:
            tx.save_row(msgspec.structs.replace(row, cycle_attempts=0, cycle=0))
        else:
            assert self.verdict is not None
            dispose(tx, record, row, DISPOSITIONS[self.verdict], culprit.reason)
