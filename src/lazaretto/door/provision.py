"""Makes the entities of a namespace, and changes those that are there already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lazaretto.administration import Administration
from lazaretto.door.emulated import Emulated, EmulatedNamespace
from lazaretto.errors import EntityNotFound
from lazaretto.model.entities import QueueOptions, TopicOptions

#: Options that name another entity, which may be made later.
_FORWARDS: Final = ("forward_to", "forward_dead_lettered_messages_to")
_ACTOR: Final = "emulator"


def provision(broker: Administration, wanted: EmulatedNamespace) -> None:
    """Make every entity of a namespace, or change its options to those given; others stay as they are.

    Raises EntityNotFound, InvalidOption.
    """
    for queue in wanted.queues:
        now, _ = _split(queue.options)
        try:
            broker.queue(queue.path)
        except EntityNotFound:
            broker.create_queue(queue.path, QueueOptions(**now), actor=_ACTOR)
        else:
            broker.update_queue(queue.path, actor=_ACTOR, **now)
    for topic in wanted.topics:
        try:
            broker.topic(topic.path)
        except EntityNotFound:
            broker.create_topic(topic.path, TopicOptions(**topic.options), actor=_ACTOR)
        else:
            options: dict[str, Any] = dict(topic.options)
            broker.update_topic(topic.path, actor=_ACTOR, **options)
    for (topic_path, name), subscription in wanted.subscriptions.items():
        _subscribe(broker, topic_path, name, subscription)
    for entity in (*wanted.queues, *wanted.subscriptions.values()):
        _, later = _split(entity.options)
        if later:
            broker.update_queue(entity.path, actor=_ACTOR, **later)


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return which options are set at once, and which once everything is there."""
    return (
        {name: value for name, value in options.items() if name not in _FORWARDS},
        {name: value for name, value in options.items() if name in _FORWARDS},
    )


def _subscribe(broker: Administration, topic: str, name: str, wanted: Emulated) -> None:
    now, _ = _split(wanted.options)
    try:
        found = broker.subscription(topic, name)
    except EntityNotFound:
        broker.create_subscription(topic, name, QueueOptions(**now), wanted.rules, actor=_ACTOR)
        return
    broker.update_subscription(topic, name, actor=_ACTOR, **now)
    if wanted.rules is None:
        return
    before = {rule.name.lower(): rule for rule in found.rules}
    for rule in wanted.rules:
        known = before.pop(rule.name.lower(), None)
        if known is None:
            broker.add_rule(topic, name, rule, actor=_ACTOR)
        elif known != rule:
            broker.update_rule(topic, name, rule, actor=_ACTOR)
    for left in before.values():
        broker.remove_rule(topic, name, left.name, actor=_ACTOR)
