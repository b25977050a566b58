"""Operations on topics, subscriptions and rules: create, change, delete, describe."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, TypeVar

import msgspec

from lazaretto.engine.command import Administering, Command, Detail, Options
from lazaretto.engine.entities.existing import already, no_entity, require_same, require_same_rules
from lazaretto.engine.entities.queues import (
    OptionsChange,
    change_options,
    delete,
    delete_queue,
    describe_all,
    letters_of,
    require_queue,
    standings,
    update_queue,
)
from lazaretto.engine.log import audit, note
from lazaretto.engine.routing.forwards import check_destinations, touch
from lazaretto.errors import InvalidOption
from lazaretto.model.checks import flag, refuse_unknown, shown
from lazaretto.model.clock import to_datetime
from lazaretto.model.descriptions import QueueDescription, version_of
from lazaretto.model.entities import (
    TOPIC_OPTIONS,
    EntityKind,
    EntityPath,
    QueueOptions,
    QueueStatus,
    TopicOptions,
    refuse_for_subscription,
)
from lazaretto.model.entity_changes import parts_of
from lazaretto.model.filters.records import rule_from
from lazaretto.model.filters.rules import Rule, decode_rules, encode_rules
from lazaretto.model.paths import split_subscription, subscription_path
from lazaretto.model.records.plain import options_from
from lazaretto.store.records.messages import DEFERRED, LOCKED, SCHEDULED, QueueRecord
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")

#: Service Bus's limit.
MOST_SUBSCRIPTIONS = 2_000

#: The actor in the audit log for entities deleted as idle.
IDLE_ACTOR = "auto_delete_on_idle"


@dataclasses.dataclass(frozen=True, slots=True)
class SubscriptionDescription:
    """A subscription: its topic, the description of its queue, and its rules by name."""

    topic: str
    name: str
    queue: QueueDescription
    rules: tuple[Rule, ...]

    @property
    def version(self) -> str:
        """The version of options, status and rules, which changes with them."""
        queue = self.queue
        return version_of(queue.options, queue.status, queue.created, encode_rules(self.rules))


@dataclasses.dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic's options and state.

    `scheduled`: scheduled messages now. Over the topic's life: `unmatched`, messages that no subscription
    took; `expired`, messages that expired before their scheduled time. `size`: bytes in the topic and its
    subscriptions, if `max_size` is set. `accessed`: when it or a subscription was used last, to the minute.
    """

    path: str
    options: TopicOptions
    status: QueueStatus
    subscriptions: int
    scheduled: int
    unmatched: int
    expired: int
    size: int | None
    created: datetime
    updated: datetime
    accessed: datetime

    @property
    def version(self) -> str:
        """The version of options and status, which changes with them."""
        return version_of(self.options.as_queue(), self.status, self.created)


def require_topic(tx: Transaction, path: EntityPath) -> QueueRecord:
    """Return the topic at a path. Raises EntityNotFound, with the path most like it."""
    record = tx.queues.by_path(path.key)
    if record is None or record.kind is not EntityKind.TOPIC:
        kind = "" if record is None else f" (it is a {record.kind.value})"
        raise no_entity(tx, f"no topic exists at {path.queue!r}{kind}", path.queue, [EntityKind.TOPIC])
    return record


def require_subscription(tx: Transaction, topic: EntityPath, name: str) -> QueueRecord:
    """Return a topic's subscription. Raises EntityNotFound, with the name most like it."""
    require_topic(tx, topic)
    path = subscription_path(topic.queue, name)
    return tx.queues.by_path(path.key) or require_queue(tx, path)


def describe_topic(tx: Transaction, topic: QueueRecord) -> TopicDescription:
    """Return a topic with its counts."""
    return describe_topics(tx, [topic])[0]


def describe_topics(tx: Transaction, topics: Sequence[QueueRecord]) -> list[TopicDescription]:
    """Return topics with their counts."""
    return [
        TopicDescription(
            path=topic.path,
            options=TopicOptions(**{name: getattr(topic.options, name) for name in TOPIC_OPTIONS}),
            status=topic.status,
            subscriptions=standing.subscriptions,
            scheduled=standing.number(SCHEDULED),
            unmatched=standing.dropped,
            expired=standing.expired,
            size=None if topic.options.max_size is None else standing.size,
            created=to_datetime(topic.created),
            updated=to_datetime(topic.updated),
            accessed=to_datetime(standing.accessed(topic.updated)),
        )
        for topic, standing in standings(tx, topics)
    ]


