"""What is shown as JSON: each field under its name, in its order, as the general rule for its type has it."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from lazaretto.model.clock import iso, to_datetime
from lazaretto.model.entities import MessageState
from lazaretto.model.filters.records import property_record
from lazaretto.model.headers import Headers, NegativeAcknowledgement, encode_headers
from lazaretto.model.messages import SENT_COLUMNS, Attempt, DeadLetter, PeekedMessage
from lazaretto.model.policy import Counters, Outcome
from lazaretto.model.records.plain import MESSAGE_FIELDS, body_record, plain
from lazaretto.web.answers import json_of

NOW = 1_790_000_000_000_000
FULL = Headers(
    session_id="s",
    subject="a \u202e b",
    correlation_id="c",
    to="t",
    reply_to="r",
    reply_to_session_id="rs",
    content_type="application/json",
    partition_key="p",
    time_to_live=90_000_001,
    scheduled_enqueue_time=NOW + 5_000_000,
    properties={
        "n": 1, "f": 0.1, "none": None, "yes": True, "bytes": b"\xff", "id": uuid.UUID(int=7),
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, timezone(timedelta(hours=2))),
    },
    dead_letter_queue="d",
    edit_of="e",
    dead_letter_source="q",
    amqp=b"\x00",
)  # fmt: skip


def _peeked(headers: Headers | None, body: bytes = b"{}", **more: Any) -> PeekedMessage:
    encoded = None if headers is None else encode_headers(headers)
    return PeekedMessage(
        (5 << 44) | (1 << 42) | 77,
        body,
        "id-\u00e9",
        NOW,
        None,
        encoded,
        None,
        4,
        3,
        2,
        1,
        9,
        None,
        None,
        **more,
    )


MESSAGES = {
    "bare": _peeked(None),
    "full": _peeked(
        FULL, b"\xff", state=MessageState.LOCKED, locked_until_micros=NOW + 1, error="ValueError: \x00"
    ),
    "rejected": _peeked(Headers(negative_acknowledgement=NegativeAcknowledgement("q", 1, 2, "no"))),
    "forwarded": _peeked(Headers(properties={"DeadLetterReason": "x"}, dead_letter_source="y")),
}


def _generally(message: PeekedMessage) -> dict[str, Any]:
    """Return a message by the rule for each type alone."""
    found = {name: plain(getattr(message, name)) for name in MESSAGE_FIELDS}
    found["properties"] = {name: property_record(value) for name, value in message.properties.items()}
    found |= {
        name: plain(getattr(message, name)) for name in ("state", "locked_until", "error", *SENT_COLUMNS)
    }
    return found | body_record(message.body)


@pytest.mark.parametrize("kind", [*MESSAGES])
def test_a_message(kind: str) -> None:
    message = MESSAGES[kind]
    assert json_of(message) == msgspec.json.encode(_generally(message))


@pytest.mark.parametrize("kind", [*MESSAGES, None])
def test_a_dead_letter(kind: str | None) -> None:
    attempt = Attempt(1, None, to_datetime(NOW), "w", Outcome.FAILED, "E", "m", "stack", "site", "f")
    letter = DeadLetter(
        queue="q", sequence_number=77, message_id="id", reason="r", description=None, error_type="E",
        error_message="m", dead_lettered=to_datetime(NOW), enqueued=to_datetime(NOW - 1),
        counters=Counters(1, 2, 3, 4, 5, 6, 7, 8), generation=1,
        message=None if kind is None else MESSAGES[kind], resolution="moved", resolved=to_datetime(NOW),
        resubmitted_as=3, attempts=(attempt,), moved_to="other", fingerprint="00ff",
    )  # fmt: skip
    expected = {field.name: plain(getattr(letter, field.name)) for field in dataclasses.fields(letter)}
    if letter.message is not None:
        expected["message"] = _generally(letter.message)
    assert json_of(letter) == msgspec.json.encode(expected)


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(0)), timezone(timedelta(hours=-3, minutes=-30))])
def test_a_time_is_told_in_utc_with_microseconds(zone: timezone) -> None:
    assert iso(datetime(2026, 1, 2, 3, 4, tzinfo=UTC).astimezone(zone)) == "2026-01-02T03:04:00.000000Z"
