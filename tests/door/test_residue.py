"""What of an AMQP message no field of Lazaretto can hold: kept, and given back. Without a store."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazaretto import Message
from lazaretto.engine.messages.prepare import prepare
from lazaretto.errors import InvalidMessage, MessageTooLarge
from lazaretto.model.entities import MessageState
from lazaretto.model.messages import StoredMessage
from lazaretto.servicebus import conversions
from lazaretto.servicebus.amqp import DecodeError, Header, Properties, Section, Sections, encode
from lazaretto.servicebus.amqp.composites import encode_composite
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
from lazaretto.servicebus.conversions import BATCH_FORMAT, encode_message, message_of, messages_of
from lazaretto.servicebus.residue import encode_types

SIMPLE: dict[str, Any] = {
    "null": None,
    "true": True,
    "ubyte": UByte(255),
    "ushort": UShort(65_535),
    "uint": UInt(4_294_967_295),
    "ulong": ULong(7),
    "byte": Byte(-128),
    "short": Short(-32_768),
    "int": Int(-2_147_483_648),
    "long": -(1 << 63),
    "float": Float(1.5),
    "double": 0.1,
    "char": Char("é"),
    "timestamp": Timestamp(1_700_000_000_123),
    "uuid": uuid.UUID(int=7),
    "binary": b"\x00\xff",
    "string": "text",
    "symbol": Symbol("name"),
    "decimal32": Decimal(bytes.fromhex("32800005")),
    "decimal64": Decimal(bytes.fromhex("b1a000000000007b")),
    "decimal128": Decimal(bytes.fromhex("303c00000000000000000000000004e2")),
    "span": Described(Symbol("com.microsoft:timespan"), -36_000_000_000),
    "offset": Described(Symbol("com.microsoft:datetime-offset"), 638_500_000_000_000_000),
    "uri": Described(Symbol("com.microsoft:uri"), "http://a.b/c?d"),
}
#: What Lazaretto has no type for.
FOREIGN: dict[str, Any] = {
    "large": ULong((1 << 64) - 1),
    "infinite": Decimal(bytes.fromhex("78000000")),
    "none": Decimal(bytes.fromhex("7c000000000000000000000000000001")),
    "odd": Decimal(bytes.fromhex("6c7fffffffffffff")),
    "ancient": Timestamp(-(1 << 62)),
    "fine": Described(Symbol("com.microsoft:timespan"), 1),
    "named": Described(Symbol("com.example:span"), 10),
    "late": Described(Symbol("com.microsoft:datetime-offset"), 1 << 62),
    "list": [Int(1), "two", [None]],
    "map": {"a": UByte(1), Symbol("b"): [b"x"]},
    "array": Array(0x71, [1, 2, 3]),
}


def stored(message: Message) -> StoredMessage:
    """Return a message as the store gives it back."""
    new = prepare(message)
    return StoredMessage(
        1, new.body, new.message_id or "id", 0, None, new.headers, None, 0, 0, 0, 0, *[None] * 3
    )


def section(kind: Section, value: Any) -> bytes:
    return b"\x00\x53" + bytes((kind,)) + encode(value)


def again(payload: bytes, **changes: Any) -> Sections:
    """Return what a receiver gets of a message that was sent so."""
    return Sections(encode_message(stored(msgspec.structs.replace(message_of(payload), **changes))))


def exact(value: Any) -> Any:
    """Return a value with its type, which equality leaves out."""
    if isinstance(value, dict):
        return {(type(key), key): exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return type(value), value


DATA = section(Section.DATA, b"x")
PROPERTIES = Section.APPLICATION_PROPERTIES


def test_every_type_of_property_comes_back() -> None:
    payload = section(PROPERTIES, SIMPLE | FOREIGN) + DATA
    assert exact(again(payload).mapping(PROPERTIES)) == exact(SIMPLE | FOREIGN)


def test_python_sees_the_values_that_it_has_types_for() -> None:
    message = message_of(section(PROPERTIES, SIMPLE | FOREIGN) + DATA)
    assert message.properties is not None
    assert message.properties.keys() == SIMPLE.keys()
    assert message.properties["int"] == -2_147_483_648
    assert [str(message.properties[f"decimal{bits}"]) for bits in (32, 64, 128)] == ["5", "-12.3", "12.50"]
    assert message.properties["span"] == timedelta(hours=-1)
    assert {type(value).__module__ for value in message.properties.values()} <= {
        "builtins",
        "uuid",
        "datetime",
        "decimal",
    }


def test_a_plain_message_leaves_nothing() -> None:
    properties = Properties("m", None, "t", "s", "r", "c", "text/plain", None, None, None, "g", None, "h")
    plain = {"t": "x", "n": 5, "f": 2.5, "u": uuid.UUID(int=7), "none": None, "w": Timestamp(0), "b": b"x"}
    annotations = {Symbol("x-opt-partition-key"): "g", Symbol("x-opt-sequence-number"): 9}
    payload = (
        encode_composite(Header(ttl=1000))
        + section(Section.DELIVERY_ANNOTATIONS, {Symbol("x-opt-lock-token"): uuid.UUID(int=1)})
        + section(Section.MESSAGE_ANNOTATIONS, annotations)
        + encode_composite(properties)
        + section(PROPERTIES, plain)
        + DATA
    )
    assert message_of(payload).amqp is None


def test_a_changed_property_keeps_its_type_if_it_can() -> None:
    payload = section(PROPERTIES, {"n": Int(1), "u": UByte(1), "f": Float(0.5), "c": Char("c")}) + DATA
    changed = {"n": 7, "u": 256, "f": 0.1, "c": "cc", "new": 1}
    found = again(payload, properties=changed).mapping(PROPERTIES)
    assert exact(found) == exact({"n": Int(7), "u": 256, "f": 0.1, "c": "cc", "new": 1})
    other = {"n": "text", "u": None, "f": 1}
    assert exact(again(payload, properties=other).mapping(PROPERTIES)) == exact(other)


@pytest.mark.parametrize("value", [-129, 128])
def test_a_byte_holds_what_it_can(value: int) -> None:
    payload = section(PROPERTIES, {"n": Byte(0)}) + DATA
    assert exact(again(payload, properties={"n": value}).mapping(PROPERTIES)) == exact({"n": value})


@pytest.mark.parametrize(
    ("identifier", "text"),
    [
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (ULong(7), "7"),
        (b"text", "text"),
        (b"\xff\x00", "ff00"),
        ("m", "m"),
    ],
)
def test_ids_keep_their_type_and_are_text_in_python(identifier: Any, text: str) -> None:
    payload = encode_composite(Properties(identifier, correlation_id=identifier)) + DATA
    message = message_of(payload)
    assert (message.message_id, message.correlation_id) == (text, text)
    found = again(payload).properties()
    assert exact([found.message_id, found.correlation_id]) == exact([identifier] * 2)
    assert again(payload, message_id="new").properties().message_id == "new"


def test_header_annotations_footer_and_all_properties() -> None:
    header = Header(True, 7, 60_000)
    annotations: dict[Any, Any] = {Symbol("x-opt-mine"): [Int(1)], ULong(5): "five"}
    properties = Properties(
        "m", b"user", "t", "s", "r", "c", Symbol("text/plain"), Symbol("gzip"), 5, 6, "g", 3, "h"
    )
    payload = (
        encode_composite(header)
        + section(Section.DELIVERY_ANNOTATIONS, {Symbol("x-next"): UByte(1)})
        + section(Section.MESSAGE_ANNOTATIONS, annotations | {Symbol("x-opt-sequence-number"): 99})
        + encode_composite(properties)
        + DATA
        + section(Section.FOOTER, {Symbol("x-crc"): UInt(5)})
    )
    found = again(payload)
    assert (found.header().durable, found.header().priority, found.header().ttl) == (True, 7, 60_000)
    assert exact(found.mapping(Section.DELIVERY_ANNOTATIONS)) == exact({Symbol("x-next"): UByte(1)})
    given = found.mapping(Section.MESSAGE_ANNOTATIONS)
    assert given.pop("x-opt-sequence-number") == 1, "the broker numbers, not the sender"
    del given[Symbol("x-opt-enqueued-time")]
    assert exact(given) == exact(annotations)
    assert found.properties() == properties
    assert exact(found.mapping(Section.FOOTER)) == exact({Symbol("x-crc"): UInt(5)})


@pytest.mark.parametrize(
    ("body", "held"),
    [
        (DATA, b"x"),
        (section(Section.DATA, b"ab") + section(Section.DATA, b"") + section(Section.DATA, b"c"), b"abc"),
        (b"", b""),
        (section(Section.VALUE, "text é"), "text é".encode()),
        (section(Section.VALUE, b"\xff"), b"\xff"),
        *(
            (body, body)
            for body in (
                section(Section.VALUE, None),
                section(Section.VALUE, Symbol("s")),
                section(Section.VALUE, FOREIGN),
                # Equal as Python's keys, but not as those of AMQP.
                b"\x00\x53\x77\xc1\x0a\x04\x54\x01\xa1\x01a\x41\xa1\x01b",
                section(Section.SEQUENCE, [1, "two"]) + section(Section.SEQUENCE, []),
            )
        ),
    ],
)
def test_bodies_come_back_as_they_were(body: bytes, held: bytes) -> None:
    assert message_of(body).body == held
    found = again(body)
    assert b"".join(found.raw[part.start : part.end] for part in found.body_parts) == body


@pytest.mark.parametrize(
    ("body", "edited", "expected"),
    [
        (section(Section.VALUE, "old"), b"new", section(Section.VALUE, "new")),
        (section(Section.VALUE, "old"), b"\xff", section(Section.DATA, b"\xff")),
        (section(Section.DATA, b"a") * 2, b"long", section(Section.DATA, b"long")),
        (section(Section.SEQUENCE, [1]), b"{}", section(Section.DATA, b"{}")),
        (section(Section.SEQUENCE, [1]), DATA + b"\x00", section(Section.DATA, DATA + b"\x00")),
        (section(Section.SEQUENCE, [1]), b"", section(Section.DATA, b"")),
    ],
)
def test_an_edited_body_stays_what_it_can(body: bytes, edited: bytes, expected: bytes) -> None:
    found = again(body, body=edited)
    assert b"".join(found.raw[part.start : part.end] for part in found.body_parts) == expected


VALUES = st.recursive(
    st.sampled_from([*SIMPLE.values(), *FOREIGN.values()]) | st.text(max_size=5) | st.integers(-(1 << 63), 0),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), VALUES, max_size=5), VALUES, VALUES)
def test_any_values_come_back(properties: dict[str, Any], annotation: Any, body: Any) -> None:
    payload = (
        section(Section.MESSAGE_ANNOTATIONS, {Symbol("x-mine"): annotation})
        + section(PROPERTIES, properties)
        + section(Section.VALUE, body)
    )
    found = again(payload)
    assert exact(found.mapping(PROPERTIES)) == exact(properties)
    assert exact(found.mapping(Section.MESSAGE_ANNOTATIONS)[Symbol("x-mine")]) == exact(annotation)
    assert exact(found.body()) == exact([body])


_TEXT = st.none() | st.text(max_size=5, alphabet=st.characters(exclude_categories=["Cs"]))
_MOMENTS = st.none() | st.integers(0, 253_000_000_000).map(lambda at: datetime.fromtimestamp(at, UTC))


@st.composite
def stored_messages(draw: st.DrawFn) -> StoredMessage:
    properties = draw(st.dictionaries(st.text(min_size=1, max_size=5), st.integers(-9, 9), max_size=3))
    codes = st.sampled_from([UByte.code, Int.code, ULong.code])
    types = {name: draw(codes) for name in (*properties, "absent") if draw(st.booleans())}
    message = Message(
        draw(st.binary(max_size=300)),
        message_id=draw(_TEXT) or None,
        session_id=draw(_TEXT) or None,
        to=draw(_TEXT),
        subject=draw(_TEXT),
        reply_to=draw(_TEXT),
        correlation_id=draw(_TEXT),
        content_type=draw(_TEXT),
        reply_to_session_id=draw(_TEXT) or None,
        time_to_live=draw(st.none() | st.timedeltas(timedelta(seconds=1), timedelta(days=90))),
        scheduled_enqueue_time=draw(_MOMENTS),
        properties=properties,
        amqp=encode_types(types) if types else None,
    )
    return msgspec.structs.replace(
        stored(message),
        enqueued=draw(st.integers(0, 1 << 51)),
        delivery_count=draw(st.integers(0, 300)),
        enqueued_sequence_number=draw(st.none() | st.integers(0, 1 << 50)),
        recorded_reason=draw(_TEXT),
        recorded_description=draw(_TEXT),
    )


@given(
    stored_messages(),
    st.none() | st.binary(min_size=16, max_size=16),
    _MOMENTS,
    st.none() | st.sampled_from(MessageState),
    st.booleans(),
    st.booleans(),
)
def test_the_quick_way_out_gives_the_same_bytes(
    message: StoredMessage,
    token: bytes | None,
    ends: datetime | None,
    state: MessageState | None,
    deleted: bool,
    bare: bool,
) -> None:
    until = None if ends is None else round(ends.timestamp()) * 1_000_000
    slow = conversions._encode_any(message, token, until, state, deleted=deleted, bare=bare)
    quick = encode_message(message, token=token, locked_until=until, state=state, deleted=deleted, bare=bare)
    assert quick == slow


@given(
    st.builds(Header, durable=st.none() | st.booleans(), priority=st.none() | st.integers(0, 9)),
    st.builds(
        Properties,
        message_id=_TEXT | st.uuids(),
        user_id=st.none() | st.binary(max_size=3),
        subject=_TEXT,
        correlation_id=_TEXT | st.binary(max_size=3),
        content_encoding=st.sampled_from([None, "gzip"]),
        creation_time=st.none() | st.integers(0, 9),
        group_sequence=st.none() | st.integers(0, 9),
    ),
    st.dictionaries(st.text(min_size=1, max_size=3), VALUES, max_size=2),
    st.sampled_from([{}, {Symbol("x-mine"): 1}, {Symbol("x-opt-partition-key"): "k"}]),
)
def test_the_quick_way_in_keeps_the_same(
    header: Header, properties: Properties, application: dict[str, Any], annotations: dict[Any, Any]
) -> None:
    payload = (
        encode_composite(header)
        + section(Section.MESSAGE_ANNOTATIONS, annotations)
        + encode_composite(properties)
        + section(PROPERTIES, application)
        + DATA
    )
    quick = message_of(payload)
    with mock.patch.object(conversions, "_is_special", lambda header, given: True):
        assert exact(msgspec.structs.asdict(message_of(payload))) == exact(msgspec.structs.asdict(quick))


@given(st.binary(max_size=60))
def test_any_bytes_that_python_gives_do_no_harm(junk: bytes) -> None:
    sections = Sections(encode_message(stored(Message(b"body", properties={"n": 1}, amqp=junk))))
    assert sections.mapping(PROPERTIES)["n"] == 1


@pytest.mark.parametrize(
    "told", [{"types": 5}, {"types": {"n": []}}, {"types": {"n": 0x71}, "body": {}}, {"body": [-1, 5]}, [1]]
)
def test_strange_notes_do_no_harm(told: Any) -> None:
    sections = Sections(encode_message(stored(Message(b"body", amqp=section(Section.VALUE, told)))))
    assert sections.data() == b"body"


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="x-opt-scheduled-enqueue-time to be a timestamp, got str"):
        message_of(section(Section.MESSAGE_ANNOTATIONS, {Symbol("x-opt-scheduled-enqueue-time"): "now"}))
    with pytest.raises(MessageTooLarge):
        prepare(message_of(section(Section.FOOTER, {Symbol("x"): b"x" * 70_000}).replace(b"", DATA, 1)))
    with pytest.raises(DecodeError, match="a batch to be sections of data"):
        messages_of(section(Section.VALUE, "x"), BATCH_FORMAT)
    with pytest.raises(DecodeError, match="a data section to hold bytes"):
        message_of(section(Section.DATA, "text"))
    with pytest.raises(InvalidMessage, match="amqp to be bytes or None"):
        prepare(Message(b"", amqp="text"))  # type: ignore[arg-type]


def test_a_content_type_that_is_no_symbol_is_escaped() -> None:
    sections = Sections(encode_message(stored(Message(b"", content_type="text/é"))))
    assert sections.properties().content_type == "text/\\xe9"
