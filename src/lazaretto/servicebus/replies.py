"""Answers to requests, with the AMQP types that Service Bus gives their fields. Pure.

Some clients read each field as one type, and fail on any other that would say the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from lazaretto.servicebus.amqp import Properties, Section, encode_section
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.values import Array, Int, Symbol, Timestamp

_LONG, _TIMESTAMP, _STRING = 0x81, 0x83, 0xB1
TRACKING_ID: Final = "com.microsoft:tracking-id"


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


class Answer(NamedTuple):
    """A status, its text, and the fields of an answer's body; None: it has no body."""

    status: int
    text: str
    body: Mapping[str, Any] | None = None
    condition: str | None = None


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
