"""Rules of subscriptions as AMQP has them, each made from the other. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lazaretto.model.entities import EntityPath
from lazaretto.model.filters.rules import CorrelationFilter, FalseFilter, Filter, Rule, SqlAction, SqlFilter
from lazaretto.servicebus.amqp import AmqpError
from lazaretto.servicebus.amqp.conditions import DECODE_ERROR, NOT_ALLOWED
from lazaretto.servicebus.amqp.values import Byte, Described, Float, Int, Short, UByte, UInt, ULong, UShort
from lazaretto.servicebus.conversions import properties_of

_SUBSCRIPTIONS: Final = "/subscriptions/"
#: Descriptors of lists.
_RULE, _NO_ACTION, _SQL_ACTION = 0x13700000004, 0x13700000005, 0x13700000006
_SQL, _TRUE, _FALSE, _CORRELATION = 0x1370000006, 0x1370000007, 0x1370000008, 0x1370000009
#: Service Bus's level of SQL.
_LEVEL: Final = Int(20)
#: Types of numbers by what a rule's description calls them.
_KINDS: Final[Mapping[type, str]] = {
    Byte: "byte", UByte: "unsignedByte", Short: "short", UShort: "unsignedShort", Int: "int",
    UInt: "unsignedInt", int: "long", ULong: "unsignedLong", Float: "float",
}  # fmt: skip
#: Fields of a correlation filter, in the order of its list, by the names that requests use.
_FIELDS: Final = {
    "correlation-id": "correlation_id",
    "message-id": "message_id",
    "to": "to",
    "reply-to": "reply_to",
    "label": "subject",
    "session-id": "session_id",
    "reply-to-session-id": "reply_to_session_id",
    "content-type": "content_type",
}


def subscription_of(path: str) -> tuple[str, str]:
    """Return the topic and the name of a subscription. Raises AmqpError for any other entity."""
    path_ = str(EntityPath.parse(path))
    at = path_.lower().rfind(_SUBSCRIPTIONS)
    if at < 0:
        raise AmqpError(NOT_ALLOWED, f"expected a subscription, which has rules, got {path!r}")
    return path_[:at], path_[at + len(_SUBSCRIPTIONS) :]


def rule_of(name: Any, given: Any) -> Rule:
    """Return the rule that a request describes. Raises AmqpError, InvalidOption, FilterSyntaxError."""
    if not isinstance(name, str) or not isinstance(given, Mapping):
        raise AmqpError(DECODE_ERROR, "expected a rule's name to be text and its description to be a map")
    action = given.get("sql-rule-action")
    return Rule(str(name), _filter_of(given), None if action is None else SqlAction(_expression(action)))


def _filter_of(given: Mapping[Any, Any]) -> Filter:
    if "sql-filter" in given:
        return SqlFilter(_expression(given["sql-filter"]))
    correlation = given.get("correlation-filter")
    if not isinstance(correlation, Mapping):
        raise AmqpError(DECODE_ERROR, "expected a rule to have a sql-filter or a correlation-filter")
    fields: dict[str, Any] = {ours: correlation.get(theirs) for theirs, ours in _FIELDS.items()}
    found: Any = correlation.get("properties")
    properties: Mapping[Any, Any] = found if isinstance(found, Mapping) else {}
    written = {
        str(name): f"{_KINDS[type(value)]} {value}"
        for name, value in properties.items()
        if type(value) in _KINDS
    }
    return CorrelationFilter(**fields, properties=properties_of(properties), written=written)


def _expression(part: Any) -> str:
    value = part.get("expression") if isinstance(part, Mapping) else None
    if not isinstance(value, str):
        raise AmqpError(DECODE_ERROR, "expected an expression as text in a map, got something else")
    return str(value)


def described_rule(rule: Rule) -> Described:
    """Return a rule as an answer lists it: without its SQL's parameters and its age, which is not known."""
    action = (
        Described(ULong(_NO_ACTION), [])
        if rule.action is None
        else Described(ULong(_SQL_ACTION), [rule.action.expression, _LEVEL])
    )
    return Described(ULong(_RULE), [_described_filter(rule.filter), action, rule.name, None])


def _of_kind(value: Any, written: str) -> Any:
    """Return a value with the type that a client gave it."""
    kind = written.partition(" ")[0]
    made = next((one for one, name in _KINDS.items() if name == kind), None)
    return value if made is None else made(value)


def _described_filter(filter_: Filter) -> Described:
    if isinstance(filter_, SqlFilter):
        return Described(ULong(_SQL), [filter_.expression, _LEVEL])
    if isinstance(filter_, CorrelationFilter):
        fields = [getattr(filter_, name) for name in _FIELDS.values()]
        properties = {
            name: _of_kind(value, filter_.written.get(name, "")) for name, value in filter_.properties.items()
        }
        return Described(ULong(_CORRELATION), [*fields, properties])
    return Described(ULong(_FALSE if isinstance(filter_, FalseFilter) else _TRUE), [])
