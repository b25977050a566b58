"""Sections of messages: found, and read with their types."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_values import SIMPLE

from lazaretto.servicebus.amqp import DecodeError, Header, Properties, Section, Sections, encode
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.values import Symbol, Timestamp, UInt, ULong


def _section(section: Section, value: object) -> bytes:
    return b"\x00\x53" + bytes((section,)) + encode(value)


HEADER = encode_composite(Header(durable=True, priority=4, ttl=60_000, delivery_count=2))
ANNOTATIONS = _section(Section.MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): "k"})
PROPERTIES = encode_composite(
    Properties(uuid.UUID(int=7), b"me", "to", "subject", correlation_id=ULong(9), creation_time=Timestamp(5))
)
APPLICATION = _section(Section.APPLICATION_PROPERTIES, {"n": UInt(5), "long": 5, "t": "é"})
BODY = _section(Section.DATA, b"hello")
FOOTER = _section(Section.FOOTER, {Symbol("crc"): 1})
WHOLE = HEADER + ANNOTATIONS + PROPERTIES + APPLICATION + BODY + FOOTER


def test_each_section_is_found() -> None:
    found = Sections(WHOLE)
    assert found.header() == Header(durable=True, priority=4, ttl=60_000, delivery_count=2)
    properties = found.properties()
    assert (properties.message_id, type(properties.correlation_id)) == (uuid.UUID(int=7), ULong)
    assert found.mapping(Section.MESSAGE_ANNOTATIONS) == {"x-opt-partition-key": "k"}
    application = found.mapping(Section.APPLICATION_PROPERTIES)
    assert [type(value) for value in application.values()] == [UInt, int, str]
    assert found.data() == b"hello"


def test_what_is_not_there_is_empty() -> None:
    found = Sections(BODY)
    assert found.header() == Header()
    assert found.properties() == Properties()
    assert found.mapping(Section.APPLICATION_PROPERTIES) == {}
    assert Sections(b"").body() == []


def test_a_body_has_one_of_three_forms() -> None:
    assert Sections(BODY + BODY).data() is None
    assert Sections(BODY + BODY).body() == [b"hello", b"hello"]
    assert Sections(_section(Section.VALUE, {"a": [1]})).body() == [{"a": [1]}]
    assert Sections(_section(Section.VALUE, b"bytes")).data() is None
    assert Sections(_section(Section.SEQUENCE, [1, "a"]) * 2).body() == [[1, "a"], [1, "a"]]


def test_sections_may_stand_in_any_order() -> None:
    found = Sections(FOOTER + BODY + APPLICATION + BODY + ANNOTATIONS + HEADER)
    assert found.body() == [b"hello", b"hello"]
    assert found.header().priority == 4
    assert found.mapping(Section.FOOTER) == {"crc": 1}


def test_a_descriptor_may_be_a_name() -> None:
    raw = b"\x00" + encode(Symbol("amqp:data:binary")) + encode(b"named")
    assert Sections(raw).data() == b"named"


@given(st.dictionaries(st.text(max_size=20), SIMPLE, max_size=8))
def test_application_properties_of_any_type_are_read(properties: dict[str, object]) -> None:
    raw = _section(Section.APPLICATION_PROPERTIES, properties)
    found = Sections(raw + BODY).mapping(Section.APPLICATION_PROPERTIES)
    assert list(found.items()) == list(properties.items())
    assert _section(Section.APPLICATION_PROPERTIES, found) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"hello",
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x79\x45",
        b"\x00\x53\x75\xa0\x09cut",
        BODY + FOOTER + BODY + _section(Section.SEQUENCE, []),
        HEADER + HEADER,
        BODY + _section(Section.VALUE, 1),
        _section(Section.VALUE, 1) * 2,
        b"\x00\x40\x40",
        b"\x00" + encode([1]) + encode(b"x"),
    ],
    ids=[
        "no section",
        "a descriptor cut",
        "a code cut",
        "an unknown section",
        "a value cut",
        "two forms of body with another section between",
        "two headers",
        "two forms of body",
        "two values",
        "a descriptor of nothing",
        "a descriptor that is a list",
    ],
)
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(DecodeError, match="expected"):
        Sections(raw)


def test_a_section_of_another_type_is_refused_when_it_is_read() -> None:
    found = Sections(_section(Section.APPLICATION_PROPERTIES, [1]) + BODY)
    assert found.data() == b"hello"
    with pytest.raises(DecodeError, match="expected"):
        found.mapping(Section.APPLICATION_PROPERTIES)
