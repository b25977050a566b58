"""Changes of queues, topics, subscriptions and rules, and of how they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from lazaretto.commands.command import Administering, OfPath, Options
from lazaretto.engine.messages import sessions
from lazaretto.filters.records import rule_from
from lazaretto.model.checks import text
from lazaretto.model.entities import FORWARDS, EntityPath, QueueOptions, TopicOptions
from lazaretto.model.entity_changes import parts_of
from lazaretto.model.headers import LONGEST_ID
from lazaretto.model.permissions import Permission
from lazaretto.records.options import options_from

if TYPE_CHECKING:
    from lazaretto.broker import Broker


class Setting(Administering, frozen=True, kw_only=True):
    """A change of options. Whoever makes an entity forward needs the right to send there."""

    def needs(self) -> list[tuple[Permission, str | None]]:
        given = getattr(self, "options", None) or getattr(self, "changes", None)
        destinations = (given.get(name) for name in FORWARDS) if isinstance(given, dict) else ()
        return [*super().needs(), *((Permission.SEND, to) for to in destinations if isinstance(to, str))]


class CreateQueue(Setting, frozen=True, kw_only=True):
    """Create a queue."""

    options_class: ClassVar[type[Any] | None] = QueueOptions
    path: str
    options: Options = msgspec.field(default_factory=dict)
    exist_ok: bool = False

    def apply(self, broker: Broker, actor: str) -> None:
        options = options_from(QueueOptions, self.options)
        broker.create_queue(self.path, options, exist_ok=self.exist_ok, actor=actor)

    def told(self, answer: Any) -> Any:
        return answer[0]


class CreateQueues(Setting, frozen=True, kw_only=True):
    """Create up to 1,000 queues with the same options: all of them, or none."""

    paths: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1000)]
    options: Options = msgspec.field(default_factory=dict)
    exist_ok: bool = False

    def apply(self, broker: Broker, actor: str) -> None:
        options = options_from(QueueOptions, self.options)
        broker.create_queues(self.paths, options, exist_ok=self.exist_ok, actor=actor)

    def needs(self) -> list[tuple[Permission, str | None]]:
        _, *more = super().needs()
        return [*((self.permission, path) for path in self.paths), *more]


class UpdateQueue(Setting, frozen=True, kw_only=True):
    """Change some of a queue's options; of a policy, only the options that are given."""

    options_class: ClassVar[type[Any] | None] = QueueOptions
    path: str
    changes: Options

    def apply(self, broker: Broker, actor: str) -> None:
        changes: Any = parts_of(QueueOptions, self.changes)
        broker.update_queue(self.path, actor=actor, **changes)


class DeleteQueue(Administering, frozen=True, kw_only=True):
    """Delete a queue with all its messages and dead letters."""

    final: ClassVar[bool] = True
    path: str

    def apply(self, broker: Broker, actor: str) -> None:
        broker.delete_queue(self.path, actor=actor)


class CreateTopic(Setting, frozen=True, kw_only=True):
    """Create a topic."""

    options_class: ClassVar[type[Any] | None] = TopicOptions
    path: str
    options: Options = msgspec.field(default_factory=dict)
    exist_ok: bool = False

    def apply(self, broker: Broker, actor: str) -> None:
        options = options_from(TopicOptions, self.options)
        broker.create_topic(self.path, options, exist_ok=self.exist_ok, actor=actor)


class UpdateTopic(Setting, frozen=True, kw_only=True):
    """Change some of a topic's options."""

    options_class: ClassVar[type[Any] | None] = TopicOptions
    path: str
    changes: Options

    def apply(self, broker: Broker, actor: str) -> None:
        changes: Any = parts_of(TopicOptions, self.changes)
        broker.update_topic(self.path, actor=actor, **changes)


class DeleteTopic(Administering, frozen=True, kw_only=True):
    """Delete a topic with its subscriptions and all their messages."""

    final: ClassVar[bool] = True
    path: str

    def apply(self, broker: Broker, actor: str) -> None:
        broker.delete_topic(self.path, actor=actor)


class OfSubscription(Setting, frozen=True, kw_only=True):
    """A change of a subscription."""

    topic: str
    subscription: str


class CreateSubscription(OfSubscription, frozen=True, kw_only=True):
    """Create a subscription, with rules or one that takes every message."""

    options_class: ClassVar[type[Any] | None] = QueueOptions
    options: Options = msgspec.field(default_factory=dict)
    rules: list[Options] | None = None
    exist_ok: bool = False

    def apply(self, broker: Broker, actor: str) -> None:
        rules = None if self.rules is None else [rule_from(rule) for rule in self.rules]
        options = options_from(QueueOptions, self.options)
        broker.create_subscription(
            self.topic, self.subscription, options, rules, exist_ok=self.exist_ok, actor=actor
        )


class UpdateSubscription(OfSubscription, frozen=True, kw_only=True):
    """Change some of a subscription's options."""

    options_class: ClassVar[type[Any] | None] = QueueOptions
    changes: Options

    def apply(self, broker: Broker, actor: str) -> None:
        changes: Any = parts_of(QueueOptions, self.changes)
        broker.update_subscription(self.topic, self.subscription, actor=actor, **changes)


class DeleteSubscription(OfSubscription, frozen=True, kw_only=True):
    """Delete a subscription with all its messages and dead letters."""

    final: ClassVar[bool] = True

    def apply(self, broker: Broker, actor: str) -> None:
        broker.delete_subscription(self.topic, self.subscription, actor=actor)


class AddRule(OfSubscription, frozen=True, kw_only=True):
    """Add a rule to a subscription."""

    rule: Options
    exist_ok: bool = False

    def apply(self, broker: Broker, actor: str) -> None:
        rule = rule_from(self.rule)
        broker.add_rule(self.topic, self.subscription, rule, exist_ok=self.exist_ok, actor=actor)


class RemoveRule(OfSubscription, frozen=True, kw_only=True):
    """Remove a rule from a subscription."""

    rule: str

    def apply(self, broker: Broker, actor: str) -> None:
        broker.remove_rule(self.topic, self.subscription, self.rule, actor=actor)


class SetStatus(OfPath, frozen=True, kw_only=True):
    """Enable or disable a queue, topic or subscription."""

    status: str

    def apply(self, broker: Broker, actor: str) -> None:
        broker.set_status(self.path, self.status, actor=actor)


class ResumeQueue(OfPath, frozen=True, kw_only=True):
    """Resume a halted queue with a verdict on the message that halted it, or a disabled one."""

    verdict: str | None = None

    def apply(self, broker: Broker, actor: str) -> None:
        broker.resume_queue(self.path, self.verdict, actor=actor)


class ResumeSession(OfPath, frozen=True, kw_only=True):
    """Resume a held session with a verdict on its poison message."""

    session: str
    verdict: str

    def apply(self, broker: Broker, actor: str) -> None:
        broker.resume_session(self.path, self.session, self.verdict, actor=actor)


class FreeSession(OfPath, frozen=True, kw_only=True):
    """Take a session's lock from its receiver. What it has not settled can be received again."""

    session: str

    def apply(self, broker: Broker, actor: str) -> None:
        session = text("session", self.session, LONGEST_ID)
        broker._store.run(sessions.FreeSession(EntityPath.parse(self.path), session, actor))


class SetBreaker(OfPath, frozen=True, kw_only=True):
    """Keep a breaker open or closed, or let it decide by itself: "open", "close", "auto"."""

    verb: str

    def apply(self, broker: Broker, actor: str) -> None:
        broker.set_breaker(self.path, self.verb, actor=actor)
