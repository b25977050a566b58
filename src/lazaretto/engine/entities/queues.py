"""Operations on queues themselves: create, change, delete, describe, resume."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lazaretto.engine.entities.existing import already, require_same
from lazaretto.engine.entities.missing import no_entity
from lazaretto.engine.four_eyes import count_letters
from lazaretto.engine.log import audit, note, note_all
from lazaretto.engine.outcome.dispositions import culprit_decoder
from lazaretto.engine.queue_admission import admission_of
from lazaretto.engine.routing.forwards import check_destinations, start_forwarding, touch
from lazaretto.errors import (
    EntityExists,
    InvalidOption,
    InvalidPath,
    NotAllowed,
)
from lazaretto.model.checks import refuse_unknown
from lazaretto.model.clock import to_datetime
from lazaretto.model.descriptions import Culprit, MessageCounts, QueueDescription
from lazaretto.model.entities import (
    FIXED_OPTIONS,
    SYSTEM_DEAD_LETTER_QUEUE,
    EntityKind,
    EntityPath,
    QueueOptions,
    Subqueue,
    names_subscription,
    refuse_for_subscription,
)
from lazaretto.model.entity_changes import merged
from lazaretto.model.keys import lower_bound
from lazaretto.store.records.messages import (
    DEFERRED,
    DELAYED,
    FRESH,
    LOCKED,
    READY,
    SCHEDULED,
    SUSPECT,
    QueueRecord,
    Standing,
)
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: Number of queues that are described at once.
_PAGE = 1000


def require_queue(tx: Transaction, path: EntityPath) -> QueueRecord:
    """Return the queue at a path. Raises EntityNotFound, with the path most like it."""
    record = tx.queues.by_path(path.key)
    if record is None:
        raise no_entity(tx, f"no queue exists at {path.queue!r}", path.queue)
    return record


def refuse_topic(queue: QueueRecord, instead: str) -> None:
    """Raise NotAllowed for a topic; `instead`: what to do."""
    if queue.kind is EntityKind.TOPIC:
        raise NotAllowed(f"{queue.path!r} is a topic: {instead}")


def shown_culprit(halted_by: str | None) -> Culprit | None:
    """Return the message that halted a queue, as users see it."""
    if halted_by is None:
        return None
    c = culprit_decoder.decode(halted_by)
    return Culprit(c.sequence_number, c.delivery_count, c.cycle, c.reason, to_datetime(c.time), c.error)


def describe(tx: Transaction, queue: QueueRecord) -> QueueDescription:
    """Return a queue with its exact counts."""
    return describe_all(tx, [queue])[0]


def describe_all(tx: Transaction, queues: Sequence[QueueRecord]) -> list[QueueDescription]:
    """Return queues with their exact counts."""
    return [_described(queue, standing) for queue, standing in standings(tx, queues)]


def standings(tx: Transaction, queues: Sequence[QueueRecord]) -> Iterator[tuple[QueueRecord, Standing]]:
    """Yield queues with their states, reading a page at a time."""
    for start in range(0, len(queues), _PAGE):
        page = queues[start : start + _PAGE]
        found = tx.queues.standings([queue.queue_id for queue in page])
        yield from ((queue, found.get(queue.queue_id, Standing())) for queue in page)


def _described(queue: QueueRecord, standing: Standing) -> QueueDescription:
    return QueueDescription(
        path=queue.path,
        options=queue.options,
        status=queue.status,
        halted_by=shown_culprit(queue.halted_by),
        dead_letter_halted_by=shown_culprit(queue.dead_letter_halted_by),
        counts=MessageCounts(
            active=standing.number(FRESH, READY),
            locked=standing.number(LOCKED),
            deferred=standing.number(DEFERRED),
            scheduled=standing.number(SCHEDULED),
            delayed=standing.number(DELAYED),
            suspect=standing.number(SUSPECT),
            dead_letter=standing.dead_letter,
            transfer_dead_letter=standing.transfer_dead_letter,
        ),
        expired=standing.expired,
        dropped=standing.dropped,
        held_sessions=standing.held_sessions,
        size=None if queue.options.max_size is None else standing.size,
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
        if tx.queues.by_path(SYSTEM_DEAD_LETTER_QUEUE) is None:
            tx.queues.insert(SYSTEM_DEAD_LETTER_QUEUE, QueueOptions())


@dataclasses.dataclass(slots=True)
class CreateQueues(Operation[list[QueueDescription]]):
    """Create queues with the same options: all of them, or none.

    `exist_ok`: those that exist with these options are returned as they are.
    """

    paths: Sequence[EntityPath]
    options: QueueOptions
    exist_ok: bool = False
    #: The paths of those that did not exist.
    made: list[str] = dataclasses.field(default_factory=list, init=False)

    def run(self, tx: Transaction) -> list[QueueDescription]:
        seen: set[str] = set()
        for path in self.paths:
            _refuse_subqueue(path, "created")
            if names_subscription(path):
                raise InvalidPath(f"{path.queue!r} is the path of a subscription: use create_subscription")
            if path.key in seen:
                raise EntityExists(f"{path.queue!r} appears more than once in the paths")
            seen.add(path.key)
        exist = {path.key: self._existing(tx, path) for path in self.paths} if self.exist_ok else {}
        paths = [path for path in self.paths if exist.get(path.key) is None]
        records = tx.queues.insert_many([path.queue for path in paths], self.options) if paths else []
        self.made = [record.path for record in records]
        for path in paths:
            taken = None if path.queue in self.made else tx.queues.by_path(path.key)
            if taken is not None:
                raise already(f"a {taken.kind.value} already exists at {path.queue!r}")
            check_destinations(tx, path, self.options)
        for record in records:
            touch(tx, record)
        if records:
            note_all(tx, "queue_created", [(record, None, {}) for record in records])
        if not self.exist_ok:
            return [_described(record, Standing()) for record in records]
        created = {record.path.lower(): record for record in records}
        found = [exist.get(path.key) or created[path.key] for path in self.paths]
        return describe_all(tx, found)

    def _existing(self, tx: Transaction, path: EntityPath) -> QueueRecord | None:
        record = tx.queues.by_path(path.key)
        if record is not None:
            require_same(f"queue {path.queue!r}", record, EntityKind.QUEUE, self.options)
        return record


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
    """Change some of an entity's options; return the changed entity. Raises InvalidOption."""
    names = [field.name for field in dataclasses.fields(QueueOptions)]
    refuse_unknown(changes, names, f"{record.kind.value} {record.path!r}")
    options = dataclasses.replace(record.options, **merged(changes, record.options))
    for name in FIXED_OPTIONS:
        if getattr(options, name) != getattr(record.options, name):
            raise InvalidOption(
                f"{name} is fixed when a {record.kind.value} is created and cannot be changed"
            )
    _check_growth(tx, record, options)
    changed = [name for name in names if getattr(options, name) != getattr(record.options, name)]
    if record.kind is EntityKind.SUBSCRIPTION:
        refuse_for_subscription(options)
    check_destinations(tx, EntityPath(record.path), options)
    if changed:
        before = {name: getattr(record.options, name) for name in changed}
        idle_before = record.options.longest_idle
        record = tx.queues.save(dataclasses.replace(record, options=options))
        if options.kept_samples == 0:
            tx.samples.remove_all(record.queue_id)
        if "max_size" in changed:
            tx.queues.count_size(record.queue_id)
        if options.longest_idle != idle_before:
            tx.queues.set_idle_at(record.queue_id, None)
            touch(tx, record)
        start_forwarding(tx, record)
        note(tx, "queue_updated", record, changed=changed)
        kind = record.kind.value
        audit(tx, actor, "update", record.path, changed=changed, before=before, kind=kind)
        tx.wake(lower_bound(record.queue_id))
    return record