def describe_subscription(tx: Transaction, record: QueueRecord) -> SubscriptionDescription:
    """Return a subscription with its counts and rules."""
    return describe_subscriptions(tx, [record])[0]


def describe_subscriptions(tx: Transaction, records: Sequence[QueueRecord]) -> list[SubscriptionDescription]:
    """Return subscriptions with their counts and rules."""
    descriptions = []
    for record, described in zip(records, describe_all(tx, records), strict=True):
        topic, _, name = record.path.rsplit("/", 2)
        descriptions.append(SubscriptionDescription(topic, name, described, decode_rules(record.rules)))
    return descriptions


class CreateTopic(OptionsChange[TopicDescription], frozen=True, kw_only=True):
    """Create a topic."""

    options_class: ClassVar[type[Any] | None] = TopicOptions
    action = "create"
    path: str
    options: Options = msgspec.field(default_factory=dict)
    exist_ok: bool = False

    def run(self, tx: Transaction, actor: str) -> TopicDescription:
        options = options_from(TopicOptions, self.options)
        return create_topic(tx, EntityPath.parse(self.path), options, actor, exist_ok=self.exist_ok)


def create_topic(
    tx: Transaction, path: EntityPath, options: TopicOptions, actor: str, *, exist_ok: bool = False
) -> TopicDescription:
    """Create a topic. `exist_ok`: one that exists with these options is returned as it is."""
    flag("exist_ok", exist_ok)
    taken = tx.queues.by_path(path.key)
    if taken is not None:
        if not exist_ok:
            raise already(f"a {taken.kind.value} already exists at {path.queue!r}")
        require_same(f"topic {taken.path!r}", taken, EntityKind.TOPIC, options)
        return describe_topic(tx, taken)
    record = tx.queues.insert(path.queue, options.as_queue(), EntityKind.TOPIC)
    touch(tx, record)
    note(tx, "topic_created", record)
    audit(tx, actor, "create", record.path)
    return describe_topic(tx, record)


class UpdateTopic(OptionsChange[TopicDescription], frozen=True, kw_only=True):
    """Change some of a topic's options."""

    options_class: ClassVar[type[Any] | None] = TopicOptions
    action = "update"
    path: str
    changes: Options

    def run(self, tx: Transaction, actor: str) -> TopicDescription:
        return update_topic(tx, EntityPath.parse(self.path), parts_of(TopicOptions, self.changes), actor)

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        before = detail.get("before")
        return None if before is None or detail.get("kind") != "topic" else cls(path=path, changes=before)


def update_topic(
    tx: Transaction, path: EntityPath, changes: Mapping[str, Any], actor: str
) -> TopicDescription:
    """Change some of a topic's options."""
    topic = require_topic(tx, path)
    refuse_unknown(changes, TOPIC_OPTIONS, f"topic {topic.path!r}")
    return describe_topic(tx, change_options(tx, topic, changes, actor))


class DeleteTopic(Administering[None], frozen=True, kw_only=True):
    """Delete a topic with its subscriptions and all their messages.

    Raises EntityNotFound.
    """

    action = "delete"
    final: ClassVar[bool] = True
    path: str

    def run(self, tx: Transaction, actor: str) -> None:
        delete_topic(tx, require_topic(tx, EntityPath.parse(self.path)), actor)


def delete_topic(tx: Transaction, topic: QueueRecord, actor: str) -> None:
    """Delete a topic with its subscriptions."""
    delete(tx, [*tx.topics.subscriptions(topic.queue_id), topic], actor)


def end_idle(tx: Transaction, entity: QueueRecord) -> None:
    """Delete an entity that was idle for longer than allowed, unless it holds messages."""
    topic = entity.kind is EntityKind.TOPIC
    if any(
        _waits(tx, each) for each in (entity, *(tx.topics.subscriptions(entity.queue_id) if topic else ()))
    ):
        tx.queues.set_idle_at(entity.queue_id, None)
        touch(tx, entity)
    elif topic:
        delete_topic(tx, entity, IDLE_ACTOR)
    else:
        delete(tx, [entity], IDLE_ACTOR)


def _waits(tx: Transaction, queue: QueueRecord) -> bool:
    """Return whether an entity forwards, or has dead letters or what a receiver will come back for."""
    if queue.options.forward_to is not None or queue.options.forward_dead_lettered_messages_to is not None:
        return True
    ((_, standing),) = standings(tx, [queue])
    return bool(standing.number(LOCKED, SCHEDULED, DEFERRED)) or letters_of(tx, queue) > 0


