"""A Config.json of what a store has, or a namespace of Service Bus."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from lazaretto.broker.administration import Administration
from lazaretto.errors import InvalidOption
from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE, QueueOptions, TopicOptions
from lazaretto.model.filters.rules import (
    DEFAULT_RULE,
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from lazaretto.model.paths import subscription_path
from lazaretto.model.spans import write_duration
from lazaretto.servicebus.atom.settings import KEPT, SETTINGS, read_destination, told, write_flag
from lazaretto.servicebus.emulated import DEFAULTS, FIELDS, Emulated, EmulatedNamespace

#: Elements that are text even if it looks like a number or a boolean.
_TEXTS: Final = {"UserMetadata", "ForwardTo", "ForwardDeadLetteredMessagesTo"}
#: What every entity of the standard tier says, and nobody can choose.
_OF_TIER: Final = {"MaxMessageSizeInKilobytes": "256"}
_OPTIONS: Final = {setting.element: setting.option for setting in SETTINGS}
_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
#: Filters of Azure's client that have no parts.
_PLAIN: Final[Mapping[str, Filter]] = {"TrueRuleFilter": TrueFilter(), "FalseRuleFilter": FalseFilter()}
_EVERY: Final = (Rule(DEFAULT_RULE, TrueFilter()),)


def entities_of_store(broker: Administration) -> EmulatedNamespace:
    """Return the queues, topics and subscriptions of a store. `ignored`: what the file cannot say."""
    namespace = EmulatedNamespace()
    # The system's own queue comes before all others.
    for queue in broker.queues(after=SYSTEM_DEAD_LETTER_QUEUE):
        namespace.queues.append(_entity(namespace, queue.path, "QueueDescription", queue.options))
    for topic in broker.topics():
        namespace.topics.append(_entity(namespace, topic.path, "TopicDescription", topic.options))
        for one in broker.subscriptions(topic.path):
            _add_subscription(namespace, topic.path, one.name, one.queue.options, one.rules)
    return namespace


def entities_of_namespace(client: Any) -> EmulatedNamespace:
    """Return what Azure's administration client lists. `ignored`: what the file cannot say."""
    namespace = EmulatedNamespace()
    for queue in client.list_queues():
        options = _options(namespace, queue.name, "QueueDescription", queue)
        namespace.queues.append(_entity(namespace, queue.name, "QueueDescription", options))
    for topic in client.list_topics():
        options = _options(namespace, topic.name, "TopicDescription", topic)
        namespace.topics.append(_entity(namespace, topic.name, "TopicDescription", options))
        for one in client.list_subscriptions(topic.name):
            path = subscription_path(topic.name, one.name).queue
            options = _options(namespace, path, "SubscriptionDescription", one)
            rules = [_rule(rule) for rule in client.list_rules(topic.name, one.name)]
            _add_subscription(namespace, topic.name, one.name, options, rules)
    return namespace


def _options(namespace: EmulatedNamespace, path: str, kind: str, properties: Any) -> Any:
    """Return the options that an entity's properties stand for; what has no option is ignored."""
    defaults = {**dict(told(kind, DEFAULTS[kind], "")), **_OF_TIER}
    options: Any = DEFAULTS[kind]
    for element in (*_OPTIONS, *KEPT):
        value = getattr(properties, _attribute(element), None)
        if value is None or (text := _text(value)) == defaults.get(element):
            continue
        try:
            changes = Emulated(path, path, kind, {element: text}).options()
            annotations = {**(options.annotations or {}), **(changes.pop("annotations", None) or {})}
            options = dataclasses.replace(options, **changes, annotations=annotations or None)
        except InvalidOption as error:
            namespace.ignored.append(f"{path}.{element}: {error}")
    return options


def _attribute(element: str) -> str:
    """Return how Azure's client calls an element."""
    return _WORDS.sub("_", element).lower()


def _text(value: Any) -> str:
    match value:
        case bool():
            return write_flag(value)
        case timedelta():
            return write_duration(value)
        case _:
            return str(value)


def _rule(rule: Any) -> Rule:
    """Return a rule that Azure's client has read."""
    filter_ = rule.filter
    chosen: Filter
    if (kind := type(filter_).__name__) == "CorrelationRuleFilter":
        fields: dict[str, Any] = {
            ours: getattr(filter_, _attribute(theirs)) for theirs, ours in FIELDS.items()
        }
        chosen = CorrelationFilter(**fields, properties=filter_.properties or {})
    elif kind in _PLAIN:
        chosen = _PLAIN[kind]
    else:
        chosen = SqlFilter(filter_.sql_expression, filter_.parameters or {})
    action = rule.action and SqlAction(rule.action.sql_expression, rule.action.parameters or {})
    return Rule(rule.name, chosen, action or None)


