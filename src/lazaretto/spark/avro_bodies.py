"""Avro bodies as values of a schema: one datum each, without a file's or a registry's header."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from lazaretto.errors import InvalidOption
from lazaretto.model.installing import install

_PLAIN = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
#: Digits of Spark's decimals.
_MOST_DIGITS = 38
_TIME = pa.timestamp("us", tz="UTC")
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": _TIME,
    "timestamp-micros": _TIME,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def _library() -> Any:
    try:
        return importlib.import_module("fastavro")
    except ImportError:
        raise InvalidOption(f'body="avro" needs fastavro: {install("avro")}') from None


def _parsed(text: str) -> Any:
    fastavro = _library()
    try:
        return fastavro.parse_schema(_without_uuids(json.loads(text)), expand=True)
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise InvalidOption(f"body_schema is no Avro schema: {type(error).__name__}: {error}") from error
    except fastavro.schema.UnknownType as error:
        raise InvalidOption(f"body_schema is no Avro schema: the type {error.name!r} is not known") from error


def _without_uuids(schema: Any) -> Any:
    """Return a schema in which a UUID is what it is written as: Arrow takes no object for it."""
    if isinstance(schema, list):
        return [_without_uuids(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if (name, value) != ("logicalType", "uuid")}
    return {name: _without_uuids(value) for name, value in kept.items()}


def avro_type(text: str) -> pa.StructType:
    """Return the type of a record's values. Raises InvalidOption: it is no schema, or has no such type."""
    kind, _ = _kind_of(_parsed(text), "$")
    if not pa.types.is_struct(kind):
        raise InvalidOption("body_schema is no Avro schema of a record")
    return kind


def _kind_of(schema: Any, path: str) -> tuple[pa.DataType, bool]:
    """Return a type, and whether it may be null."""
    if isinstance(schema, list):
        others = [one for one in schema if _name(one) != "null"]
        if len(others) != 1:
            raise InvalidOption(f"a union of several types has no column type: {path}")
        return _kind_of(others[0], path)[0], len(others) < len(schema)
    name, facts = _name(schema), schema if isinstance(schema, Mapping) else {}
    logical = facts.get("logicalType")
    if logical == "decimal":
        precision, scale = facts.get("precision"), facts.get("scale", 0)
        if not isinstance(precision, int) or not 1 <= precision <= _MOST_DIGITS:
            raise InvalidOption(
                f"expected a decimal to have a precision from 1 to {_MOST_DIGITS}, got {precision!r}: {path}"
            )
        return pa.decimal128(precision, scale), False
    if logical in _LOGICAL:
        return _LOGICAL[logical], False
    if name in _PLAIN and logical is None:
        return _PLAIN[name], False
    if name == "enum":
        return pa.string(), False
    if name == "fixed" and facts.get("size"):
        return pa.binary(), False
    if name == "record" and facts.get("fields"):
        return pa.struct([_field(one["name"], one["type"], path) for one in facts["fields"]]), False
    # Each item takes a byte at least: a few bytes that promise billions of items end with an error.
    if name == "array":
        return pa.list_(_field("item", facts["items"], path)), False
    if name == "map":
        return pa.map_(pa.string(), _field("value", facts["values"], path)), False
    raise InvalidOption(f"no column type for Avro's {logical or name}: {path}")


def _field(name: str, schema: Any, path: str) -> pa.Field:
    kind, nullable = _kind_of(schema, f"{path}.{name}")
    return pa.field(name, kind, nullable)


def _name(schema: Any) -> str:
    return str(schema["type"] if isinstance(schema, Mapping) else schema)


def avro_decoder(text: str) -> Callable[[bytes], Any]:
    """Return a function that makes a body a dict. It raises ValueError with the path to the field."""
    parsed, read = _parsed(text), _library().schemaless_reader
    schema = _with_numbers(parsed)
    has_enums = schema != parsed

    def run(body: bytes) -> Any:
        stream = io.BytesIO(body)
        try:
            value = read(stream, schema)
            if has_enums:
                value = _with_symbols(value, parsed, "$")
        except _NoSymbol as error:
            raise ValueError(f"the body is not Avro of this schema: {error}") from None
        except Exception as error:
            where = _where(read, io.BytesIO(body), schema, "$")
            raise ValueError(f"the body is not Avro of this schema: {_told(error)} - at `{where}`") from None
        if stream.tell() < len(body):
            raise ValueError(
                f"the body is not Avro of this schema: {len(body) - stream.tell()} bytes too many - at `$`"
            )
        return value

    return run


class _NoSymbol(ValueError):
    """A number stands for no symbol of its enum."""


def _with_numbers(schema: Any) -> Any:
    """Return a schema in which enums are their numbers: the library takes those below zero, too."""
    if isinstance(schema, list):
        return [_with_numbers(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    if schema["type"] == "enum":
        return "int"
    inner = {name: _with_numbers(schema[name]) for name in ("items", "values") if name in schema}
    if "fields" in schema:
        inner["fields"] = [{**one, "type": _with_numbers(one["type"])} for one in schema["fields"]]
    kind = schema["type"] if isinstance(schema["type"], str) else _with_numbers(schema["type"])
    return {**schema, **inner, "type": kind}


def _with_symbols(value: Any, schema: Any, path: str) -> Any:
    """Return a value with the symbols of its enums. Raises _NoSymbol."""
    if isinstance(schema, list):
        schema = next((one for one in schema if _name(one) != "null"), "null")
    if value is None or not isinstance(schema, Mapping):
        return value
    match schema["type"]:
        case "enum":
            if not 0 <= value < len(schema["symbols"]):
                raise _NoSymbol(f"no symbol has the number {value} - at `{path}`")
            return schema["symbols"][value]
        case "record":
            for one in schema["fields"]:
                name = one["name"]
                value[name] = _with_symbols(value[name], one["type"], f"{path}.{name}")
            return value
        case "array":
            return [_with_symbols(one, schema["items"], f"{path}[{at}]") for at, one in enumerate(value)]
        case "map":
            return {key: _with_symbols(one, schema["values"], f"{path}.{key}") for key, one in value.items()}
    return value


def _told(error: Exception) -> str:
    # What a library says of a value may have the value in it.
    return "it ends too early" if isinstance(error, EOFError) else type(error).__name__


def _where(read: Any, stream: io.BytesIO, schema: Any, path: str) -> str:
    """Return the path to the first field that cannot be read."""
    if _name(schema) != "record" or isinstance(schema, list):
        return path
    for one in schema["fields"]:
        before = stream.tell()
        try:
            read(stream, one["type"])
        except Exception:
            stream.seek(before)
            return _where(read, stream, one["type"], f"{path}.{one['name']}")
    return path
