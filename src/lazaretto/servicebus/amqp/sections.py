"""The sections of an AMQP message: found without being read."""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from lazaretto.servicebus.amqp.composites import Composite, define, parse
from lazaretto.servicebus.amqp.conditions import DecodeError
from lazaretto.servicebus.amqp.decode import EXACT, PLAIN, read, skip
from lazaretto.servicebus.amqp.encode import encode

C = TypeVar("C", bound=Composite)


class Section(enum.IntEnum):
    """The sections, by the code of their descriptor, in the order in which they stand."""

    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    MESSAGE_ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    SEQUENCE = 0x76
    VALUE = 0x77
    FOOTER = 0x78


def encode_section(section: Section, value: Any) -> bytes:
    """Return a section that is a value with a descriptor."""
    return b"\x00\x53" + bytes((section,)) + encode(value)


_BODY: Final = frozenset({Section.DATA, Section.SEQUENCE, Section.VALUE})
_CODES: Final = {section.value: section for section in Section}
#: The sections by their descriptors, as nearly all peers write them.
_DESCRIPTORS: Final = {b"\x00\x53" + bytes((section,)): section for section in Section}


class Header(Composite, frozen=True, gc=False):
    """Delivery headers of a message. `ttl`: milliseconds."""

    durable: bool | None = None
    priority: int | None = None
    ttl: int | None = None
    first_acquirer: bool | None = None
    delivery_count: int | None = None


class Properties(Composite, frozen=True, gc=False):
    """Properties of a message. Times are milliseconds since 1970."""

    message_id: Any = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: Any = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


define(Header, Section.HEADER, "header", "boolean ubyte uint boolean uint")
define(
    Properties,
    Section.PROPERTIES,
    "properties",
    "id binary string string string id symbol symbol timestamp timestamp string uint string",
)


_NO_HEADER = Header()
_NO_PROPERTIES = Properties()
#: The longest header or properties that are kept once read: as some clients write those that say nothing.
_SHORT: Final = 25


@lru_cache(256)
def _read_short(raw: bytes) -> Composite:
    return parse(raw)[0]


class Part(msgspec.Struct, frozen=True, gc=False):
    """A section: where it begins, where its value begins, and where it ends."""

    section: Section
    start: int
    value: int
    end: int


class Sections:
    """The sections of an encoded message. Raises DecodeError if it is none.

    Only data and sequence sections may repeat. They may stand in any order, because clients exist that send
    the footer before the body (rhea) or delivery annotations last (Azure's for Python).
    """

    __slots__ = ("_first", "body_parts", "parts", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.parts: list[Part] = []
        #: The sections of the body: data, sequences, or one value.
        self.body_parts: list[Part] = []
        #: The first part of each section.
        self._first: dict[Section, Part] = {}
        first, body, place, end = self._first, self.body_parts, 0, len(raw)
        while place < end:
            section = _DESCRIPTORS.get(raw[place : place + 3])
            if section is None:
                part = self._part(place)
                section = part.section
            else:
                part = Part(section, place, place + 3, skip(raw, place + 3))
            if section in _BODY:
                if body and (section is not body[0].section or section is Section.VALUE):
                    raise _one_more(section)
                body.append(part)
            elif section in first:
                raise _one_more(section)
            self.parts.append(part)
            if section not in first:
                first[section] = part
            place = part.end

    def _part(self, start: int) -> Part:
        raw = self.raw
        try:
            if raw[start] != 0:
                raise DecodeError(f"expected a message section, got the constructor 0x{raw[start]:02x}")
            if raw[start + 1] == 0x53:
                code, value = raw[start + 2], start + 3
            else:
                code, value = read(raw, start + 1, PLAIN)
                # A descriptor may be of any type, also one that is no key.
                code = _NAMES.get(code, -1) if isinstance(code, str) else code
        except IndexError:
            raise DecodeError("expected a message section, got the end of the message") from None
        section = _CODES.get(code) if isinstance(code, int) else None
        if section is None:
            raise DecodeError(f"expected a message section, got the descriptor {code!r}")
        return Part(section, start, value, skip(raw, value))

    def get(self, section: Section) -> Part | None:
        """Return the first part of a section, or None."""
        return self._first.get(section)

    def header(self) -> Header:
        """Return the header; without one, an empty header."""
        return self._composite(Section.HEADER, _NO_HEADER)

    def properties(self) -> Properties:
        """Return the properties; without any, empty properties."""
        return self._composite(Section.PROPERTIES, _NO_PROPERTIES)

    def _composite(self, section: Section, empty: C) -> C:
        part = self._first.get(section)
        if part is None:
            return empty
        if part.end - part.start <= _SHORT:
            value = _read_short(self.raw[part.start : part.end])
        else:
            value, _ = parse(self.raw, part.start)
        assert isinstance(value, type(empty))
        return value

    def mapping(self, section: Section) -> dict[Any, Any]:
        """Return annotations or application properties, with the types they were sent with."""
        part = self._first.get(section)
        if part is None:
            return {}
        value, _ = read(self.raw, part.value, EXACT)
        if not isinstance(value, dict):
            raise DecodeError(f"expected {section.name} to be a map, got {type(value).__name__}")
        return value

    def data(self) -> bytes | None:
        """Return the body if it is one data section, else None."""
        body = self.body_parts
        if len(body) != 1 or body[0].section is not Section.DATA:
            return None
        value, _ = read(self.raw, body[0].value, PLAIN)
        return value if isinstance(value, bytes) else None

    def body(self) -> list[Any]:
        """Return the values of the body's sections, with the types they were sent with."""
        return [read(self.raw, part.value, EXACT)[0] for part in self.body_parts]


def _one_more(section: Section) -> DecodeError:
    return DecodeError(f"expected one section of each kind, got one more: {section.name}")


_NAMES = {
    "amqp:header:list": 0x70,
    "amqp:delivery-annotations:map": 0x71,
    "amqp:message-annotations:map": 0x72,
    "amqp:properties:list": 0x73,
    "amqp:application-properties:map": 0x74,
    "amqp:data:binary": 0x75,
    "amqp:amqp-sequence:list": 0x76,
    "amqp:amqp-value:*": 0x77,
    "amqp:footer:map": 0x78,
}