def _entity(
    namespace: EmulatedNamespace,
    path: str,
    kind: str,
    options: QueueOptions | TopicOptions,
    rules: tuple[Rule, ...] | None = None,
) -> Emulated:
    """Return an entity with what differs from Service Bus's defaults."""
    entity = Emulated(path, path, kind, {}, rules)
    before = dict(told(kind, DEFAULTS[kind], ""))
    elements: dict[str, str] = {}
    for element, text in told(kind, options, ""):
        option = _OPTIONS.get(element)
        if text == before.get(element) and (
            option is None or getattr(options, option) == getattr(DEFAULTS[kind], option)
        ):
            continue
        if option in ("forward_to", "forward_dead_lettered_messages_to"):
            text = read_destination(text) or ""
        try:
            dataclasses.replace(entity, given={element: text}).options()
        except InvalidOption as error:
            namespace.ignored.append(f"{path}.{element}: {error}")
        else:
            elements[element] = text
    return dataclasses.replace(entity, given=elements)


def _add_subscription(
    namespace: EmulatedNamespace, topic: str, name: str, options: QueueOptions, rules: Sequence[Rule]
) -> None:
    path = subscription_path(topic, name).queue
    # A subscription that the file gives no rules takes every message.
    rules_ = None if tuple(rules) == _EVERY else tuple(rules) or (Rule(DEFAULT_RULE, FalseFilter()),)
    entity = _entity(namespace, path, "SubscriptionDescription", options, rules_)
    namespace.subscriptions[topic, name] = entity


def config_of(namespace: EmulatedNamespace, name: str) -> dict[str, Any]:
    """Return a namespace as what a Config.json has, which `read_namespace` reads. Notes what is `ignored`."""
    writer = _Writer(namespace)
    entities = {"Name": name, "Queues": list(writer.queues()), "Topics": list(writer.topics())}
    return {"UserConfig": {"Namespaces": [entities], "Logging": {"Type": "File"}}}


class _Writer:
    def __init__(self, namespace: EmulatedNamespace) -> None:
        self._namespace = namespace

    def queues(self) -> Iterator[dict[str, Any]]:
        for queue in self._namespace.queues:
            yield {"Name": queue.path, **_properties(queue)}

    def topics(self) -> Iterator[dict[str, Any]]:
        for topic in self._namespace.topics:
            subscriptions = [
                {"Name": name, **_properties(one), **self._rules(one)}
                for (path, name), one in self._namespace.subscriptions.items()
                if path == topic.path
            ]
            yield {"Name": topic.path, **_properties(topic), "Subscriptions": subscriptions}

    def _rules(self, subscription: Emulated) -> dict[str, Any]:
        if subscription.rules is None:
            return {}
        return {"Rules": [self._rule(rule, subscription.path) for rule in subscription.rules]}

    def _rule(self, rule: Rule, path: str) -> dict[str, Any]:
        place = f"{path}.{rule.name}"
        properties: dict[str, Any]
        match rule.filter:
            case CorrelationFilter() as wanted:
                fields = {theirs: getattr(wanted, ours) for theirs, ours in FIELDS.items()}
                inner = {name: text for name, text in fields.items() if text is not None}
                if wanted.properties:
                    inner["Properties"] = self._values(wanted.properties, place)
                properties = {"FilterType": "Correlation", "CorrelationFilter": inner}
            case SqlFilter() as wanted:
                properties = {"FilterType": "Sql", "SqlFilter": self._sql(wanted, place)}
            case wanted:
                expression = "1=1" if isinstance(wanted, TrueFilter) else "1=0"
                properties = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}
        if rule.action is not None:
            properties["Action"] = self._sql(rule.action, place)
        return {"Name": rule.name, "Properties": properties}

    def _sql(self, part: SqlFilter | SqlAction, place: str) -> dict[str, Any]:
        parameters = {"Parameters": self._values(part.parameters, place)} if part.parameters else {}
        return {"SqlExpression": part.expression, **parameters}

    def _values(self, values: Mapping[str, Any], place: str) -> dict[str, Any]:
        written = dict(values)
        for name, value in values.items():
            if not isinstance(value, str | bool | int | float):
                kind = type(value).__name__
                self._namespace.ignored.append(f"{place}.{name}: JSON has no {kind}, so it is text there")
                written[name] = str(value)
        return written


def _properties(entity: Emulated) -> dict[str, Any]:
    properties = dict(_typed(entity.given.items()))
    return {"Properties": properties} if properties else {}


def _typed(elements: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """Yield properties as the file has them: numbers and booleans as such."""
    for element, text in elements:
        if element not in _TEXTS and (text in ("true", "false") or text.isdigit()):
            yield element, json.loads(text)
        else:
            yield element, text
