"""Operations on queues themselves: create, change, delete, make anew, describe, resume."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta

from lazaretto.engine.command import Administering, Command, Detail, Options, Touch
from lazaretto.engine.entities.existing import already, no_entity, require_same
from lazaretto.engine.four_eyes import count_letters
from lazaretto.engine.log import audit, audit_all, note, note_all
from lazaretto.engine.outcome.dispositions import culprit_decoder
from lazaretto.engine.queue_admission import admission_of
from lazaretto.engine.routing.forwards import check_destinations, start_forwarding, touch
from lazaretto.errors import (
    EntityExists,
    InvalidOption,
    InvalidPath,
    NotAllowed,
)
from lazaretto.model.checks import flag, refuse_unknown
from lazaretto.model.clock import to_datetime
from lazaretto.model.descriptions import Culprit, MessageCounts, QueueDescription
from lazaretto.model.entities import (
    FIXED_OPTIONS,
    FORWARDS,
    SYSTEM_DEAD_LETTER_QUEUE,
    EntityKind,
    EntityPath,
    QueueOptions,
    Subqueue,
    names_subscription,
    refuse_for_subscription,
)
from lazaretto.model.entity_changes import merged, parts_of
from lazaretto.model.grants import Permission
from lazaretto.model.keys import lower_bound
from lazaretto.model.records.plain import options_from
from lazaretto.store.records.access import SIGNING
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

T = TypeVar("T")

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
        by_queue = tx.queues.standings([queue.queue_id for queue in page])
        yield from ((queue, by_queue.get(queue.queue_id, Standing())) for queue in page)


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
        accessed=to_datetime(standing.accessed(queue.updated)),
    )


def _refuse_subqueue(path: EntityPath, verb: str) -> None:
    if path.subqueue is not Subqueue.MAIN:
        raise NotAllowed(f"a subqueue cannot be {verb}: {str(path)!r} belongs to {path.queue!r}")


class OpenStore(Operation[None]):
    """Make sure the system's dead-letter queue exists."""

    def run(self, tx: Transaction) -> None:
        if tx.queues.by_path(SYSTEM_DEAD_LETTER_QUEUE) is None:
            tx.queues.insert(SYSTEM_DEAD_LETTER_QUEUE, QueueOptions())


class OptionsChange(Administering[T], frozen=True, kw_only=True):
    """A change of options. Whoever makes an entity forward needs the right to send there."""

    def needs(self) -> list[tuple[Permission, str | None]]:
        values = getattr(self, "options", None) or getattr(self, "changes", None)
        destinations = (values.get(name) for name in FORWARDS) if isinstance(values, dict) else ()
        return [*super().needs(), *((Permission.SEND, to) for to in destinations if isinstance(to, str))]


class CreateQueue(OptionsChange[QueueDescription], frozen=True, kw_only=True):
    """Create a queue."""

    options_class: ClassVar[type[Any] | None] = QueueOptions
    action = "create"
    touched = ("{path}",)
    path: str
    options: Options = msgspec.field(default_factory=dict)
    exist_ok: bool = False

    def run(self, tx: Transaction, actor: str) -> QueueDescription:
        options = options_from(QueueOptions, self.options)
        return create_queues(tx, [EntityPath.parse(self.path)], options, actor, exist_ok=self.exist_ok)[0]


class CreateQueues(OptionsChange[list[QueueDescription]], frozen=True, kw_only=True):
    """Create up to 1,000 queues with the same options: all of them, or none."""

    action = "create"
    paths: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1000)]
    options: Options = msgspec.field(default_factory=dict)
    exist_ok: bool = False

    def run(self, tx: Transaction, actor: str) -> list[QueueDescription]:
        paths = [EntityPath.parse(path) for path in self.paths]
        options = options_from(QueueOptions, self.options)
        return create_queues(tx, paths, options, actor, exist_ok=self.exist_ok)

    def needs(self) -> list[tuple[Permission, str | None]]:
        _, *more = super().needs()
        return [*((self.permission, path) for path in self.paths), *more]


