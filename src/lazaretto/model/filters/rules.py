"""Rules: conditions and actions as text, as bytes in a store, and why one matches a message."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from lazaretto.errors import FilterError, InvalidMessage, InvalidOption
from lazaretto.model.checks import shown, text
from lazaretto.model.filters.values import KINDS, Value
from lazaretto.model.filters.view import COMPUTED, Action, MessageView, Property
from lazaretto.model.headers import (
    LONGEST_ID,
    MAX_PROPERTY_SIZE,
    SHORTEST_IDS,
    Headers,
    check_properties,
    decode_headers,
    encode_headers,
)
from lazaretto.model.options import option_set

#: The rule of a subscription that was given none, and what a copy is told of the rule it was made by.
DEFAULT_RULE = "$Default"
RULE_NAME = "RuleName"
LONGEST_NAME = 50

#: Name, kind of filter, its text, its values, and the action's text and values, if there is one.
_Stored = tuple[str, str, str, bytes, str | None, bytes | None]
_decode = msgspec.msgpack.Decoder(list[_Stored]).decode
_decode_written = msgspec.msgpack.Decoder(dict[str, str]).decode


@option_set
@dataclasses.dataclass(frozen=True, slots=True)
class TrueFilter:
    """Every message."""


@option_set
@dataclasses.dataclass(frozen=True, slots=True)
class FalseFilter:
    """No message."""


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a message that a subscription gets. `changed`: what an action left of it; None: as it is."""

    rule: str
    changed: MessageView | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """A rule's judgement on a message. `matches`: None if it cannot say, and `why` is the error then."""

    rule: str
    matches: bool | None
    why: str


def sql() -> Any:
    """Return the module that compiles SQL."""
    # Only who has such a filter pays for the parser.
    return importlib.import_module("lazaretto.model.filters.sql")


def checked_values(what: str, values: object) -> dict[str, Value]:
    """Return values by name that messages could have as properties. Raises InvalidOption."""
    try:
        return check_properties(values)
    except InvalidMessage as error:
        raise InvalidOption(f"{what} of a rule: {error}") from None


def _checked_forms(written: object) -> dict[str, str]:
    """Return how values were written, by name. Raises InvalidOption."""
    forms = checked_values("written", written)
    if not all(isinstance(form, str) for form in forms.values()):
        raise InvalidOption(f"written of a rule: expected a mapping of names to texts, got {shown(written)}")
    return {name: str(form) for name, form in forms.items()}


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """Messages whose properties equal all the given ones in value and type; text is case-sensitive."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    subject: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    #: How a client of Service Bus wrote values, by name, where that says more than they do: "long 5".
    written: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "properties", checked_values("properties", self.properties))
        object.__setattr__(self, "written", _checked_forms(self.written))
        for (scope, name), value in self.wanted().items():
            if value is None or (scope == "sys" and not isinstance(value, str)):
                raise InvalidOption(f"a correlation filter cannot compare {name} with {shown(value)}")
            if scope == "sys":
                object.__setattr__(self, name, text(name, value, MAX_PROPERTY_SIZE))
        if not self.wanted():
            raise InvalidOption(
                "a correlation filter needs at least one property; use TrueFilter() to match all messages"
            )

    def wanted(self) -> dict[tuple[str, str], Value]:
        """Return what is wanted, by scope and name."""
        values: dict[tuple[str, str], Value] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in ("properties", "written") and value is not None:
                values["sys", field.name] = value
        for name, value in self.properties.items():
            values["user", name.lower()] = value
        return values


@option_set
@dataclasses.dataclass(frozen=True, slots=True)
class SqlFilter:
    """Messages for which an expression is true. `parameters` are its `@names`. Raises FilterSyntaxError."""

    expression: str
    parameters: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    #: How a client of Service Bus wrote values, by name, where that says more than they do: "long 5".
    written: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", checked_values("parameters", self.parameters))
        object.__setattr__(self, "written", _checked_forms(self.written))
        sql().compile_filter(self.expression, self.parameters)


@option_set
@dataclasses.dataclass(frozen=True, slots=True)
class SqlAction:
    """Changes to the copy: `SET` and `REMOVE`. Raises FilterSyntaxError."""

    expression: str
    parameters: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    #: How a client of Service Bus wrote values, by name, where that says more than they do: "long 5".
    written: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", checked_values("parameters", self.parameters))
        object.__setattr__(self, "written", _checked_forms(self.written))
        self.compiled()

    def compiled(self) -> Sequence[Action]:
        """Return its parts. Raises FilterSyntaxError."""
        actions: Sequence[Action] = sql().compile_action(self.expression, self.parameters, self.written)
        return actions


Filter = TrueFilter | FalseFilter | CorrelationFilter | SqlFilter


@option_set
@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A named filter, with an optional action on the copies of matching messages."""

    name: str = DEFAULT_RULE
    filter: Filter = TrueFilter()
    action: SqlAction | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", text("a rule's name", self.name, LONGEST_NAME))
        if not isinstance(self.filter, Filter):
            raise InvalidOption(
                "expected filter to be a TrueFilter, FalseFilter, CorrelationFilter or SqlFilter, "
                f"got {shown(self.filter)}"
            )
        if self.action is not None and not isinstance(self.action, SqlAction):
            raise InvalidOption(f"expected action to be a SqlAction or None, got {shown(self.action)}")


