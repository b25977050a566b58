"""AMQP 1.0 values as bytes."""

from __future__ import annotations

import datetime
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from lazaretto.errors import InvalidMessage
from lazaretto.servicebus.amqp.values import (
    Array,
    Char,
    Decimal,
    Described,
    Float,
    SizedInt,
    Symbol,
    Timestamp,
)

NULL: Final = b"\x40"
TRUE: Final = b"\x41"
FALSE: Final = b"\x42"
EMPTY_LIST: Final = b"\x45"

_pack_u16 = struct.Struct(">BH").pack
_pack_u32 = struct.Struct(">BI").pack
_pack_u64 = struct.Struct(">BQ").pack
_pack_i64 = struct.Struct(">Bq").pack
_pack_f32 = struct.Struct(">Bf").pack
_pack_f64 = struct.Struct(">Bd").pack
_pack_sizes = struct.Struct(">BII").pack
_FORMATS: Final = {0x50: "B", 0x51: "b", 0x60: "H", 0x61: "h", 0x70: "I", 0x71: "i", 0x80: "Q", 0x81: "q"}
_SIZED: Final = {code: struct.Struct(f">B{format_}").pack for code, format_ in _FORMATS.items()}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


def boolean(value: bool) -> bytes:
    return TRUE if value else FALSE


def ubyte(value: int) -> bytes:
    return bytes((0x50, value))


def ushort(value: int) -> bytes:
    return _pack_u16(0x60, value)


def uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if value < 256 else _pack_u32(0x70, value)


def ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    return bytes((0x53, value)) if value < 256 else _pack_u64(0x80, value)


def long(value: int) -> bytes:
    """Return a whole number; it is unsigned if it is too large for others."""
    return _pack_i64(0x81, value) if value < 1 << 63 else _pack_u64(0x80, value)


def timestamp(value: int) -> bytes:
    return _pack_i64(0x83, value)


def binary(value: bytes) -> bytes:
    return _varying(0xA0, value)


def string(value: str) -> bytes:
    return _varying(0xA1, value.encode())


def symbol(value: str) -> bytes:
    return _varying(0xA3, value.encode("ascii"))


def _varying(short: int, raw: bytes) -> bytes:
    size = len(raw)
    return bytes((short, size)) + raw if size < 256 else _pack_u32(short + 0x10, size) + raw


def _compound(short: int, raw: bytes, count: int) -> bytes:
    size = len(raw)
    if size < 255 and count < 256:
        return bytes((short, size + 1, count)) + raw
    return _pack_sizes(short + 0x10, size + 4, count) + raw


def list_of(parts: Iterable[bytes]) -> bytes:
    """Return a list of encoded values."""
    parts = tuple(parts)
    return _compound(0xC0, b"".join(parts), len(parts)) if parts else EMPTY_LIST


def map_of(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a map of encoded keys and values."""
    parts = [part for pair in pairs for part in pair]
    return map_of_raw(b"".join(parts), len(parts))


def map_of_raw(raw: bytes, count: int) -> bytes:
    """Return a map of so many keys and values, one encoded behind the other."""
    return _compound(0xC1, raw, count)


def symbol_map(values: Mapping[str, Any]) -> bytes:
    """Return a map whose keys are symbols: properties of links and filters."""
    return map_of((symbol(key), encode(value)) for key, value in values.items())


def symbols(names: Iterable[str]) -> bytes:
    """Return an array of symbols."""
    raw = [name.encode("ascii") for name in names]
    if any(len(one) > 255 for one in raw):
        items, code = [len(one).to_bytes(4, "big") + one for one in raw], 0xB3
    else:
        items, code = [bytes((len(one),)) + one for one in raw], 0xA3
    return _compound(0xE0, bytes((code,)) + b"".join(items), len(raw))


def described(code: int, parts: Iterable[bytes]) -> bytes:
    """Return a list of encoded values, described by a code below 256."""
    return bytes((0x00, 0x53, code)) + list_of(parts)


def encode(value: Any) -> bytes:
    """Return any value as bytes, by its type. Raises InvalidMessage for what AMQP has no type for."""
    write = _WRITERS.get(type(value)) or _writer_of_base(value)
    try:
        return write(value)
    except (struct.error, ValueError, OverflowError) as error:
        raise InvalidMessage(f"expected a value within the range of its AMQP type: {error}") from None


def _writer_of_base(value: Any) -> Callable[[Any], bytes]:
    for kind, write in _WRITERS.items():
        if isinstance(value, kind):
            return write
    raise InvalidMessage(f"expected a value that AMQP has a type for, got {type(value).__name__}")


def _write_sized(value: SizedInt) -> bytes:
    return _SIZED[value.code](value.code, value)


def _write_decimal(value: Decimal) -> bytes:
    codes = {4: 0x74, 8: 0x84, 16: 0x94}
    if len(value.raw) not in codes:
        raise ValueError(f"a decimal has 4, 8 or 16 bytes, not {len(value.raw)}")
    return bytes((codes[len(value.raw)],)) + value.raw


def _write_datetime(value: datetime.datetime) -> bytes:
    if value.tzinfo is None:
        raise ValueError("a time needs a time zone")
    return timestamp((value - _EPOCH) // _MILLISECOND)


def _write_dict(value: Mapping[Any, Any]) -> bytes:
    parts: list[bytes] = []
    for key, item in value.items():
        parts += encode(key), encode(item)
    return _compound(0xC1, b"".join(parts), len(parts))


def _write_array(value: Array) -> bytes:
    begin = b"" if value.descriptor is None else b"\x00" + encode(value.descriptor)
    items = [_write_item(value.code, item) for item in value.items]
    return _compound(0xE0, begin + bytes((value.code,)) + b"".join(items), len(items))


def _write_item(code: int, item: Any) -> bytes:
    """Return an item of an array: without a constructor, and as wide as all others."""
    if code == 0x40:
        return b""
    if code in _ITEM_FORMATS:
        return struct.pack(_ITEM_FORMATS[code], item)
    raw = encode(item)
    if raw[0] == 0x45:
        raw = b"\xc0\x01\x00"
    if raw[0] == code:
        return raw[1:]
    if raw[0] | 0x10 != code:
        raise ValueError(f"an array of the constructor 0x{code:02x} holds no {type(item).__name__}")
    if raw[0] < 0xC0:
        return struct.pack(">I", raw[1]) + raw[2:]
    return struct.pack(">II", raw[1] + 3, raw[2]) + raw[3:]


_ITEM_FORMATS: Final = {0x56: "?", 0x72: ">f", 0x82: ">d", 0x83: ">q"} | {
    code: f">{format_}" for code, format_ in _FORMATS.items()
}


_WRITERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda value: NULL,
    bool: boolean,
    Symbol: symbol,
    Char: lambda value: _pack_u32(0x73, ord(value)),
    str: string,
    SizedInt: _write_sized,
    Timestamp: timestamp,
    int: long,
    Float: lambda value: _pack_f32(0x72, value),
    float: lambda value: _pack_f64(0x82, value),
    bytes: binary,
    bytearray: lambda value: binary(bytes(value)),
    memoryview: lambda value: binary(bytes(value)),
    uuid.UUID: lambda value: b"\x98" + value.bytes,
    datetime.datetime: _write_datetime,
    dict: _write_dict,
    list: lambda value: list_of(map(encode, value)),
    Decimal: _write_decimal,
    Array: _write_array,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
}
