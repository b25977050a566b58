"""Answers to requests, in the AMQP types that Service Bus gives their fields, and rules as AMQP has them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from lazaretto.model.entities import EntityPath
from lazaretto.model.filters.rules import CorrelationFilter, FalseFilter, Filter, Rule, SqlAction, SqlFilter
from lazaretto.servicebus.amqp import AmqpError, Properties, Section, encode_section
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.conditions import DECODE_ERROR, NOT_ALLOWED
from lazaretto.servicebus.amqp.values import (
    Array,
    Byte,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from lazaretto.servicebus.conversions import properties_of

_LONG, _TIMESTAMP, _STRING = 0x81, 0x83, 0xB1
TRACKING_ID: Final = "com.microsoft:tracking-id"

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


class Answer(NamedTuple):
    """A status, its text, and the fields of an answer's body; None: it has no body."""

    status: int
    text: str
    body: Mapping[str, Any] | None = None
    condition: str | None = None


def _as_it_is(value: Any) -> Any:
    return value


#: What gives each field its type; those that are bytes, UUIDs, lists or maps have it.
_TYPES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "statusCode": Int,
    "status-code": Int,
    "statusDescription": str,
    "status-description": str,
    "errorCondition": Symbol,
    "error-condition": Symbol,
    TRACKING_ID: str,
    "expiration": Timestamp,
    "expirations": lambda moments: Array(_TIMESTAMP, list(moments)),
    "sequence-numbers": lambda numbers: Array(_LONG, list(numbers)),
    "sessions-ids": lambda ids: Array(_STRING, list(ids)),
    "skip": Int,
    "message-count": Int,
    "session-state": _as_it_is,
    "messages": _as_it_is,
    "message": _as_it_is,
    "lock-token": _as_it_is,
    "rules": _as_it_is,
}


def typed_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an answer, each with its type. Raises KeyError for one that has none here."""
    return {name: _TYPES[name](value) for name, value in fields.items()}


def encode_answer(said: Answer, message_id: Any, tracking: Any, *, token: bool) -> bytes:
    """Return an answer as a message.

    `message_id`: of the request, whose type the answer keeps. `tracking`: the id that the request was given
    to be followed by, if it is text. `token`: answers to tokens have names of their own.
    """
    status, text, condition = (
        ("status-code", "status-description", "error-condition")
        if token
        else ("statusCode", "statusDescription", "errorCondition")
    )
    properties: dict[str, Any] = {
        status: said.status,
        text: said.text,
        TRACKING_ID: tracking if isinstance(tracking, str) else str(uuid.uuid4()),
    }
    if said.condition is not None:
        properties[condition] = said.condition
    return b"".join(
        (
            encode_composite(Properties(correlation_id=message_id)),
            encode_section(Section.APPLICATION_PROPERTIES, typed_fields(properties)),
            encode_section(Section.VALUE, None if said.body is None else typed_fields(said.body)),
        )
    )


def subscription_of(path: str) -> tuple[str, str]:
    """Return the topic and the name of a subscription. Raises AmqpError for any other entity."""
    path_ = str(EntityPath.parse(path))
    at = path_.lower().rfind(_SUBSCRIPTIONS)
    if at < 0:
        raise AmqpError(NOT_ALLOWED, f"expected a subscription, which has rules, got {path!r}")
    return path_[:at], path_[at + len(_SUBSCRIPTIONS) :]


def rule_of(name: Any, description: Any) -> Rule:
    """Return the rule that a request describes. Raises AmqpError, InvalidOption, FilterSyntaxError."""
    if not isinstance(name, str) or not isinstance(description, Mapping):
        raise AmqpError(DECODE_ERROR, "expected a rule's name to be text and its description to be a map")
    action = description.get("sql-rule-action")
    return Rule(
        str(name), _filter_of(description), None if action is None else SqlAction(_expression(action))
    )


def _filter_of(description: Mapping[Any, Any]) -> Filter:
    if "sql-filter" in description:
        return SqlFilter(_expression(description["sql-filter"]))
    correlation = description.get("correlation-filter")
    if not isinstance(correlation, Mapping):
        raise AmqpError(DECODE_ERROR, "expected a rule to have a sql-filter or a correlation-filter")
    fields: dict[str, Any] = {ours: correlation.get(theirs) for theirs, ours in _FIELDS.items()}
    texts: Any = correlation.get("properties")
    properties: Mapping[Any, Any] = texts if isinstance(texts, Mapping) else {}
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