def sorted_rules(rules: Sequence[Rule]) -> list[Rule]:
    """Return rules by name, as Service Bus lists them."""
    return sorted(rules, key=lambda rule: rule.name.lower())


def describe_filter(condition: Filter) -> str:
    """Return a filter as one reads it."""
    if isinstance(condition, SqlFilter):
        return condition.expression
    if isinstance(condition, CorrelationFilter):
        pairs = condition.wanted().items()
        return " and ".join(f"{'sys.' if s == 'sys' else ''}{n} = {v!r}" for (s, n), v in pairs)
    return type(condition).__name__.removesuffix("Filter").lower()


def equals(value: Value, other: Value) -> bool:
    """Return whether two values are equal and of one kind, as correlation filters compare."""
    return type(value) is type(other) and bool(value == other)


def _matcher(filter_: Filter) -> Callable[[MessageView], bool]:
    match filter_:
        case TrueFilter():
            return lambda view: True
        case FalseFilter():
            return lambda view: False
        case SqlFilter():
            condition = sql().compile_filter(filter_.expression, filter_.parameters)
            return lambda view: condition(view) is True
        case CorrelationFilter():
            pairs = list(filter_.wanted().items())
            return lambda view: all(equals(view.get(*name), value) for name, value in pairs)


class CompiledRules:
    """The rules of one subscription, ready to be asked."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        # The same for every message: nothing is made for a copy that is not changed.
        self._plain = [
            ([Copy(rule.name)], _matcher(rule.filter), isinstance(rule.filter, TrueFilter))
            for rule in rules
            if rule.action is None
        ]
        self._acting = [
            (rule.name, _matcher(rule.filter), rule.action.compiled())
            for rule in rules
            if rule.action is not None
        ]

    def wanted(self) -> tuple[tuple[str, str], Value] | None:
        """Return a property, by scope and name, and the value without which no message matches.

        None: there is no such value, the rules have to be asked.
        """
        if len(self.rules) != 1 or not isinstance(self.rules[0].filter, CorrelationFilter):
            return None
        return next(iter(self.rules[0].filter.wanted().items()))

    @property
    def takes_all(self) -> bool:
        """Whether every message matches, and no copy is changed."""
        return not self._acting and any(always for _, _, always in self._plain)

    def copies(self, view: MessageView) -> list[Copy]:
        """Return the copies of a message. Raises FilterError.

        One for all rules without an action that match, and one for each that has one, as in Service Bus.
        """
        copies_: list[Copy] = []
        for copies, matches, always in self._plain:
            if always or matches(view):
                copies_ = copies
                break
        if not self._acting:
            return copies_
        return copies_ + [
            Copy(name, apply(actions, view, name)) for name, matches, actions in self._acting if matches(view)
        ]


def apply(actions: Sequence[Action], view: MessageView, rule: str) -> MessageView:
    """Return a message as an action of a rule leaves it, with the rule's name. Raises FilterError."""
    changed = view
    for action in actions:
        # A part of an action sees what those before it did.
        changed = change(action, changed)
    properties = dict(changed.headers.properties)
    named = next((name for name in reversed(properties) if name.lower() == RULE_NAME.lower()), RULE_NAME)
    properties[named] = rule
    return changed.with_headers(
        msgspec.structs.replace(changed.headers, properties=properties), changed.message_id
    )


def change(action: Action, view: MessageView) -> MessageView:
    """Return a message as one part of an action leaves its properties. Raises FilterError."""
    headers, message_id, target = view.headers, view.message_id, action.property
    value = None if action.value is None else action.value(view)
    if target.scope == "sys":
        _check_system(target.name, value)
        if target.name == "message_id":
            return view.with_headers(headers, value)
        return view.with_headers(msgspec.structs.replace(headers, **{target.name: value}), message_id)
    properties = dict(headers.properties)
    named = next((name for name in reversed(properties) if name.lower() == target.name), target.written)
    if action.value is None:
        properties.pop(named, None)
    else:
        if value is not None and type(value) not in KINDS:
            raise FilterError(f"the property {target.written} cannot hold {type(value).__name__}")
        properties[named] = value
    types = {**headers.types, **_types_set(action, named, headers)}
    return view.with_headers(msgspec.structs.replace(headers, properties=properties, types=types), message_id)