def create_queues(
    tx: Transaction, paths: Sequence[EntityPath], options: QueueOptions, actor: str, *, exist_ok: bool = False
) -> list[QueueDescription]:
    """Create queues with the same options: all of them, or none.

    `exist_ok`: those that exist with these options are returned as they are.
    """
    flag("exist_ok", exist_ok)
    seen: set[str] = set()
    for path in paths:
        _refuse_subqueue(path, "created")
        if names_subscription(path):
            raise InvalidPath(f"{path.queue!r} is the path of a subscription: use create_subscription")
        if path.key in seen:
            raise EntityExists(f"{path.queue!r} appears more than once in the paths")
        seen.add(path.key)
    exist = {path.key: _existing(tx, path, options) for path in paths} if exist_ok else {}
    missing = [path for path in paths if exist.get(path.key) is None]
    records = tx.queues.insert_many([path.queue for path in missing], options) if missing else []
    new = [record.path for record in records]
    for path in missing:
        taken = None if path.queue in new else tx.queues.by_path(path.key)
        if taken is not None:
            raise already(f"a {taken.kind.value} already exists at {path.queue!r}")
        check_destinations(tx, path, options)
    for record in records:
        touch(tx, record)
    if records:
        note_all(tx, "queue_created", [(record, None, {}) for record in records])
        audit_all(tx, actor, "create", new)
    if not exist_ok:
        return [_described(record, Standing()) for record in records]
    created = {record.path.lower(): record for record in records}
    descriptions = [exist.get(path.key) or created[path.key] for path in paths]
    return describe_all(tx, descriptions)


def _existing(tx: Transaction, path: EntityPath, options: QueueOptions) -> QueueRecord | None:
    record = tx.queues.by_path(path.key)
    if record is not None:
        require_same(f"queue {path.queue!r}", record, EntityKind.QUEUE, options)
    return record


class UpdateQueue(OptionsChange[QueueDescription], frozen=True, kw_only=True):
    """Change some of a queue's options; of a policy, only the options that are given."""

    options_class: ClassVar[type[Any] | None] = QueueOptions
    action = "update"
    path: str
    changes: Options

    def run(self, tx: Transaction, actor: str) -> QueueDescription:
        return update_queue(tx, EntityPath.parse(self.path), parts_of(QueueOptions, self.changes), actor)

    @classmethod
    def touches(cls, path: str, detail: Detail) -> list[Touch]:
        return [Touch((path, "option", name)) for name in detail.get("before") or {}]

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        before = detail.get("before")
        # An older version noted no kind.
        other = detail.get("kind") in ("topic", "subscription")
        return None if before is None or other else cls(path=path, changes=before)


def update_queue(
    tx: Transaction, path: EntityPath, changes: Mapping[str, Any], actor: str
) -> QueueDescription:
    """Change some of a queue's options."""
    _refuse_subqueue(path, "changed")
    record = require_queue(tx, path)
    refuse_topic(record, "update_topic")
    return describe(tx, change_options(tx, record, changes, actor))


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
    count = sum(standing.states.values()) + standing.dead_letter + standing.transfer_dead_letter
    purged = tx.queues.purged(record.queue_id)
    if count or purged:
        also = f" and {purged} purged dead letters, which can be restored" if purged else ""
        raise InvalidOption(
            f"the {kind} holds {count} messages, dead letters included{also}: partitions can be raised only "
            "while it is empty, because they would change the order within sessions and partition keys"
        )


class DeleteQueue(Administering[None], frozen=True, kw_only=True):
    """Delete a queue with all its messages and dead letters.

    Raises EntityNotFound.
    """

    action = "delete"
    touched = ("{path}",)
    final: ClassVar[bool] = True
    path: str

    def run(self, tx: Transaction, actor: str) -> None:
        delete_queue(tx, EntityPath.parse(self.path), actor)


def delete_queue(tx: Transaction, path: EntityPath, actor: str) -> None:
    """Delete a queue or subscription with all its messages."""
    _refuse_subqueue(path, "deleted")
    if path.key == SYSTEM_DEAD_LETTER_QUEUE:
        raise NotAllowed(f"{SYSTEM_DEAD_LETTER_QUEUE} belongs to the system and cannot be deleted")
    record = require_queue(tx, path)
    refuse_topic(record, "delete_topic")
    admission_of(record).check_deletion(tx, record)
    delete(tx, [record], actor)


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


@dataclasses.dataclass(slots=True)
class Recreate(Operation[None]):
    """Put an entity of the same settings in the place of one; of a topic, with its subscriptions.

    All messages go at once, whatever their state. Raises EntityNotFound.
    """

    path: EntityPath
    actor: str

    def run(self, tx: Transaction) -> None:
        record = require_queue(tx, self.path)
        topic = record.kind is EntityKind.TOPIC
        subscriptions = tx.topics.subscriptions(record.queue_id) if topic else []
        keys = tx.access.setting(f"{SIGNING}{record.queue_id}")
        delete(tx, [*subscriptions, record], self.actor)
        made = _insert(tx, record, record.topic_id)
        if keys is not None:
            tx.access.save_setting(f"{SIGNING}{made.queue_id}", keys)
        for one in subscriptions:
            _insert(tx, one, made.queue_id)


def _insert(tx: Transaction, like: QueueRecord, topic_id: int | None) -> QueueRecord:
    made = tx.queues.insert(like.path, like.options, like.kind, topic_id, like.rules)
    if made.status is not like.status:
        made = tx.queues.save(dataclasses.replace(made, status=like.status))
    touch(tx, made)
    return made