def _check_growth(tx: Transaction, record: QueueRecord, options: QueueOptions) -> None:
    """Refuse another number of partitions, except more while the entity is empty."""
    before, now = record.options.partitions, options.partitions
    if now == before:
        return
    kind = f"{record.kind.value} {record.path!r}"
    if now < before:
        raise InvalidOption(f"the {kind} has {before} partitions: expected as many or more, got {now}")
    ((_, standing),) = standings(tx, [record])
    held = sum(standing.states.values()) + standing.dead_letter + standing.transfer_dead_letter
    purged = tx.queues.purged(record.queue_id)
    if held or purged:
        also = f" and {purged} purged dead letters, which can be restored" if purged else ""
        raise InvalidOption(
            f"the {kind} holds {held} messages, dead letters included{also}: partitions can be raised only "
            "while it is empty, because they would change the order within sessions and partition keys"
        )


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
        admission_of(record).check_deletion(tx, record)
        delete(tx, [record], self.actor)


def delete(tx: Transaction, records: Sequence[QueueRecord], actor: str) -> None:
    """Delete entities with all their messages. Raises SecondPersonNeeded if they hold too many letters."""
    count_letters(tx, actor, sum(letters_of(tx, record) for record in records), "delete with their queues")
    for record in records:
        note(tx, "queue_deleted", record)
        audit(tx, actor, "delete", record.path)
        tx.queues.delete(record)
        tx.wake(lower_bound(record.queue_id))


def letters_of(tx: Transaction, record: QueueRecord) -> int:
    """Return how many dead letters an entity has, those included that were purged and can be restored."""
    ((_, standing),) = standings(tx, [record])
    return standing.dead_letter + standing.transfer_dead_letter + tx.queues.purged(record.queue_id)
