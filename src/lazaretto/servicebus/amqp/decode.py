"""AMQP 1.0 values from bytes.

A reader takes the bytes, the place behind the constructor and the depth, and returns the value and the place
where it ends. A table of readers has one for each constructor, and so says which values may stand in a place.
A reader may fail with any of MISREAD; `read` and its like turn these into a DecodeError.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from lazaretto.servicebus.amqp.conditions import DecodeError
from lazaretto.servicebus.amqp.values import (
    Array,
    Byte,
    Char,
    Decimal,
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

#: Maximum depth of values within values.
MOST_DEPTH: Final = 32
#: Maximum number of items of a list, map or array.
MOST_ITEMS: Final = 65_536
#: Maximum number of items of an array whose items take no bytes.
MOST_EMPTY_ITEMS: Final = 1_024

Reader: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]
Table: TypeAlias = list[Reader]
Bounds: TypeAlias = Callable[[bytes, int], tuple[int, int, int]]

#: What reading past the end, or a value out of its range, raises.
MISREAD: Final = (IndexError, struct.error, ValueError, OverflowError, RecursionError)

_u32 = struct.Struct(">I").unpack_from


def read(data: bytes, place: int, table: Table) -> tuple[Any, int]:
    """Return the value at a place, and where it ends. Raises DecodeError for anything else."""
    try:
        return table[data[place]](data, place + 1, 0)
    except MISREAD as error:
        raise DecodeError(f"expected an AMQP value at byte {place}, got other bytes: {error}") from None


def decode(data: bytes) -> Any:
    """Return the value that the bytes are, with the type that it was sent with. Raises DecodeError."""
    value, end = read(data, 0, EXACT)
    if end != len(data):
        raise DecodeError(f"expected one AMQP value of {end} bytes, got {len(data)} bytes")
    return value


def skip(data: bytes, place: int, depth: int = 0) -> int:
    """Return where the value at a place ends, without reading it. Raises DecodeError."""
    try:
        code = data[place]
        place += 1
        if code == 0:
            if depth > MOST_DEPTH:
                raise DecodeError(f"expected at most {MOST_DEPTH} levels of nesting, got more")
            return skip(data, skip(data, place, depth + 1), depth + 1)
        kind = code >> 4
        if kind >= 0xA:
            end = place + 4 + _u32(data, place)[0] if kind & 1 else place + 1 + data[place]
        elif kind in _FIXED_SIZES:
            end = place + _FIXED_SIZES[kind]
        else:
            raise DecodeError(f"expected a constructor, got byte 0x{code:02x}")
    except (IndexError, struct.error):
        raise DecodeError("expected an AMQP value, got the end of the bytes") from None
    if end > len(data):
        raise DecodeError(f"expected {end - place} bytes of a value, got {len(data) - place}")
    return end


_FIXED_SIZES: Final = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}


def read_items(
    data: bytes, place: int, count: int, end: int, depth: int, table: Table
) -> tuple[list[Any], int]:
    """Return the items of a list or map that ends at `end`."""
    if count > MOST_ITEMS or depth >= MOST_DEPTH:
        raise DecodeError(
            f"expected at most {MOST_ITEMS} items and {MOST_DEPTH} levels, got {count} at level {depth}"
        )
    items: list[Any] = []
    add = items.append
    depth += 1
    for _ in range(count):
        value, place = table[data[place]](data, place + 1, depth)
        add(value)
    if place != end:
        raise DecodeError(f"expected a compound value to end at byte {end}, got an item's end at {place}")
    return items, place


def short_bounds(data: bytes, place: int) -> tuple[int, int, int]:
    """Return the number of items of a compound value, where they begin and end, from sizes of a byte."""
    return data[place + 1], place + 2, place + 1 + data[place]


def long_bounds(data: bytes, place: int) -> tuple[int, int, int]:
    """Return the same from sizes of four bytes."""
    return _u32(data, place + 4)[0], place + 8, place + 4 + _u32(data, place)[0]


def bounds_of_list(data: bytes, place: int) -> tuple[int, int, int]:
    """Return the same of the list whose constructor stands at a place."""
    code = data[place]
    if code == 0xC0:
        return short_bounds(data, place + 1)
    if code == 0xD0:
        return long_bounds(data, place + 1)
    if code == 0x45:
        return 0, place + 1, place + 1
    raise DecodeError(f"expected a list, got the constructor 0x{code:02x}")


def refuse(data: bytes, place: int, depth: int) -> tuple[Any, int]:
    """Refuse a constructor: the reader of whatever may not stand in a place."""
    raise DecodeError(f"expected another type of value, got the constructor 0x{data[place - 1]:02x}")


def only(table: Table, *codes: int) -> Table:
    """Return a table that reads null, and what has one of the constructors."""
    made: Table = [refuse] * 256
    for code in (0x40, *codes):
        made[code] = table[code]
    return made


def _constant(value: Any) -> Reader:
    return lambda data, place, depth: (value, place)


def _fixed(format_: str, make: Callable[[Any], Any] | None = None) -> Reader:
    unpack = struct.Struct(">" + format_).unpack_from
    size = struct.calcsize(">" + format_)

    def read_plain(data: bytes, place: int, depth: int) -> tuple[Any, int]:
        return unpack(data, place)[0], place + size

    if make is None:
        return read_plain

    def read_made(data: bytes, place: int, depth: int) -> tuple[Any, int]:
        return make(unpack(data, place)[0]), place + size

    return read_made


def _varying(width: int, make: Callable[[bytes], Any]) -> Reader:
    def read_short(data: bytes, place: int, depth: int) -> tuple[Any, int]:
        end = place + 1 + data[place]
        if end > len(data):
            raise DecodeError("expected a value, got the end of the bytes")
        return make(data[place + 1 : end]), end

    def read_long(data: bytes, place: int, depth: int) -> tuple[Any, int]:
        end = place + 4 + _u32(data, place)[0]
        if end > len(data):
            raise DecodeError("expected a value, got the end of the bytes")
        return make(data[place + 4 : end]), end

    return read_short if width == 1 else read_long


def _boolean(data: bytes, place: int, depth: int) -> tuple[bool, int]:
    if data[place] > 1:
        raise DecodeError(f"expected a boolean of 0 or 1, got {data[place]}")
    return data[place] == 1, place + 1


def _text(raw: bytes) -> str:
    return str(raw, "utf-8")


def _symbol(raw: bytes) -> Symbol:
    return Symbol(str(raw, "ascii"))


def _uuid(raw: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=raw)


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise DecodeError("expected a value for each key of a map, got a key alone")
    each = iter(items)
    try:
        return dict(zip(each, each, strict=True))
    except TypeError:
        raise DecodeError("expected simple keys in a map, got a compound one") from None


def _table(*, exact: bool) -> Table:
    """Return a table of all readers. Exact: with types that encode to what they were decoded from."""

    def sized(kind: type[int]) -> Callable[[Any], Any] | None:
        return kind if exact else None

    def reads_list(bounds: Bounds) -> Reader:
        def read_list(data: bytes, place: int, depth: int) -> tuple[list[Any], int]:
            count, begin, end = bounds(data, place)
            return read_items(data, begin, count, end, depth, table)

        return read_list

    def reads_map(bounds: Bounds) -> Reader:
        def read_map(data: bytes, place: int, depth: int) -> tuple[dict[Any, Any], int]:
            count, begin, end = bounds(data, place)
            items, place = read_items(data, begin, count, end, depth, table)
            return _pairs(items), place

        return read_map

    def reads_array(bounds: Bounds) -> Reader:
        def read_array(data: bytes, place: int, depth: int) -> tuple[Any, int]:
            count, place, end = bounds(data, place)
            if count > MOST_ITEMS or depth >= MOST_DEPTH:
                raise DecodeError(f"expected at most {MOST_ITEMS} items in an array, got {count}")
            descriptor = None
            code = data[place]
            if code == 0:
                descriptor, place = table[data[place + 1]](data, place + 2, depth + 1)
                code = data[place]
            if code == 0:
                raise DecodeError("expected one descriptor of an array's items, got two")
            if code >> 4 == 4 and count > MOST_EMPTY_ITEMS:
                raise DecodeError(f"expected at most {MOST_EMPTY_ITEMS} items of no bytes, got {count}")
            place += 1
            reader, items = table[code], []
            for _ in range(count):
                value, place = reader(data, place, depth + 1)
                items.append(value)
            if place != end:
                raise DecodeError(f"expected an array to end at byte {end}, got an item's end at {place}")
            return (Array(_WIDE.get(code, code), items, descriptor) if exact else items), place

        return read_array

    def read_described(data: bytes, place: int, depth: int) -> tuple[Described, int]:
        if depth >= MOST_DEPTH:
            raise DecodeError(f"expected at most {MOST_DEPTH} levels of nesting, got more")
        descriptor, place = table[data[place]](data, place + 1, depth + 1)
        value, place = table[data[place]](data, place + 1, depth + 1)
        return Described(descriptor, value), place

    table: Table = [refuse] * 256
    table[0x00] = read_described
    table[0x40], table[0x41], table[0x42] = _constant(None), _constant(True), _constant(False)
    table[0x43] = _constant(UInt(0) if exact else 0)
    table[0x44] = _constant(ULong(0) if exact else 0)
    table[0x45] = lambda data, place, depth: ([], place)
    table[0x50], table[0x51] = _fixed("B", sized(UByte)), _fixed("b", sized(Byte))
    table[0x52], table[0x53] = _fixed("B", sized(UInt)), _fixed("B", sized(ULong))
    table[0x54], table[0x55] = _fixed("b", sized(Int)), _fixed("b")
    table[0x56] = _boolean
    table[0x60], table[0x61] = _fixed("H", sized(UShort)), _fixed("h", sized(Short))
    table[0x70], table[0x71] = _fixed("I", sized(UInt)), _fixed("i", sized(Int))
    table[0x72] = _fixed("f", Float)
    table[0x73] = _fixed("I", lambda number: Char(chr(number)))
    table[0x74], table[0x84], table[0x94] = (_fixed(f"{size}s", Decimal) for size in (4, 8, 16))
    table[0x80], table[0x81] = _fixed("Q", sized(ULong)), _fixed("q")
    table[0x82], table[0x83] = _fixed("d"), _fixed("q", Timestamp)
    table[0x98] = _fixed("16s", _uuid)
    table[0xA0], table[0xB0] = _varying(1, bytes), _varying(4, bytes)
    table[0xA1], table[0xB1] = _varying(1, _text), _varying(4, _text)
    table[0xA3], table[0xB3] = _varying(1, _symbol), _varying(4, _symbol)
    for width, bounds in ((0x00, short_bounds), (0x10, long_bounds)):
        table[0xC0 + width], table[0xC1 + width] = reads_list(bounds), reads_map(bounds)
        table[0xE0 + width] = reads_array(bounds)
    return table


#: The widest constructor of each type, which stands for all of them in an Array.
_WIDE: Final = {
    **dict.fromkeys((0x41, 0x42), 0x56),
    **dict.fromkeys((0x43, 0x52), 0x70),
    **dict.fromkeys((0x44, 0x53), 0x80),
    0x45: 0xD0,
    0x54: 0x71,
    0x55: 0x81,
    **{code: code + 0x10 for code in (0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0)},
}
#: Reads every value with the type that it was sent with.
EXACT: Final = _table(exact=True)
#: Reads every value as Python's own nearest type: what the fields of performatives need.
PLAIN: Final = _table(exact=False)
