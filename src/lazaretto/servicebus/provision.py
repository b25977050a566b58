"""Makes the entities of a namespace, and changes those that are there already."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from lazaretto.api import SubscriptionDescription
from lazaretto.broker.broker import Broker
from lazaretto.errors import EntityExists, EntityNotFound, InvalidOption, InvalidPath, NotAllowed
from lazaretto.model.entities import QueueOptions, TopicOptions
from lazaretto.model.filters.rules import Rule
from lazaretto.servicebus.emulated import Emulated, EmulatedNamespace

#: Options that name another entity, which may be made later.
_FORWARDS: Final = ("forward_to", "forward_dead_lettered_messages_to")
_ACTOR: Final = "emulator"


def provision(broker: Broker, namespace: EmulatedNamespace) -> None:
    """Make every entity of a namespace, or change its options to those given; others stay as they are.

    Raises InvalidOption, which says where in the file what is refused stands.
    """
    later: list[tuple[Emulated, dict[str, Any]]] = []
    for queue in namespace.queues:
        with _told_where(queue):
            later.append((queue, _queue(broker, queue)))
    for topic in namespace.topics:
        with _told_where(topic):
            _topic(broker, topic)
    for (topic_path, name), subscription in namespace.subscriptions.items():
        with _told_where(subscription):
            later.append((subscription, _subscribe(broker, topic_path, name, subscription)))
    for entity, forwards in later:
        if forwards:
            with _told_where(entity):
                broker.update_queue(entity.path, actor=_ACTOR, **forwards)


@contextlib.contextmanager
def _told_where(entity: Emulated) -> Iterator[None]:
    try:
        yield
    except (EntityExists, EntityNotFound, InvalidOption, InvalidPath, NotAllowed) as error:
        raise InvalidOption(f"{entity.place}: {error}") from None


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return which options are set at once, and which once everything is there."""
    later = {name: value for name, value in options.items() if name in _FORWARDS and value is not None}
    return {name: value for name, value in options.items() if name not in later}, later


def _queue(broker: Broker, entity: Emulated) -> dict[str, Any]:
    """Make or change a queue, and return what is to be set later."""
    try:
        description = broker.queue(entity.path)
    except EntityNotFound:
        now, later = _split(entity.options())
        broker.create_queue(entity.path, QueueOptions(**now), actor=_ACTOR)
    else:
        now, later = _split(entity.changes(description.options))
        broker.update_queue(entity.path, actor=_ACTOR, **now)
    return later


def _topic(broker: Broker, entity: Emulated) -> None:
    try:
        description = broker.topic(entity.path)
    except EntityNotFound:
        broker.create_topic(entity.path, TopicOptions(**entity.options()), actor=_ACTOR)
    else:
        broker.update_topic(entity.path, actor=_ACTOR, **entity.changes(description.options))


def _subscribe(broker: Broker, topic: str, name: str, entity: Emulated) -> dict[str, Any]:
    """Make or change a subscription with its rules, and return what is to be set later."""
    try:
        description = broker.subscription(topic, name)
    except EntityNotFound:
        now, later = _split(entity.options())
        broker.create_subscription(topic, name, QueueOptions(**now), entity.rules, actor=_ACTOR)
        return later
    now, later = _split(entity.changes(description.queue.options))
    broker.update_subscription(topic, name, actor=_ACTOR, **now)
    if entity.rules is not None:
        _set_rules(broker, description, entity.rules)
    return later


def _set_rules(broker: Broker, description: SubscriptionDescription, rules: Iterable[Rule]) -> None:
    topic, name = description.topic, description.name
    before = {rule.name.lower(): rule for rule in description.rules}
    for rule in rules:
        old = before.pop(rule.name.lower(), None)
        if old is None:
            broker.add_rule(topic, name, rule, actor=_ACTOR)
        elif old != rule:
            broker.update_rule(topic, name, rule, actor=_ACTOR)
    for surplus in before.values():
        broker.remove_rule(topic, name, surplus.name, actor=_ACTOR)
