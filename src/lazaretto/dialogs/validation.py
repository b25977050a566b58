"""Validates a body against its message type: empty, JSON, JSON with a schema, XML."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from lazaretto.errors import InvalidOption
from lazaretto.model.dialog_contracts import MessageType, Validation
from lazaretto.model.installing import install
from lazaretto.tools.schemas import compile_schema

_decode_json = msgspec.json.Decoder().decode


def problem_with(message_type: MessageType, body: bytes) -> str | None:
    """Return what is wrong with a body, or None. Raises InvalidOption where a library is missing."""
    return _CHECKS[message_type.validation](message_type, body)


def _nothing(_type: MessageType, _body: bytes) -> str | None:
    return None


def _empty(message_type: MessageType, body: bytes) -> str | None:
    return f"{message_type.name!r} has no body, got {len(body)} bytes" if body else None


def _decoded(message_type: MessageType, body: bytes) -> tuple[Any, str | None]:
    """Return what a body is as JSON, or what is wrong with it."""
    try:
        return _decode_json(body), None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, f"{message_type.name!r} must be well-formed JSON: {error}"


def _json(message_type: MessageType, body: bytes) -> str | None:
    return _decoded(message_type, body)[1]


def _json_schema(message_type: MessageType, body: bytes) -> str | None:
    value, problem = _decoded(message_type, body)
    if problem is None:
        try:
            encoded = msgspec.json.encode(message_type.schema, order="deterministic")
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidOption(f"the schema of {message_type.name!r} is not JSON: {error}") from None
        fault = compiled(encoded)(value)
        problem = None if fault is None else f"{message_type.name!r} does not meet its schema: {fault}"
    return problem


@functools.lru_cache(maxsize=256)
def compiled(schema: bytes) -> Callable[[Any], str | None]:
    """Return a schema, given as JSON, as a function that says what is wrong. Raises InvalidOption."""
    return compile_schema(_decode_json(schema))


def _xml(message_type: MessageType, body: bytes) -> str | None:
    try:
        from defusedxml.common import DefusedXmlException
        from defusedxml.ElementTree import ParseError, fromstring
    except ImportError:
        raise InvalidOption(f"checking XML needs defusedxml: {install('schema')}") from None
    try:
        # A document type may name files and grow without bounds, and is never needed here.
        fromstring(body, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        return f"{message_type.name!r} must be well-formed XML without a document type: {error}"
    return None


_CHECKS: dict[Validation, Callable[[MessageType, bytes], str | None]] = {
    Validation.NONE: _nothing,
    Validation.EMPTY: _empty,
    Validation.JSON: _json,
    Validation.JSON_SCHEMA: _json_schema,
    Validation.XML: _xml,
}
