"""Operations on topics, subscriptions and rules: create, change, delete, describe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from lazaretto.engine.entities.existing import already, require_same, require_same_rules
from lazaretto.engine.entities.missing import no_entity
from lazaretto.engine.entities.queues import (
    change_options,
    delete,
    describe_all,
    letters_of,
    require_queue,
    standings,
)
from lazaretto.engine.log import audit, note
from lazaretto.engine.routing.forwards import check_destinations, touch
from lazaretto.errors import EntityNotFound, InvalidOption
from lazaretto.filters.records import rule_record
from lazaretto.filters.rules import Rule
from lazaretto.filters.stored import decode_rules, encode_rules
from lazaretto.model.checks import refuse_unknown, shown, suggestion
from lazaretto.model.clock import to_datetime
from lazaretto.model.descriptions import QueueDescription
from lazaretto.model.entities import (
    TOPIC_OPTIONS,
    EntityKind,
    EntityPath,
    QueueOptions,
    QueueStatus,
    TopicOptions,
    refuse_for_subscription,
    subscription_path,
)
from lazaretto.model.versions import version_of
from lazaretto.store.records.messages import DEFERRED, LOCKED, SCHEDULED, QueueRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

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
    subscriptions, if `max_size` is set.
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
        )
        for topic, standing in standings(tx, topics)
    ]


def describe_subscription(tx: Transaction, record: QueueRecord) -> SubscriptionDescription:
    """Return a subscription with its counts and rules."""
    return describe_subscriptions(tx, [record])[0]


def describe_subscriptions(tx: Transaction, records: Sequence[QueueRecord]) -> list[SubscriptionDescription]:
    """Return subscriptions with their counts and rules."""
    found = []
    for record, described in zip(records, describe_all(tx, records), strict=True):
        topic, _, name = record.path.rsplit("/", 2)
        found.append(SubscriptionDescription(topic, name, described, decode_rules(record.rules)))
    return found


@dataclasses.dataclass(slots=True)
class CreateTopic(Operation[TopicDescription]):
    """Create a topic."""

    path: EntityPath
    options: TopicOptions
    exist_ok: bool = False
    made: list[str] = dataclasses.field(default_factory=list, init=False)

    def run(self, tx: Transaction) -> TopicDescription:
        self.made = []
        taken = tx.queues.by_path(self.path.key)
        if taken is not None:
            if not self.exist_ok:
                raise already(f"a {taken.kind.value} already exists at {self.path.queue!r}")
            require_same(f"topic {taken.path!r}", taken, EntityKind.TOPIC, self.options)
            return describe_topic(tx, taken)
        self.made = [self.path.queue]
        record = tx.queues.insert(self.path.queue, self.options.as_queue(), EntityKind.TOPIC)
        touch(tx, record)
        note(tx, "topic_created", record)
        return describe_topic(tx, record)


@dataclasses.dataclass(slots=True)
class UpdateTopic(Operation[TopicDescription]):
    """Change some of a topic's options."""

    path: EntityPath
    changes: Mapping[str, Any]
    actor: str

    def run(self, tx: Transaction) -> TopicDescription:
        topic = require_topic(tx, self.path)
        refuse_unknown(self.changes, TOPIC_OPTIONS, f"topic {topic.path!r}")
        return describe_topic(tx, change_options(tx, topic, self.changes, self.actor))


@dataclasses.dataclass(slots=True)
class DeleteTopic(Operation[None]):
    """Delete a topic with its subscriptions and all their messages."""

    path: EntityPath
    actor: str

    def run(self, tx: Transaction) -> None:
        topic = require_topic(tx, self.path)
        delete_topic(tx, topic, self.actor)


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


@dataclasses.dataclass(slots=True)
class CreateSubscription(Operation[SubscriptionDescription]):
    """Create a subscription of a topic. `rules`: None means the default rule, or those of one that exists."""

    topic: EntityPath
    name: str
    options: QueueOptions
    rules: Sequence[Rule] | None
    exist_ok: bool = False
    made: list[str] = dataclasses.field(default_factory=list, init=False)

    def run(self, tx: Transaction) -> SubscriptionDescription:
        topic = require_topic(tx, self.topic)
        path = subscription_path(topic.path, self.name)
        self.made = []
        rules = None if self.rules is None else _checked(self.rules)
        # A topic's messages are in its subscriptions.
        partitions = max(self.options.partitions, topic.options.partitions)
        options = dataclasses.replace(self.options, partitions=partitions)
        taken = tx.queues.by_path(path.key)
        if taken is not None:
            what = f"subscription {self.name!r} of topic {topic.path!r}"
            if not self.exist_ok:
                raise already(f"topic {topic.path!r} already has a subscription {self.name!r}")
            require_same(what, taken, EntityKind.SUBSCRIPTION, options)
            if rules is not None:
                require_same_rules(what, decode_rules(taken.rules), rules)
            return describe_subscription(tx, taken)
        if len(tx.topics.subscriptions(topic.queue_id)) >= MOST_SUBSCRIPTIONS:
            raise InvalidOption(f"topic {topic.path!r} has {MOST_SUBSCRIPTIONS} subscriptions, the maximum")
        refuse_for_subscription(self.options)
        check_destinations(tx, path, self.options)
        record = tx.queues.insert(
            path.queue,
            options,
            EntityKind.SUBSCRIPTION,
            topic.queue_id,
            encode_rules([Rule()] if rules is None else rules),
        )
        self.made = [record.path]
        touch(tx, record)
        note(tx, "subscription_created", record)
        return describe_subscription(tx, record)


def _checked(rules: Sequence[Rule]) -> list[Rule]:
    names: set[str] = set()
    for rule in rules:
        if not isinstance(rule, Rule):
            raise InvalidOption(f"expected rules to be Rule objects, got {shown(rule)}")
        if rule.name.lower() in names:
            raise already(f"a rule {rule.name!r} already exists")
        names.add(rule.name.lower())
    return list(rules)


@dataclasses.dataclass(slots=True)
class ChangeRules(Operation[SubscriptionDescription]):
    """Add a rule to a subscription, or remove the rule with a name."""

    topic: EntityPath
    name: str
    actor: str
    added: Rule | None = None
    removed: str | None = None
    #: Whether a rule that exists as it is to be added is left so.
    exist_ok: bool = False

    def run(self, tx: Transaction) -> SubscriptionDescription:
        record = require_subscription(tx, self.topic, self.name)
        before = list(decode_rules(record.rules))
        rules = before
        added = self.added
        if self.exist_ok and isinstance(added, Rule):
            same = [rule for rule in before if rule.name.lower() == added.name.lower()]
            if same:
                require_same_rules(f"rule {added.name!r} of {record.path!r}", same, [added])
                return describe_subscription(tx, record)
        if self.removed is not None:
            known = [rule.name for rule in rules]
            rules = [rule for rule in rules if rule.name.lower() != self.removed.lower()]
            if len(rules) == len(known):
                meant = suggestion(self.removed, known)
                raise EntityNotFound(f"subscription {record.path!r} has no rule {self.removed!r}{meant}")
        if self.added is not None:
            rules = _checked([*rules, self.added])
        record = tx.queues.save(dataclasses.replace(record, rules=encode_rules(rules)))
        names = [rule.name for rule in rules]
        note(tx, "rules_changed", record, rules=names)
        changed = {
            "added": [rule_record(rule) for rule in rules if rule not in before],
            "removed": [rule_record(rule) for rule in before if rule not in rules],
        }
        audit(tx, self.actor, "rules", record.path, rules=names, **changed)
        return describe_subscription(tx, record)
