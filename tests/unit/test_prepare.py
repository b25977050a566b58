"""What is checked of a message before it is sent."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lazaretto import InvalidMessage, Message, MessageTooLarge
from lazaretto.engine.messages.prepare import check_size, message_of, prepare
from lazaretto.model.headers import decode_headers

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


class TestBodies:
    """A body is bytes, and never decoded."""

    @pytest.mark.parametrize("body", [b"", b"x", b"\xff\x00", bytearray(b"ab"), memoryview(b"ab")])
    def test_bytes_of_all_kinds(self, body: Any) -> None:
        found = prepare(Message(body)).body
        assert type(found) is bytes
        assert found == bytes(body)

    def test_a_subclass_of_bytes_becomes_bytes(self) -> None:
        class Blob(bytes):
            pass

        assert type(prepare(Message(Blob(b"x"))).body) is bytes

    def test_text_is_told_how_to_become_bytes(self) -> None:
        with pytest.raises(InvalidMessage, match=r"expected body to be bytes, got text 'hi'; .*encode\(\)"):
            prepare(Message("hi"))  # type: ignore[arg-type]

    @pytest.mark.parametrize("body", [None, 5, ["x"], {"a": 1}])
    def test_other_types(self, body: Any) -> None:
        with pytest.raises(InvalidMessage, match="expected body to be bytes, got"):
            prepare(Message(body))


def test_a_plain_message_has_no_headers() -> None:
    found = prepare(Message(b"x"))
    assert (found.message_id, found.session_id, found.time_to_live, found.headers) == (None,) * 4


def test_every_field_is_carried() -> None:
    message = Message(
        b"x",
        message_id="m",
        session_id="s",
        subject="a",
        correlation_id="b",
        to="c",
        reply_to="d",
        reply_to_session_id="e",
        content_type="f",
        partition_key="s",
        time_to_live=1.5,
        scheduled_enqueue_time=NOON,
        properties={"n": 1},
        dead_letter_queue=None,
    )
    found = prepare(message)
    assert (found.message_id, found.session_id, found.partition_key) == ("m", "s", "s")
    assert (found.time_to_live, found.scheduled) == (1_500_000, round(NOON.timestamp() * 1e6))
    assert found.headers is not None
    headers = decode_headers(found.headers)
    assert (headers.subject, headers.correlation_id, headers.to, headers.reply_to) == ("a", "b", "c", "d")
    assert (headers.reply_to_session_id, headers.content_type, headers.dead_letter_queue) == ("e", "f", None)
    assert headers.properties == {"n": 1}


@pytest.mark.parametrize("field", ["message_id", "session_id", "partition_key", "reply_to_session_id"])
class TestIds:
    """Ids are text of at most 128 characters; only a message's may not be empty."""

    def test_the_longest(self, field: str) -> None:
        prepare(Message(b"", **{field: "x" * 128}))  # type: ignore[arg-type]

    def test_longer(self, field: str) -> None:
        with pytest.raises(InvalidMessage, match=f"expected {field} of [01] to 128 characters, got 129"):
            prepare(Message(b"", **{field: "x" * 129}))  # type: ignore[arg-type]

    def test_empty(self, field: str) -> None:
        message = Message(b"", **{field: ""})  # type: ignore[arg-type]
        if field == "message_id":
            with pytest.raises(InvalidMessage, match="expected message_id of 1 to 128 characters, got 0"):
                prepare(message)
        else:
            assert getattr(message_of(prepare(message)), field) == ""

    @pytest.mark.parametrize("value", [5, b"id", uuid.UUID(int=1)])
    def test_type(self, field: str, value: Any) -> None:
        with pytest.raises(InvalidMessage, match=f"expected {field} to be text or None, got"):
            prepare(Message(b"", **{field: value}))

    def test_a_lone_surrogate(self, field: str) -> None:
        with pytest.raises(InvalidMessage, match=f"expected {field} to be valid Unicode"):
            prepare(Message(b"", **{field: "\ud800"}))  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["subject", "correlation_id", "to", "reply_to", "content_type"])
def test_texts(field: str) -> None:
    prepare(Message(b"", **{field: ""}))  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match=f"expected {field} to be text"):
        prepare(Message(b"", **{field: 1}))  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match=f"expected {field} to be valid Unicode"):
        prepare(Message(b"", **{field: "a\udcff"}))  # type: ignore[arg-type]


