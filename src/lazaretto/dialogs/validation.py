"""Whether a body is what its message type says: empty, JSON, JSON of a schema, XML."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from lazaretto.contracts import MessageType, Validation
from lazaretto.errors import InvalidOption

_decode_json = msgspec.json.Decoder().decode


def problem_with(message_type: MessageType, body: bytes) -> str | None:
    """Return what is wrong with a body, or None. Raises InvalidOption where a library is missing."""
    return _CHECKS[message_type.validation](message_type, body)


def _nothing(_type: MessageType, _body: bytes) -> str | None:
    return None


def _empty(message_type: MessageType, body: bytes) -> str | None:
    return f"{message_type.name!r} has no body, got {len(body)} bytes" if body else None


def _json(message_type: MessageType, body: bytes) -> str | None:
    try:
        _decode_json(body)
    except (msgspec.DecodeError, RecursionError) as error:
        return f"{message_type.name!r} must be well-formed JSON: {error}"
    return None


def _json_schema(message_type: MessageType, body: bytes) -> str | None:
    try:
        value = _decode_json(body)
    except (msgspec.DecodeError, RecursionError) as error:
        return f"{message_type.name!r} must be well-formed JSON: {error}"
    check, invalid = compiled(msgspec.json.encode(message_type.schema, order="deterministic"))
    try:
        check(value)
    except invalid as error:
        return f"{message_type.name!r} does not meet its schema: {error}"
    return None


@functools.lru_cache(maxsize=256)
def compiled(schema: bytes) -> tuple[Callable[[Any], Any], type[Exception]]:
    """Return a schema, given as JSON, as a function, and the error it raises. Raises InvalidOption."""
    try:
        import fastjsonschema
    except ImportError:
        raise InvalidOption(
            "checking JSON against a schema needs fastjsonschema: pip install 'lazaretto[schema]'"
        ) from None
    try:
        return fastjsonschema.compile(_decode_json(schema)), fastjsonschema.JsonSchemaValueException
    except fastjsonschema.JsonSchemaDefinitionException as error:
        raise InvalidOption(f"the schema is not one of JSON Schema: {error}") from None


def _xml(message_type: MessageType, body: bytes) -> str | None:
    try:
        from defusedxml.common import DefusedXmlException
        from defusedxml.ElementTree import ParseError, fromstring
    except ImportError:
        raise InvalidOption("checking XML needs defusedxml: pip install 'lazaretto[schema]'") from None
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
