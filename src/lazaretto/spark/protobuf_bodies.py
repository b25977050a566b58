"""Protobuf bodies as values of a generated message class."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lazaretto.errors import InvalidOption
from lazaretto.model.installing import install

_TIME = pa.timestamp("us", tz="UTC")


def _library() -> Any:
    try:
        return importlib.import_module("google.protobuf.descriptor").FieldDescriptor
    except ImportError:
        raise InvalidOption(f'body="protobuf" needs protobuf: {install("protobuf")}') from None


def _class(reference: str) -> Any:
    _library()
    module, _, name = reference.partition(":")
    try:
        value: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidOption(
            f"expected body_schema to be module:Class of protobuf, got {reference!r}: {error}"
        ) from error
    if not hasattr(value, "DESCRIPTOR") or not hasattr(value, "FromString"):
        raise InvalidOption(f"expected body_schema to be module:Class of protobuf, got {reference!r}")
    return value


def protobuf_type(reference: str) -> pa.StructType:
    """Return the type of a message's values. Raises InvalidOption: no such class, or no such type."""
    kind = _struct(_class(reference).DESCRIPTOR, "$", ())
    if not pa.types.is_struct(kind):
        raise InvalidOption(f"a body that is a {kind} alone has no columns: {reference!r}")
    return kind


def _struct(descriptor: Any, path: str, above: tuple[str, ...]) -> pa.DataType:
    if descriptor.full_name == "google.protobuf.Timestamp":
        return _TIME
    if descriptor.full_name in above:
        raise InvalidOption(f"a message that contains itself has no column type: {path}")
    if not descriptor.fields:
        raise InvalidOption(f"a message without fields has no column type: {path}")
    inner = (*above, descriptor.full_name)
    return pa.struct([(one.name, _kind(one, f"{path}.{one.name}", inner)) for one in descriptor.fields])


def _kind(field: Any, path: str, above: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_kind(key, path, above), _kind(value, path, above))
    kind = _struct(field.message_type, path, above) if field.message_type else _plain(field)
    return pa.list_(kind) if field.is_repeated else kind


def _plain(field: Any) -> pa.DataType:
    of = _library()
    kinds = {
        of.CPPTYPE_INT32: pa.int32(), of.CPPTYPE_INT64: pa.int64(), of.CPPTYPE_UINT32: pa.int64(),
        of.CPPTYPE_UINT64: pa.decimal128(20, 0), of.CPPTYPE_DOUBLE: pa.float64(),
        of.CPPTYPE_FLOAT: pa.float32(), of.CPPTYPE_BOOL: pa.bool_(), of.CPPTYPE_ENUM: pa.string(),
    }  # fmt: skip
    return kinds.get(field.cpp_type) or (pa.binary() if field.type == of.TYPE_BYTES else pa.string())


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def protobuf_decoder(reference: str) -> Callable[[bytes], Any]:
    """Return a function that makes a body a dict. It raises ValueError."""
    message = _class(reference)

    def run(body: bytes) -> Any:
        try:
            parsed = message.FromString(body)
        except Exception as error:
            # The library knows no field: what it cannot read has none.
            raise ValueError(
                f"the body is not Protobuf of {message.DESCRIPTOR.full_name}: {type(error).__name__} - at `$`"
            ) from None
        missing = parsed.FindInitializationErrors()
        if missing:
            raise ValueError(f"a required field is missing - at `$.{missing[0]}`")
        return _value(parsed)

    return run


def _value(message: Any) -> Any:
    """Return a message as Arrow takes it. What has presence and is not set is null."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        return message.seconds * 1_000_000 + message.nanos // 1_000
    return {one.name: _field_value(message, one) for one in message.DESCRIPTOR.fields}


def _field_value(message: Any, field: Any) -> Any:
    content = getattr(message, field.name)
    if _is_map(field):
        value = field.message_type.fields_by_name["value"]
        return [(key, _one(content[key], value)) for key in content]
    if field.is_repeated:
        return [_one(one, field) for one in content]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(content, field)


def _one(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return _value(value)
    if field.enum_type is not None:
        member = field.enum_type.values_by_number.get(value)
        return str(value) if member is None else member.name
    return value