def test_partition_key_and_session_id_must_agree() -> None:
    with pytest.raises(InvalidMessage, match="expected partition_key to be None or the session id 's'"):
        prepare(Message(b"", session_id="s", partition_key="p"))


class TestTimes:
    """Time to live and scheduled time."""

    @pytest.mark.parametrize(
        ("value", "micros"),
        [(1, 1_000_000), (0.000_000_1, 1), (timedelta(minutes=1), 60_000_000), (1e300, None)],
    )
    def test_time_to_live(self, value: Any, micros: int | None) -> None:
        assert prepare(Message(b"", time_to_live=value)).time_to_live == micros

    @pytest.mark.parametrize("value", [0, -1, float("nan"), "5", True, timedelta(0)])
    def test_time_to_live_refused(self, value: Any) -> None:
        with pytest.raises(InvalidMessage, match="expected time_to_live to be seconds above 0 or None, got"):
            prepare(Message(b"", time_to_live=value))

    @pytest.mark.parametrize("value", [5, "2024-05-01", datetime(2024, 5, 1)])  # noqa: DTZ001
    def test_scheduled_refused(self, value: Any) -> None:
        with pytest.raises(InvalidMessage, match="scheduled_enqueue_time to be a datetime with a time zone"):
            prepare(Message(b"", scheduled_enqueue_time=value))


class TestProperties:
    """Properties are of a few types, and bounded."""

    @pytest.mark.parametrize(
        "value",
        ["x", 1, -(1 << 63), (1 << 63) - 1, 1.5, True, b"x", uuid.UUID(int=1), NOON, None],
        ids=repr,
    )
    def test_types(self, value: Any) -> None:
        headers = prepare(Message(b"", properties={"p": value})).headers
        assert headers is not None
        assert decode_headers(headers).properties == {"p": value}

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ([1], "to be str, int, float, bool, bytes, UUID, datetime, timedelta, Decimal or None, got"),
            ({"a": 1}, "to be str, int, float, bool, bytes, UUID, datetime, timedelta, Decimal or None, got"),
            (1j, "to be str, int, float, bool, bytes, UUID, datetime, timedelta, Decimal or None, got"),
            (1 << 63, "to fit in 64 bits, got"),
            (datetime(2024, 5, 1), "to have a time zone, got"),  # noqa: DTZ001
            ("\ud800", "to be valid Unicode"),
        ],
        ids=repr,
    )
    def test_refused(self, value: Any, expected: str) -> None:
        with pytest.raises(InvalidMessage, match=f"expected property 'p' {expected}"):
            prepare(Message(b"", properties={"p": value}))

    @pytest.mark.parametrize("name", [5, "", "x" * 257, "\ud800"])
    def test_names(self, name: Any) -> None:
        with pytest.raises(InvalidMessage, match="expected a property's name"):
            prepare(Message(b"", properties={name: 1}))

    def test_not_a_mapping(self) -> None:
        with pytest.raises(InvalidMessage, match="expected properties to be a mapping, got"):
            prepare(Message(b"", properties=[("a", 1)]))  # type: ignore[arg-type]

    @pytest.mark.parametrize("value", ["x" * 32_769, b"x" * 32_769, "ä" * 16_385])
    def test_one_that_is_too_large(self, value: Any) -> None:
        with pytest.raises(MessageTooLarge, match="expected property 'p' of at most 32768 bytes, got"):
            prepare(Message(b"", properties={"p": value}))

    def test_all_together_too_large(self) -> None:
        with pytest.raises(MessageTooLarge, match="expected at most 65536 bytes of headers, got"):
            prepare(Message(b"", properties={str(n): "x" * 30_000 for n in range(3)}))


def test_the_size_is_body_and_headers_together() -> None:
    message = prepare(Message(b"x" * 1000, subject="y" * 100))
    assert message.headers is not None
    size = 1000 + len(message.headers)
    check_size(message, size)
    with pytest.raises(MessageTooLarge, match=rf"expected at most {size - 1} bytes .* got {size}"):
        check_size(message, size - 1)


@pytest.mark.parametrize("value", [b"x", None, {"body": b"x"}])
def test_not_a_message(value: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"expected a lazaretto\.Message, got"):
        prepare(value)