class SubscriptionChange(OptionsChange[T], frozen=True, kw_only=True):
    """A change of a subscription."""

    former = types.MappingProxyType({"name": "subscription"})
    topic: str
    subscription: str

    @property
    def subscription_path(self) -> EntityPath:
        """The path of the subscription's queue."""
        return subscription_path(self.topic, self.subscription)


class CreateSubscription(SubscriptionChange[SubscriptionDescription], frozen=True, kw_only=True):
    """Create a subscription, with rules or one that takes every message."""

    options_class: ClassVar[type[Any] | None] = QueueOptions
    action = "create"
    options: Options = msgspec.field(default_factory=dict)
    rules: list[Options] | None = None
    exist_ok: bool = False

    def run(self, tx: Transaction, actor: str) -> SubscriptionDescription:
        rules = None if self.rules is None else [rule_from(rule) for rule in self.rules]
        options = options_from(QueueOptions, self.options)
        topic = EntityPath.parse(self.topic)
        return create_subscription(
            tx, topic, self.subscription, options, rules, actor, exist_ok=self.exist_ok
        )


def create_subscription(
    tx: Transaction,
    topic_path: EntityPath,
    name: str,
    options: QueueOptions,
    rules: Sequence[Rule] | None,
    actor: str,
    *,
    exist_ok: bool = False,
) -> SubscriptionDescription:
    """Create a subscription of a topic.

    `rules`: None means the default rule, or those of one that exists. `exist_ok`: one that exists with these
    options and rules is returned as it is.
    """
    flag("exist_ok", exist_ok)
    subscription_path(topic_path.queue, name)
    topic = require_topic(tx, topic_path)
    path = subscription_path(topic.path, name)
    checked = None if rules is None else check_rules(rules)
    # A topic's messages are in its subscriptions.
    partitions = max(options.partitions, topic.options.partitions)
    widened = dataclasses.replace(options, partitions=partitions)
    taken = tx.queues.by_path(path.key)
    if taken is not None:
        what = f"subscription {name!r} of topic {topic.path!r}"
        if not exist_ok:
            raise already(f"topic {topic.path!r} already has a subscription {name!r}")
        require_same(what, taken, EntityKind.SUBSCRIPTION, widened)
        if checked is not None:
            require_same_rules(what, decode_rules(taken.rules), checked)
        return describe_subscription(tx, taken)
    if len(tx.topics.subscriptions(topic.queue_id)) >= MOST_SUBSCRIPTIONS:
        raise InvalidOption(f"topic {topic.path!r} has {MOST_SUBSCRIPTIONS} subscriptions, the maximum")
    refuse_for_subscription(options)
    check_destinations(tx, path, options)
    record = tx.queues.insert(
        path.queue,
        widened,
        EntityKind.SUBSCRIPTION,
        topic.queue_id,
        encode_rules([Rule()] if checked is None else checked),
    )
    touch(tx, record)
    note(tx, "subscription_created", record)
    audit(tx, actor, "create", record.path)
    return describe_subscription(tx, record)


class UpdateSubscription(SubscriptionChange[QueueDescription], frozen=True, kw_only=True):
    """Change some of a subscription's options."""

    options_class: ClassVar[type[Any] | None] = QueueOptions
    action = "update"
    changes: Options

    def run(self, tx: Transaction, actor: str) -> QueueDescription:
        return update_queue(tx, self.subscription_path, parts_of(QueueOptions, self.changes), actor)

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        before, names = detail.get("before"), split_subscription(EntityPath.parse(path))
        if before is None or names is None or detail.get("kind") != "subscription":
            return None
        return cls(topic=names[0], subscription=names[1], changes=before)


class DeleteSubscription(SubscriptionChange[None], frozen=True, kw_only=True):
    """Delete a subscription with all its messages and dead letters.

    Raises EntityNotFound.
    """

    action = "delete"
    final: ClassVar[bool] = True

    def run(self, tx: Transaction, actor: str) -> None:
        delete_queue(tx, self.subscription_path, actor)


def check_rules(rules: Sequence[Rule]) -> list[Rule]:
    names: set[str] = set()
    for rule in rules:
        if not isinstance(rule, Rule):
            raise InvalidOption(f"expected rules to be Rule objects, got {shown(rule)}")
        if rule.name.lower() in names:
            raise already(f"a rule {rule.name!r} already exists")
        names.add(rule.name.lower())
    return list(rules)