def _types_set(action: Action, named: str, headers: Headers) -> dict[str, int | str]:
    """Return the type of a property that an action sets. A value that it computes takes the one that was."""
    if action.code is not None:
        return {named: action.code}
    source = action.source
    if action.value is None or source is None or source.scope != "user":
        return {}
    of = next((name for name in reversed(headers.properties) if name.lower() == source.name), None)
    return {} if of is None or of == named else {named: headers.types.get(of, of)}


def _check_system(field: str, value: Any) -> None:
    if value is not None and type(value) is not str:
        raise FilterError(f"expected text for the system property {field}, got {type(value).__name__}")
    shortest = SHORTEST_IDS.get(field)
    if shortest is not None and value is not None and not shortest <= len(value) <= LONGEST_ID:
        raise FilterError(f"expected {field} of {shortest} to {LONGEST_ID} characters, got {len(value)}")


def encode_rules(rules: Sequence[Rule]) -> bytes:
    """Return rules as bytes."""
    return msgspec.msgpack.encode([_stored(rule) for rule in rules])


def _stored(rule: Rule) -> _Stored:
    kind, text, values = "true", "", {}
    written = {} if isinstance(rule.filter, TrueFilter | FalseFilter) else rule.filter.written
    match rule.filter:
        case FalseFilter():
            kind = "false"
        case SqlFilter(expression=expression, parameters=parameters):
            kind, text, values = "sql", expression, dict(parameters)
        case CorrelationFilter():
            system = {n: v for (scope, n), v in rule.filter.wanted().items() if scope == "sys"}
            kind, text, values = (
                "correlation",
                msgspec.json.encode(system).decode(),
                dict(rule.filter.properties),
            )
    action = rule.action
    return (
        rule.name, kind, text, _pack(values, written),
        None if action is None else action.expression,
        None if action is None else _pack(dict(action.parameters), action.written),
    )  # fmt: skip


def _pack(values: dict[str, Value], written: Mapping[str, str]) -> bytes:
    # Values are those of a message's properties, which have an encoding that keeps their kinds.
    more = msgspec.msgpack.encode(written) if written else None
    return encode_headers(Headers(properties=values, amqp=more))


def _unpack(packed: bytes) -> tuple[dict[str, Value], dict[str, str]]:
    headers = decode_headers(packed)
    return headers.properties, {} if headers.amqp is None else _decode_written(headers.amqp)


def decode_rules(stored: bytes | None) -> tuple[Rule, ...]:
    """Return the rules that `encode_rules` made bytes of."""
    return tuple(map(_restored, _decode(stored))) if stored else ()


def _restored(stored: _Stored) -> Rule:
    name, kind, text, values, action, parameters = stored
    made: Filter = TrueFilter()
    kinds, written = _unpack(values)
    if kind == "false":
        made = FalseFilter()
    elif kind == "sql":
        made = SqlFilter(text, kinds, written)
    elif kind == "correlation":
        made = CorrelationFilter(**msgspec.json.decode(text), properties=kinds, written=written)
    return Rule(name, made, None if action is None else SqlAction(action, *_unpack(parameters or b"\x80")))


@functools.lru_cache(4096)
def compiled(stored: bytes | None) -> CompiledRules:
    """Return stored rules ready to be asked."""
    return CompiledRules(decode_rules(stored))


def judge_of(rule: Rule) -> Callable[[MessageView], Judgement]:
    """Return what says of messages whether a rule matches them, and by which of their properties."""
    filter_ = rule.filter
    if isinstance(filter_, SqlFilter):
        return _judge_of_sql(rule, filter_)
    if isinstance(filter_, CorrelationFilter):
        pairs = list(filter_.wanted().items())

        def compare(view: MessageView) -> Judgement:
            for (scope, name), value in pairs:
                property_value = view.get(scope, name)
                if not equals(property_value, value):
                    return Judgement(
                        rule.name, False, f"{name} is {_told(property_value)}, {_told(value)} is wanted"
                    )
            return Judgement(rule.name, True, "all are equal")

        return compare
    matches = isinstance(filter_, TrueFilter)
    always = Judgement(rule.name, matches, "every message does" if matches else "no message does")
    return lambda view: always


def _judge_of_sql(rule: Rule, filter_: SqlFilter) -> Callable[[MessageView], Judgement]:
    condition, properties = sql().compile_with_properties(filter_.expression, filter_.parameters)
    actions = () if rule.action is None else rule.action.compiled()

    def evaluate(view: MessageView) -> Judgement:
        try:
            truth = condition(view)
            if truth:
                apply(actions, view, rule.name)
        except FilterError as error:
            return Judgement(rule.name, None, str(error))
        values = ", ".join(f"{p.written} is {_value_of(p, view)}" for p in properties)
        why = f"unknown: {values}" if truth is None else values or "always so"
        return Judgement(rule.name, truth is True, why)

    return evaluate


def _value_of(named: Property, view: MessageView) -> str:
    return "computed" if named == COMPUTED else _told(view.value(named))


def _told(value: Value) -> str:
    return "not set" if value is None else shown(value)
