"""The namespace that Service Bus's own emulator is given as Config.json, read. Pure."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.entities import EntityPath, QueueOptions, Subqueue, TopicOptions
from lazaretto.model.filters.rules import CorrelationFilter, Filter, Rule, SqlAction, SqlFilter
from lazaretto.model.paths import subscription_path
from lazaretto.servicebus.atom.feeds import Refusal
from lazaretto.servicebus.atom.settings import ELEMENTS, changes_of, told, write_flag

_TEXT: Final = r'"(?:\\.|[^"\\])*"'
_COMMENTS: Final = re.compile(rf"({_TEXT})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMAS: Final = re.compile(rf"({_TEXT})|,(?=\s*[}}\]])", re.DOTALL)
_NO_LINE: Final = re.compile(r"[^\n]")
#: Fields of a correlation filter, by the names that the file has.
FIELDS: Final = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "subject",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}
#: What entities are that the file does not describe further, by the names of their descriptions.
DEFAULTS: Final[Mapping[str, QueueOptions | TopicOptions]] = {
    "QueueDescription": QueueOptions(),
    "TopicDescription": TopicOptions(),
    "SubscriptionDescription": QueueOptions(),
}
_TYPES: Final[Mapping[Any, str]] = {dict: "an object", list: "a list", str: "text"}


def plain_json(text: str) -> str:
    """Return it as JSON proper. What is taken out leaves blanks, so that errors name the right place."""
    for pattern in (_COMMENTS, _COMMAS):
        text = pattern.sub(lambda match: match[1] or _NO_LINE.sub(" ", match[0]), text)
    return text.removeprefix("\ufeff")


@dataclasses.dataclass(frozen=True, slots=True)
class Emulated:
    """A queue, topic or subscription. `given`: its properties as text. `rules`: None where none are given.

    `place`: where it stands in the file; `kind`: the name of its description, as ATOM has it.
    """

    place: str
    path: str
    kind: str
    given: Mapping[str, str]
    rules: tuple[Rule, ...] | None = None

    def options(self) -> dict[str, Any]:
        """Return the options with which it is made. Raises InvalidOption."""
        return self._changes(self.given, DEFAULTS[self.kind], creates=True)

    def changes(self, options: QueueOptions | TopicOptions) -> dict[str, Any]:
        """Return which options of one that is there become what. Raises InvalidOption.

        What is not given stays as it is.
        """
        return self._changes({**dict(told(self.kind, options, "")), **self.given}, options, creates=False)

    def _changes(
        self, elements: Mapping[str, str], options: QueueOptions | TopicOptions, *, creates: bool
    ) -> dict[str, Any]:
        try:
            return changes_of(self.kind, elements, options, creates=creates)
        except Refusal as refusal:
            raise InvalidOption(refusal.detail) from None


@dataclasses.dataclass(slots=True)
class EmulatedNamespace:
    """The entities to create. `ignored`: the places in the file that have no meaning here."""

    queues: list[Emulated] = dataclasses.field(default_factory=list)
    topics: list[Emulated] = dataclasses.field(default_factory=list)
    #: By topic and name.
    subscriptions: dict[tuple[str, str], Emulated] = dataclasses.field(default_factory=dict)
    ignored: list[str] = dataclasses.field(default_factory=list)
    #: Where each path is given, by the path in lower case.
    _places: dict[str, str] = dataclasses.field(default_factory=dict)

    def claim(self, path: EntityPath, name: _Node) -> None:
        """Note that a path is given. Raises InvalidOption if it was given before."""
        before = self._places.setdefault(path.key, name.place)
        if before != name.place:
            raise name.wrong(f"expected a name that is given once, got {name.value!r}, as in {before}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Node:
    """A value of the file, and where it stands."""

    place: str
    value: Any

    def wrong(self, expectation: str) -> InvalidOption:
        return InvalidOption(f"{self.place or 'the file'}: {expectation}")

    def of(self, kind: type[Any]) -> Any:
        if type(self.value) is not kind:
            raise self.wrong(f"expected {_TYPES[kind]}, got {json.dumps(self.value)[:100]}")
        return self.value

    def part(self, name: str, default: Any = None) -> _Node:
        node = self.of(dict).get(name)
        part = _Node(f"{self.place}.{name}" if self.place else name, default if node is None else node)
        if part.value is None:
            raise part.wrong("expected it to be given")
        return part

    def items(self, name: str) -> Iterator[_Node]:
        listed = self.part(name, [])
        for number, value in enumerate(listed.of(list)):
            yield _Node(f"{listed.place}[{number}]", value)

    def besides(self, *known: str) -> Iterator[str]:
        yield from (self.part(name, "").place for name in self.of(dict) if name not in known)


def read_namespace(text: str | bytes) -> EmulatedNamespace:
    """Return what a Config.json describes, of all its namespaces. Raises InvalidOption, which says where."""
    try:
        root = _Node("", json.loads(plain_json(text if isinstance(text, str) else text.decode("utf-8"))))
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"expected JSON: {error}") from None
    config = root.part("UserConfig")
    namespaces = list(config.items("Namespaces"))
    if not namespaces:
        raise config.part("Namespaces", []).wrong("expected a namespace, got none")
    found = EmulatedNamespace()
    found.ignored += [*root.besides("UserConfig"), *config.besides("Namespaces", "Logging")]
    for namespace in namespaces:
        found.ignored += namespace.besides("Name", "Queues", "Topics")
        for queue in namespace.items("Queues"):
            found.ignored += queue.besides("Name", "Properties")
            found.queues.append(_entity(queue, _path(queue, found), "QueueDescription", found))
        for topic in namespace.items("Topics"):
            _read_topic(topic, found)
    return found


def _read_topic(topic: _Node, namespace: EmulatedNamespace) -> None:
    path = _path(topic, namespace)
    namespace.ignored += topic.besides("Name", "Properties", "Subscriptions")
    namespace.topics.append(_entity(topic, path, "TopicDescription", namespace))
    for one in topic.items("Subscriptions"):
        namespace.ignored += one.besides("Name", "Properties", "Rules")
        name = one.part("Name")
        text = name.of(str)
        try:
            full = subscription_path(path, text)
        except LazarettoError as error:
            raise name.wrong(str(error)) from None
        namespace.claim(full, name)
        rules = _rules(one, namespace)
        namespace.subscriptions[path, text] = _entity(
            one, full.queue, "SubscriptionDescription", namespace, rules or None
        )


def _path(entity: _Node, namespace: EmulatedNamespace) -> str:
    """Return the path of a queue or a topic, which no other has."""
    name = entity.part("Name")
    text = name.of(str)
    try:
        path = EntityPath.parse(text)
    except LazarettoError as error:
        raise name.wrong(str(error)) from None
    if path.subqueue is not Subqueue.MAIN:
        raise name.wrong(f"expected the name of a queue or topic, got {text!r}, which a queue has by itself")
    namespace.claim(path, name)
    return path.queue


def _entity(
    entity: _Node, path: str, kind: str, namespace: EmulatedNamespace, rules: tuple[Rule, ...] | None = None
) -> Emulated:
    """Return an entity whose properties are right, each and together."""
    properties = entity.part("Properties", {})
    elements: dict[str, str] = {}
    for name in properties.of(dict):
        one = properties.part(name, "")
        if properties.value[name] is None:
            continue
        if name not in ELEMENTS[kind]:
            namespace.ignored.append(one.place)
            continue
        if not isinstance(one.value, str | bool | int):
            raise one.wrong(f"expected text, a whole number or a boolean, got {json.dumps(one.value)[:100]}")
        elements[name] = write_flag(one.value) if isinstance(one.value, bool) else str(one.value)
        try:
            Emulated(one.place, path, kind, {name: elements[name]}).options()
        except InvalidOption as error:
            raise one.wrong(str(error)) from None
    made = Emulated(entity.place, path, kind, elements, rules)
    try:
        dataclasses.replace(DEFAULTS[kind], **made.options())
    except LazarettoError as error:
        raise properties.wrong(str(error)) from None
    return made


def _rules(subscription: _Node, namespace: EmulatedNamespace) -> tuple[Rule, ...]:
    rules: dict[str, Rule] = {}
    for one in subscription.items("Rules"):
        rule = _rule(one, namespace)
        if rule.name.lower() in rules:
            raise one.part("Name").wrong(f"expected a name that is given once, got {rule.name!r}")
        rules[rule.name.lower()] = rule
    return tuple(rules.values())


def _rule(rule: _Node, namespace: EmulatedNamespace) -> Rule:
    properties = rule.part("Properties")
    kind = properties.part("FilterType")
    action = properties.of(dict).get("Action")
    namespace.ignored += rule.besides("Name", "Properties")
    namespace.ignored += properties.besides("FilterType", f"{kind.value}Filter", "Action")
    try:
        if kind.of(str) == "Sql":
            sql = properties.part("SqlFilter")
            filter_: Filter = SqlFilter(sql.part("SqlExpression").of(str), _parameters(sql))
        elif kind.value == "Correlation":
            filter_ = _correlation(properties.part("CorrelationFilter"), namespace)
        else:
            raise kind.wrong(f"expected Sql or Correlation, got {json.dumps(kind.value)[:100]}")
        changes = None
        if action is not None:
            sql = properties.part("Action")
            changes = SqlAction(sql.part("SqlExpression").of(str), _parameters(sql))
        return Rule(rule.part("Name").of(str), filter_, changes)
    except LazarettoError as error:
        if str(error).startswith(rule.place):
            raise
        raise properties.wrong(str(error)) from None


def _parameters(sql: _Node) -> dict[str, Any]:
    return dict(sql.part("Parameters", {}).of(dict))


def _correlation(node: _Node, namespace: EmulatedNamespace) -> CorrelationFilter:
    namespace.ignored += node.besides("Properties", *FIELDS)
    fields: dict[str, Any] = {ours: node.of(dict).get(theirs) or None for theirs, ours in FIELDS.items()}
    return CorrelationFilter(**fields, properties=node.part("Properties", {}).of(dict))
