"""Values of AMQP 1.0: what is written is read again, and what is no value is refused."""

from __future__ import annotations

import datetime
import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazaretto.errors import InvalidMessage
from lazaretto.servicebus.amqp import AmqpError, DecodeError, decode, encode
from lazaretto.servicebus.amqp.decode import MOST_DEPTH, skip
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


def _integers(kind: type[int], low: int, high: int) -> st.SearchStrategy[Any]:
    return st.integers(low, high).map(kind)


_ASCII = st.text(st.characters(max_codepoint=127), max_size=300)
SIMPLE: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    _integers(UByte, 0, 2**8 - 1),
    _integers(UShort, 0, 2**16 - 1),
    _integers(UInt, 0, 2**32 - 1),
    _integers(ULong, 0, 2**64 - 1),
    _integers(Byte, -(2**7), 2**7 - 1),
    _integers(Short, -(2**15), 2**15 - 1),
    _integers(Int, -(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float),
    st.characters().map(Char),
    st.text(max_size=300),
    _ASCII.map(Symbol),
    st.binary(max_size=300),
    st.uuids(),
    _integers(Timestamp, -(2**63), 2**63 - 1),
    st.sampled_from([4, 8, 16]).flatmap(lambda n: st.binary(min_size=n, max_size=n)).map(Decimal),
)
_KEYS = st.one_of(_ASCII.map(Symbol), st.text(max_size=20))
_ARRAYS: st.SearchStrategy[Any] = st.one_of(
    st.lists(_integers(UInt, 0, 2**32 - 1)).map(lambda items: Array(0x70, items)),
    st.lists(st.text(max_size=300)).map(lambda items: Array(0xB1, items)),
    st.lists(_ASCII.map(Symbol), min_size=1).map(lambda items: Array(0xB3, items, Symbol("name"))),
    st.lists(st.lists(st.integers(0, 5))).map(lambda items: Array(0xD0, items)),
    st.lists(st.booleans()).map(lambda items: Array(0x56, items)),
)
VALUES = st.recursive(
    SIMPLE | _ARRAYS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(_KEYS, inner, max_size=5),
        st.tuples(_ASCII.map(Symbol), inner).map(lambda pair: Described(*pair)),
    ),
    max_leaves=20,
)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of equal types, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return _same(list(one.items()), list(other.items()))
    return bool(one == other)


@given(VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    raw = encode(value)
    found = decode(raw)
    assert _same(found, value)
    assert encode(found) == raw
    assert skip(raw, 0) == len(raw)


@given(VALUES, st.data())
def test_a_value_cut_short_is_refused(value: Any, data: st.DataObject) -> None:
    raw = encode(value)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    with pytest.raises(DecodeError):
        decode(cut)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_value_or_refused(raw: bytes) -> None:
    try:
        value = decode(raw)
    except AmqpError:
        return
    encode(value)


# Examples of the specification's part 1, and the widths that it allows for one value.
WIDTHS = {
    b"\x40": None,
    b"\x41": True,
    b"\x56\x01": True,
    b"\x56\x00": False,
    b"\x43": UInt(0),
    b"\x52\x07": UInt(7),
    b"\x70\x00\x00\x00\x07": UInt(7),
    b"\x44": ULong(0),
    b"\x53\x07": ULong(7),
    b"\x54\xf9": Int(-7),
    b"\x55\xf9": -7,
    b"\xa1\x02hi": "hi",
    b"\xb1\x00\x00\x00\x02hi": "hi",
    b"\x45": [],
    b"\xc0\x01\x00": [],
    b"\xc0\x03\x02\x41\x42": [True, False],
    b"\xd0\x00\x00\x00\x06\x00\x00\x00\x02\x41\x42": [True, False],
    b"\xc1\x05\x02\xa3\x01a\x41": {Symbol("a"): True},
    b"\xe0\x04\x02\x50\x01\x02": Array(0x50, [UByte(1), UByte(2)]),
    b"\xe0\x05\x01\xa3\x02hi": Array(0xB3, [Symbol("hi")]),
    b"\x00\xa3\x01x\x41": Described(Symbol("x"), True),
}


@pytest.mark.parametrize("raw", WIDTHS, ids=bytes.hex)
def test_each_width_is_read(raw: bytes) -> None:
    assert _same(decode(raw), WIDTHS[raw])


BAD = {
    "nothing": b"",
    "an unknown constructor": b"\x3f",
    "a boolean of 2": b"\x56\x02",
    "text that is no UTF-8": b"\xa1\x01\xff",
    "a symbol that is no ASCII": b"\xa3\x02\xc3\xa9",
    "a character beyond Unicode": b"\x73\x00\x11\x00\x00",
    "a list longer than it says": b"\xc0\x02\x02\x41\x42",
    "a list shorter than it says": b"\xc0\x04\x02\x41\x42\x41",
    "a map with a key alone": b"\xc1\x02\x01\x41",
    "a map whose key is a list": b"\xc1\x03\x02\x45\x41",
    "a count of four thousand million": b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
    "an array of two descriptors": b"\xe0\x06\x01\x00\x44\x00\x44\x40",
    "an array of many nothings": b"\xf0\x00\x00\x00\x05\x00\x00\xff\xff\x40",
    "an array of unknown items": b"\xe0\x03\x01\x3f\x00",
    "more behind the value": b"\x41\x41",
    "too deep a list": b"\xc0\x7f\x01" * 300,
    "too deep a description": b"\x00" * 300,
    "a size of four thousand million": b"\xb0\xff\xff\xff\xffx",
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_value_is_refused(kind: str) -> None:
    with pytest.raises(DecodeError, match="expected"):
        decode(BAD[kind])


def test_depth_is_bounded() -> None:
    value: Any = []
    for _ in range(MOST_DEPTH):
        value = [value]
    assert decode(encode(value)) == value
    with pytest.raises(DecodeError):
        decode(encode([value]))
    with pytest.raises(DecodeError):
        skip(b"\x00" * 100 + b"\x40", 0)


def test_numbers_of_python_have_their_types() -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=datetime.UTC)
    assert decode(encode(moment)) == Timestamp(1_767_323_045_678)
    assert type(decode(encode(2**64 - 1))) is ULong
    assert math.isnan(decode(encode(math.nan)))
    assert decode(encode(bytearray(b"x"))) == b"x"


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**63) - 1,
        UByte(256),
        Byte(200),
        Symbol("é"),
        Decimal(b"12345"),
        datetime.datetime(2026, 1, 2),  # noqa: DTZ001 - without a zone
        object(),
        {1: object()},
        Array(0x70, ["text"]),
        Array(0xB1, [b"bytes"]),
        "\ud800",
        Float(1e300),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_amqp_has_no_value_for_is_refused(value: Any) -> None:
    with pytest.raises(InvalidMessage, match="expected"):
        encode(value)


def test_an_id_keeps_its_type() -> None:
    for given_id in (ULong(5), uuid.uuid4(), b"raw", "text"):
        assert _same(decode(encode(given_id)), given_id)
