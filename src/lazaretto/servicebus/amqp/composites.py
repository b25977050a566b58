"""Composite types of AMQP 1.0: how a class is read and written whose fields a table describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from lazaretto.servicebus.amqp import encode
from lazaretto.servicebus.amqp.conditions import INVALID_FIELD, NOT_IMPLEMENTED, AmqpError, DecodeError
from lazaretto.servicebus.amqp.decode import (
    EXACT,
    MISREAD,
    MOST_DEPTH,
    PLAIN,
    Table,
    bounds_of_list,
    only,
    refuse,
)
from lazaretto.servicebus.amqp.values import Symbol

Encoder: TypeAlias = Callable[[Any], bytes]


class Kind(NamedTuple):
    """A kind of field: the readers of its constructors, and the function that writes it."""

    table: Table
    write: Encoder


class Composite(msgspec.Struct, frozen=True, gc=False):
    """A list of fields with a descriptor. Fields that were left out are None."""

    #: The descriptor's code.
    code: ClassVar[int]
    kinds: ClassVar[tuple[Kind, ...]]
    #: The readers of each field.
    tables: ClassVar[tuple[Table, ...]]
    #: Numbers of the fields that must be there.
    required: ClassVar[tuple[int, ...]]


C = TypeVar("C", bound=Composite)
_by_code: Final[dict[int, type[Composite]]] = {}
_by_name: Final[dict[str, int]] = {}
#: How much of a descriptor that is not known a peer is told, in characters.
_SHOWN: Final = 100
#: So many fields that say nothing. No composite has more than these.
_NULLS: Final = [b"\x40" * count for count in range(32)]


def define(cls: type[C], code: int, name: str, fields: str) -> None:
    """Say how a class is read and written: its descriptor, and the kind of each field; "!": required."""
    words = fields.split()
    if len(words) != len(cls.__struct_fields__):
        raise TypeError(f"{cls.__name__} has {len(cls.__struct_fields__)} fields, not {len(words)}")
    cls.code = code
    cls.kinds = tuple(KINDS[word.rstrip("!")] for word in words)
    cls.tables = tuple(kind.table for kind in cls.kinds)
    cls.required = tuple(at for at, word in enumerate(words) if word.endswith("!"))
    _by_code[code] = cls
    _by_name[f"amqp:{name}:list"] = code


def read_composite(data: bytes, place: int, depth: int) -> tuple[Composite, int]:
    """Return the composite whose descriptor stands at a place, and where it ends. A reader."""
    if data[place] == 0x53:
        code, place = data[place + 1], place + 2
    else:
        descriptor, place = PLAIN[data[place]](data, place + 1, depth)
        code = _by_name.get(descriptor, -1) if isinstance(descriptor, str) else descriptor
    cls = _by_code.get(code) if isinstance(code, int) else None
    if cls is None:
        got = repr(code)[:_SHOWN]
        raise AmqpError(NOT_IMPLEMENTED, f"expected the descriptor of a known type, got {got}")
    if depth >= MOST_DEPTH:
        raise DecodeError(f"expected at most {MOST_DEPTH} levels of nesting, got more")
    count, place, end = bounds_of_list(data, place)
    tables = cls.tables
    if count > len(tables):
        raise DecodeError(f"expected at most {len(tables)} fields of {cls.__name__}, got {count}")
    values: list[Any] = [None] * count
    depth += 1
    for at in range(count):
        constructor = data[place]
        place += 1
        if constructor != 0x40:
            values[at], place = tables[at][constructor](data, place, depth)
            rest = count - at - 1
            if end - place == rest and data.startswith(_NULLS[rest], place):
                # Nothing is said in all the others.
                place = end
                break
    if place != end:
        raise DecodeError(f"expected {cls.__name__} to end at byte {end}, got a field's end at {place}")
    for at in cls.required:
        if at >= count or values[at] is None:
            field = cls.__struct_fields__[at]
            raise AmqpError(INVALID_FIELD, f"expected {cls.__name__} to have {field}, got none")
    return cls(*values), place


def parse(data: bytes, place: int = 0) -> tuple[Composite, int]:
    """Return the composite at a place, and where it ends. Raises AmqpError for anything else."""
    try:
        if data[place] != 0:
            raise DecodeError(f"expected a described list, got the constructor 0x{data[place]:02x}")
        return read_composite(data, place + 1, 0)
    except MISREAD as error:
        raise DecodeError(f"expected a composite value, got other bytes: {error}") from None


def encode_composite(value: Composite) -> bytes:
    """Return a composite as bytes, with all its fields: peers exist that read them by position."""
    fields = [
        encode.NULL if field is None else kind.write(field)
        for kind, field in zip(value.kinds, msgspec.structs.astuple(value), strict=True)
    ]
    return encode.described(value.code, fields)


def one_of(*classes: type[Composite]) -> Kind:
    """Return the kind of a field that holds one of these composites."""

    def read(data: bytes, place: int, depth: int) -> tuple[Composite, int]:
        value, place = read_composite(data, place, depth)
        if not isinstance(value, classes):
            raise DecodeError(f"expected {classes[0].__name__}, got {type(value).__name__}")
        return value, place

    table: Table = [refuse] * 256
    table[0x00] = read
    table[0x40] = PLAIN[0x40]
    return Kind(table, encode_composite)


def _symbols() -> Kind:
    """Return the kind of a field that holds one symbol, or an array of them; read as a list."""
    table = only(PLAIN, 0xA3, 0xB3, 0xE0, 0xF0)

    def read(code: int) -> Callable[[bytes, int, int], tuple[list[Symbol], int]]:
        reader = PLAIN[code]

        def read_list(data: bytes, place: int, depth: int) -> tuple[list[Symbol], int]:
            value, place = reader(data, place, depth)
            names = value if isinstance(value, list) else [value]
            if not all(isinstance(name, Symbol) for name in names):
                raise DecodeError("expected symbols, got other values")
            return names, place

        return read_list

    for code in (0xA3, 0xB3, 0xE0, 0xF0):
        table[code] = read(code)
    return Kind(table, encode.symbols)


def _symbol_keys() -> Kind:
    """Return the kind of a field that holds a map whose keys are symbols."""
    return Kind(only(EXACT, 0xC1, 0xD1), encode.symbol_map)


#: What a field may hold, by the name that tables use. Composites add their own.
KINDS: Final[dict[str, Kind]] = {
    "boolean": Kind(only(PLAIN, 0x41, 0x42, 0x56), encode.boolean),
    "ubyte": Kind(only(PLAIN, 0x50), encode.ubyte),
    "ushort": Kind(only(PLAIN, 0x60), encode.ushort),
    "uint": Kind(only(PLAIN, 0x43, 0x52, 0x70), encode.uint),
    "ulong": Kind(only(PLAIN, 0x44, 0x53, 0x80), encode.ulong),
    "timestamp": Kind(only(PLAIN, 0x83), encode.timestamp),
    "binary": Kind(only(PLAIN, 0xA0, 0xB0), encode.binary),
    "string": Kind(only(PLAIN, 0xA1, 0xB1), encode.string),
    "symbol": Kind(only(PLAIN, 0xA3, 0xB3), encode.symbol),
    "symbols": _symbols(),
    "map": _symbol_keys(),
    "any": Kind(EXACT, encode.encode),
    # A message's id has one of four types, and keeps it.
    "id": Kind(only(EXACT, 0x44, 0x53, 0x80, 0x98, 0xA0, 0xB0, 0xA1, 0xB1), encode.encode),
}
