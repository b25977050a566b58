"""Parts of an AMQP message that Lazaretto has no fields for: taken out, kept, and given back. Pure.

It is kept as message sections with only what is left of each, and an amqp-value section that tells how the
body is held and which properties have AMQP types of their own. The value of a property is in it only if
Lazaretto has no type for it, so that edits and actions of rules hold for all others.
"""

from __future__ import annotations

import decimal
import functools
import itertools
import struct
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from lazaretto.errors import InvalidMessage
from lazaretto.model.headers import PropertyValue
from lazaretto.model.sized import PLAIN
from lazaretto.servicebus.amqp import (
    AmqpError,
    DecodeError,
    Header,
    Properties,
    Section,
    Sections,
    encode_section,
)
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.decode import EXACT, read
from lazaretto.servicebus.amqp.encode import binary, string
from lazaretto.servicebus.amqp.sections import Part
from lazaretto.servicebus.amqp.values import (
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    SizedInt,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    bytes_of,
    number_of,
)

#: How a body is held that is not one section of data: the text or the bytes of an amqp-value, or its
#: sections as they came. Data sections are held as one; a list has their lengths.
TEXT: Final = "text"
BYTES: Final = "bytes"
SECTIONS: Final = "sections"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST, _LATEST = -62_135_596_800_000, 253_402_300_799_999
_INTEGERS: Final = {kind.code: kind for kind in (UByte, UShort, UInt, ULong, Byte, Short, Int)}
#: What Lazaretto keeps as it is.
_PLAIN: Final = frozenset({bool, int, float, str, bytes, uuid.UUID, type(None)})
_FLOAT, _CHAR, _SYMBOL = Float.code, Char.code, Symbol.code
#: Constructors of decimals by their size, and its reverse.
_DECIMALS: Final = {4: 0x74, 8: 0x84, 16: 0x94}
_SIZES: Final = {code: size for size, code in _DECIMALS.items()}
#: What .NET describes by a name, as codes that no constructor has.
_SPAN, _URI = Symbol("com.microsoft:timespan"), Symbol("com.microsoft:uri")
_OFFSET: Final = Symbol("com.microsoft:datetime-offset")
_OFFSET_CODE, _URI_CODE = 0x02, 0x03
#: Ticks of .NET: tenths of a microsecond, from the year 1.
_YEAR_1: Final = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LAST_TICK: Final = 3_155_378_976_000_000_000
#: The constructors of bytes, and what they and the length take.
_SIZES_OF_BINARY: Final = {0xA0: 2, 0xB0: 5}
_INT64: Final = 1 << 63
_float: Final = struct.Struct(">f")


class Residue(msgspec.Struct, frozen=True):
    """The rest of a message. `types`: of properties, as constructors. `body`: how it is held."""

    header: Header = Header()
    delivery_annotations: dict[Any, Any] = {}
    annotations: dict[Any, Any] = {}
    properties: Properties = Properties()
    application: dict[Any, Any] = {}
    types: dict[str, int] = {}
    body: Any = None
    footer: dict[Any, Any] = {}

    def encoded(self) -> bytes | None:
        """Return it as bytes; None: nothing is left."""
        fields = {"types": {name: UByte(code) for name, code in self.types.items()}, "body": self.body}
        parts = (
            b"" if self.header == _NOTHING.header else encode_composite(self.header),
            _unless_empty(Section.DELIVERY_ANNOTATIONS, self.delivery_annotations),
            _unless_empty(Section.MESSAGE_ANNOTATIONS, self.annotations),
            b"" if self.properties == _NOTHING.properties else encode_composite(self.properties),
            _unless_empty(Section.APPLICATION_PROPERTIES, self.application),
            _unless_empty(
                Section.VALUE, {name: value for name, value in fields.items() if value not in (None, {})}
            ),
            _unless_empty(Section.FOOTER, self.footer),
        )
        return b"".join(parts) or None


_NOTHING: Final = Residue()
#: The longest residue that is kept once read, in bytes, and the longest names that are kept with their types.
_SHORT: Final = 256


def _unless_empty(section: Section, values: dict[Any, Any]) -> bytes:
    return encode_section(section, values) if values else b""


