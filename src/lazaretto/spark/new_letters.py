"""Rows as dead letters: what can be a field of a message is one, and the rest stands beside it. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from lazaretto.engine.claims.outbox import NewLetter
from lazaretto.engine.messages.prepare import prepare
from lazaretto.errors import InvalidMessage, LazarettoError
from lazaretto.model.failure import LONGEST_STACK, LONGEST_TEXT, LONGEST_TYPE, Failure, failure_of, shorten
from lazaretto.model.headers import decode_headers, encode_headers
from lazaretto.model.messages import Message
from lazaretto.model.policy import Outcome
from lazaretto.store.records.messages import NewMessage

#: Properties of a letter: its body was null; what of its row cannot be a field of a message, as JSON.
NULL_BODY, REST = "lazaretto.null_body", "lazaretto.row"
#: How a property begins that says where a row came from.
ORIGIN = "origin"
#: The column of results of `quarantine` that says so, a name that a source's own columns hardly have.
ROW_ORIGIN = "row_origin"
#: Columns that say why a row is rejected, of `subqueue=dead_letter`.
REASONS = ("reason", "description", "error_type", "error_message", "stack", "origin")
#: The reason of a row that is no message, and of one that others rejected without one.
INVALID, REJECTED = "InvalidMessage", "Rejected"


def bad_row(row: Mapping[str, Any], error: InvalidMessage) -> NewLetter:
    """Return the letter of a row that is no message."""
    failure = failure_of(error)
    assert failure is not None
    # Its own stack would be one of this package.
    failure = Failure(failure.type, failure.message)
    return NewLetter(kept(row), INVALID, str(error), failure, "spark", Outcome.INVALID.value)


def rejected_row(row: Mapping[str, Any]) -> NewLetter:
    """Return the letter of a row that somebody has rejected, with columns that say why."""
    fields = dict(row)
    why = {name: fields.pop(name, None) for name in REASONS}
    origin = why.pop("origin")
    texts = {name: None if value is None else str(value) for name, value in why.items()}
    failure = None
    if texts["error_type"] or texts["error_message"] or texts["stack"]:
        failure = Failure(
            shorten(texts["error_type"] or "Error", LONGEST_TYPE),
            _short(texts["error_message"], LONGEST_TEXT),
            _short(texts["stack"], LONGEST_STACK),
        )
    message = kept(fields, origin_properties(origin))
    return NewLetter(message, texts["reason"] or REJECTED, texts["description"], failure, "spark")


def _short(text: str | None, longest: int) -> str | None:
    return None if text is None else shorten(text, longest)


def origin_properties(origin: Any) -> dict[str, Any]:
    """Return properties that say where a row came from: a text, a struct or a map."""
    if origin is None:
        return {}
    pairs = dict(origin) if isinstance(origin, list | dict) else {"": origin}
    return {f"{ORIGIN}.{name}" if name else ORIGIN: value for name, value in pairs.items()}


def kept(
    row: Mapping[str, Any], more: Mapping[str, Any] | None = None, whole: Mapping[str, Any] | None = None
) -> NewMessage:
    """Return a row as the message of a letter, whatever is wrong with it.

    `more`: properties of our own; `whole`: those that are kept whatever their size.
    """
    fields = dict(row)
    body = fields.pop("body", None)
    own = {NULL_BODY: True} if body is None else {}
    properties = {**dict(fields.pop("properties", None) or {}), **(more or {}), **own}
    good = {name: value for name, value in fields.items() if value is not None}
    made = _prepared(properties=properties, **good)
    if made is None:
        made = _without_unfit(good, properties)
    if whole:
        made = _with_properties(made, whole)
    return msgspec.structs.replace(made, body=_content(body))


def _content(body: Any) -> bytes:
    if body is None or isinstance(body, bytes | bytearray | memoryview):
        return bytes(body or b"")
    return str(body).encode("utf-8", "backslashreplace")


def _without_unfit(fields: Mapping[str, Any], properties: Mapping[str, Any]) -> NewMessage:
    """Return a message of what it can have; what it cannot is JSON in a property, whatever its size."""
    rest = {name: value for name, value in fields.items() if _prepared(**{name: value}) is None}
    made = prepare(Message(b"", **{name: value for name, value in fields.items() if name not in rest}))
    fit: Mapping[str, Any] = properties
    # Nearly all can have all of them.
    if _prepared(properties=properties) is None:
        fit = {name: value for name, value in properties.items() if _prepared(properties={name: value})}
        unfit = {name: value for name, value in properties.items() if name not in fit}
        if unfit:
            rest["properties"] = unfit
    more = {REST: msgspec.json.encode(_jsonable(rest)).decode()} if rest else {}
    return _with_properties(made, {**fit, **more})


def _with_properties(message: NewMessage, more: Mapping[str, Any]) -> NewMessage:
    headers = decode_headers(message.headers)
    headers = msgspec.structs.replace(headers, properties={**headers.properties, **more})
    return msgspec.structs.replace(message, headers=encode_headers(headers))


def _prepared(**fields: Any) -> NewMessage | None:
    """Return a message with these fields, None if it cannot have one of them."""
    try:
        return prepare(Message(b"", **fields))
    except (LazarettoError, TypeError, ValueError):
        return None


def _jsonable(value: Any) -> Any:
    """Return a value as JSON can have it, bytes as Base64."""
    if isinstance(value, Mapping):
        return {str(name): _jsonable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value if value is None or isinstance(value, bool | int | float) else str(value)
