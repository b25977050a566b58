"""Headers: what is encoded comes back, with its type."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from lazaretto.model.headers import (
    Headers,
    NegativeAcknowledgement,
    PropertyValue,
    decode_headers,
    encode_headers,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TIMES = st.datetimes(
    datetime(1, 1, 2),  # noqa: DTZ001 - the strategy adds the zone
    datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.just(UTC) | st.integers(-14, 14).map(lambda hours: timezone(timedelta(hours=hours))),
)
VALUES: st.SearchStrategy[PropertyValue] = st.one_of(
    TEXT,
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.booleans(),
    st.binary(max_size=30),
    st.uuids(),
    TIMES,
    st.none(),
    st.timedeltas(),
    st.decimals(allow_nan=False, allow_infinity=False),
)


@given(st.dictionaries(TEXT, VALUES, max_size=8))
def test_properties_keep_their_types(properties: dict[str, PropertyValue]) -> None:
    found = decode_headers(encode_headers(Headers(properties=dict(properties)))).properties
    assert found.keys() == properties.keys()
    for name, value in properties.items():
        assert type(found[name]) is type(value) or isinstance(value, datetime)
        both_nan = isinstance(value, float) and math.isnan(value) and math.isnan(found[name])
        assert both_nan or found[name] == value


@given(
    texts=st.lists(st.none() | TEXT, min_size=8, max_size=8),
    numbers=st.lists(st.none() | st.integers(0, 1 << 60), min_size=2, max_size=2),
)
def test_fields_come_back(texts: list[str | None], numbers: list[int | None]) -> None:
    headers = Headers(*texts, *numbers)  # type: ignore[arg-type]
    assert decode_headers(encode_headers(headers)) == headers


def test_an_unset_sender_queue_and_none_are_told_apart() -> None:
    assert decode_headers(encode_headers(Headers())).dead_letter_queue == "$system/deadletter"
    assert decode_headers(encode_headers(Headers(dead_letter_queue=None))).dead_letter_queue is None


def test_a_negative_acknowledgement_comes_back() -> None:
    word = NegativeAcknowledgement("orders", 7, 0xC004, "Rejected: no such customer")
    found = decode_headers(encode_headers(Headers(negative_acknowledgement=word)))
    assert found.negative_acknowledgement == word
    assert (word.kind, word.status) == ("rejected", "not_delivered")


def test_encoding_leaves_the_callers_properties_alone() -> None:
    given_uuid = uuid.uuid4()
    properties: dict[str, PropertyValue] = {"id": given_uuid}
    encode_headers(Headers(properties=properties))
    assert properties == {"id": given_uuid}