def read_residue(encoded: bytes | None) -> Residue:
    """Return what `Residue.encoded` has made bytes of; an empty one of any others."""
    if not encoded:
        return _NOTHING
    try:
        sections = Sections(encoded)
        fields = (sections.body() or [{}])[0]
        types = fields.get("types") or {}
        return Residue(
            sections.header(),
            sections.mapping(Section.DELIVERY_ANNOTATIONS),
            sections.mapping(Section.MESSAGE_ANNOTATIONS),
            sections.properties(),
            sections.mapping(Section.APPLICATION_PROPERTIES),
            {name: int(code) for name, code in types.items() if isinstance(code, int)},
            fields.get("body"),
            sections.mapping(Section.FOOTER),
        )
    except (AmqpError, AttributeError):
        # A program can give a message any bytes here.
        return _NOTHING


def encode_types(types: Mapping[str, int]) -> bytes | None:
    """Return as bytes what is left if that is the types of properties. Messages of a program are alike."""
    if sum(map(len, types)) > _SHORT:
        return Residue(types=dict(types)).encoded()
    return _encode_types(tuple(types.items()))


@functools.lru_cache(1_024)
def _encode_types(types: tuple[tuple[str, int], ...]) -> bytes | None:
    return Residue(types=dict(types)).encoded()


def types_alone(encoded: bytes) -> Mapping[str, int] | None:
    """Return the types of properties if nothing else is left of a message; None: there may be more."""
    return _types_alone(encoded) if len(encoded) <= _SHORT else None


@functools.lru_cache(1_024)
def _types_alone(encoded: bytes) -> Mapping[str, int] | None:
    residue = read_residue(encoded)
    return residue.types if residue == Residue(types=residue.types) else None


# Bodies.


def body_of(sections: Sections) -> tuple[bytes, Any]:
    """Return the body as Lazaretto holds it, and how. Raises DecodeError."""
    parts = sections.body_parts
    if len(parts) == 1 and parts[0].section is Section.DATA:
        return data_of(sections.raw, parts[0]), None
    kinds = {part.section for part in parts}
    if kinds <= {Section.DATA}:
        data = [data_of(sections.raw, part) for part in parts]
        return b"".join(data), [len(one) for one in data]
    if kinds == {Section.VALUE}:
        value, _ = read(sections.raw, parts[0].value, EXACT)
        if type(value) is str:
            return value.encode(), TEXT
        if type(value) is bytes:
            return value, BYTES
    return b"".join(sections.raw[part.start : part.end] for part in parts), SECTIONS


def data_of(raw: bytes, part: Part) -> bytes:
    """Return the bytes of a data section. Raises DecodeError."""
    size = _SIZES_OF_BINARY.get(raw[part.value])
    if size is None:
        value, _ = read(raw, part.value, EXACT)
        raise DecodeError(f"expected a data section to hold bytes, got {type(value).__name__}")
    return raw[part.value + size : part.end]


def encode_body(body: bytes, residue: Any) -> bytes:
    """Return the sections of a body. One that an edit has changed may not be what it was: then it is data."""
    if residue is None:
        return _data(body)
    if residue == TEXT and _is_text(body):
        return b"\x00\x53\x77" + string(body.decode())
    if residue == BYTES:
        return b"\x00\x53\x77" + binary(body)
    if residue == SECTIONS and _are_sections(body):
        return body
    if isinstance(residue, list) and _are_lengths(residue, len(body)):
        ends = list(itertools.accumulate(residue, initial=0))
        return b"".join(_data(body[start:end]) for start, end in itertools.pairwise(ends))
    return _data(body)


def _data(body: bytes) -> bytes:
    return b"\x00\x53\x75" + binary(body)


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _are_sections(body: bytes) -> bool:
    try:
        sections = Sections(body)
    except AmqpError:
        return False
    return bool(sections.parts) and sections.parts == sections.body_parts


def _are_lengths(values: list[Any], size: int) -> bool:
    return all(isinstance(one, int) and one >= 0 for one in values) and sum(values) == size


# Properties and ids.


def split_properties(
    values: Mapping[Any, Any],
) -> tuple[dict[str, PropertyValue], dict[str, int], dict[str, Any]]:
    """Return properties as Lazaretto has them, types that it has not, and what it has no type for."""
    properties: dict[str, PropertyValue] = {}
    types: dict[str, int] = {}
    others: dict[str, Any] = {}
    for key, value in values.items():
        if type(key) is str and type(value) in _PLAIN:
            properties[key] = value
            continue
        name = text_of(key)
        if name is None:
            raise InvalidMessage("expected a property's name to be text, got null")
        plain, code = plain_of(value)
        if plain is None and value is not None:
            others[name] = value
            continue
        properties[name] = plain
        if code is not None:
            types[name] = code
    return properties, types, others


def plain_of(value: Any) -> tuple[PropertyValue, int | None]:
    """Return a value as Lazaretto has it, and the constructor of its type if Lazaretto has not that type.

    None for what it cannot have at all.
    """
    if isinstance(value, Decimal):
        number = number_of(value.raw)
        return (None, None) if number is None else (number, _DECIMALS[len(value.raw)])
    if isinstance(value, Described):
        return _plain_of_described(value)
    if isinstance(value, Timestamp):
        return (moment_of(value), None) if _EARLIEST <= value <= _LATEST else (None, None)
    if isinstance(value, Symbol):
        return str(value), _SYMBOL
    if isinstance(value, Char):
        return (str(value), _CHAR) if not "\ud800" <= value <= "\udfff" else (None, None)
    if isinstance(value, bool):
        return value, None
    if isinstance(value, SizedInt):
        return (int(value), value.code) if value < _INT64 else (None, None)
    if isinstance(value, Float):
        return float(value), _FLOAT
    if isinstance(value, int | float | str | bytes | uuid.UUID):
        return value, None
    return None, None


def _plain_of_described(described: Described) -> tuple[PropertyValue, int | None]:
    """Return what .NET means. Ticks that are no whole microseconds are kept as they are."""
    name, value = described
    if name == _URI and type(value) is str:
        return value, _URI_CODE
    if type(value) is not int or value % 10 or not isinstance(name, Symbol):
        return None, None
    if name == _SPAN:
        return timedelta(microseconds=value // 10), None
    if name == _OFFSET and 0 <= value < _LAST_TICK:
        return _YEAR_1 + timedelta(microseconds=value // 10), _OFFSET_CODE
    return None, None


def typed(value: Any, code: int | None = None) -> Any:
    """Return a property's value with the AMQP type that it had, if it can still be of that type."""
    if type(value) is decimal.Decimal:
        raw = bytes_of(value, _SIZES.get(code or 0, 16)) or bytes_of(value, 16)
        return str(value) if raw is None else Decimal(raw)
    if type(value) is timedelta:
        return Described(_SPAN, value // _MICROSECOND * 10)
    if type(value) is datetime and code == _OFFSET_CODE:
        return Described(_OFFSET, (value - _YEAR_1) // _MICROSECOND * 10)
    if type(value) is str and code == _URI_CODE:
        return Described(_URI, value)
    if type(value) is int and code in _INTEGERS:
        made = _INTEGERS[code](value)
        return made if _fits(made) else value
    if type(value) is float and code == _FLOAT:
        return Float(value) if _is_single(value) else value
    if type(value) is str and code == _SYMBOL and value.isascii():
        return Symbol(value)
    if type(value) is str and code == _CHAR and len(value) == 1:
        return Char(value)
    return value


def overlaid(sent: Mapping[str, int], changed: Mapping[str, int | str]) -> Mapping[str, int]:
    """Return the types of properties: as they were sent, and as they were changed since."""
    if not changed:
        return sent
    return {**sent, **{n: sent.get(to, PLAIN) if isinstance(to, str) else to for n, to in changed.items()}}


def typed_all(properties: Mapping[str, PropertyValue], types: Mapping[str, int]) -> dict[str, Any]:
    """Return properties with the AMQP types that they had."""
    values: dict[str, Any] = dict(properties)
    for name in types.keys() & values.keys():
        values[name] = typed(values[name], types[name])
    return values


def _fits(value: SizedInt) -> bool:
    bits = 8 << max(0, (value.code >> 4) - 5)
    signed = value.code & 1
    return -(signed << bits - 1) <= value < 1 << bits - signed


def _is_single(value: float) -> bool:
    try:
        (again,) = _float.unpack(_float.pack(value))
    except OverflowError:
        return False
    return bool(again == value or value != value)


def moment_of(milliseconds: int) -> datetime:
    """Return a timestamp as a time, the nearest that Python has."""
    return _EPOCH + timedelta(milliseconds=min(max(milliseconds, _EARLIEST), _LATEST))


def text_of(value: Any) -> str | None:
    """Return an id or a name, which may be of several types, as text; different ones stay different."""
    if value is None:
        return None
    if not isinstance(value, bytes):
        return str(value)
    return value.decode() if _is_text(value) else value.hex()


def original(kept: Any, now: str | None) -> Any:
    """Return an id as it was sent if it is still the same, else as it is now."""
    return kept if kept is not None and text_of(kept) == now else now
