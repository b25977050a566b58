"""Checks a message that is to be sent and encodes its headers. Pure: no store, no clock."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from lazaretto.clock import to_micros
from lazaretto.entities import SYSTEM_DEAD_LETTER_QUEUE
from lazaretto.errors import InvalidMessage, MessageTooLarge
from lazaretto.headers import (
    IDS,
    LONGEST_ID,
    MAX_HEADERS_SIZE,
    MAX_PROPERTY_SIZE,
    Headers,
    PropertyValue,
    encode_headers,
)
from lazaretto.messages import Message
from lazaretto.options import shown
from lazaretto.store.records import NewMessage

#: Longer times to live mean for ever.
_FOREVER_MICROS = 1 << 60
_INT64 = 1 << 63
_TEXTS = ("subject", "correlation_id", "to", "reply_to", "content_type")


def prepare(message: Message) -> NewMessage:
    """Return a message checked and encoded. Raises InvalidMessage or MessageTooLarge."""
    if type(message) is not Message:
        raise InvalidMessage(f"expected a lazaretto.Message, got {shown(message)}")
    body = message.body if type(message.body) is bytes else _body(message.body)
    if _is_plain(message):
        return NewMessage(body, None, None, None, None, None, None)
    for name in IDS:
        value = getattr(message, name)
        if value is not None:
            _check_id(name, value)
    session_id, partition_key = message.session_id, message.partition_key
    if partition_key is not None and session_id is not None and partition_key != session_id:
        raise InvalidMessage(
            f"expected partition_key to be None or the session id {shown(session_id)}, "
            f"got {shown(partition_key)}"
        )
    time_to_live = _time_to_live(message.time_to_live)
    scheduled = _scheduled(message.scheduled_enqueue_time)
    headers = _headers(message, time_to_live, scheduled)
    return NewMessage(body, message.message_id, session_id, time_to_live, scheduled, partition_key, headers)


def _is_plain(m: Message) -> bool:
    """Return whether a message is a body and nothing else, which needs no further look."""
    return (
        m.message_id is None
        and m.session_id is None
        and m.subject is None
        and m.correlation_id is None
        and m.to is None
        and m.reply_to is None
        and m.reply_to_session_id is None
        and m.content_type is None
        and m.partition_key is None
        and m.time_to_live is None
        and m.scheduled_enqueue_time is None
        and m.properties is None
        and m.dead_letter_queue == SYSTEM_DEAD_LETTER_QUEUE
    )


def check_size(message: NewMessage, limit: int) -> int:
    """Return the bytes of body and headers together. Raises MessageTooLarge if they are over the limit."""
    size = len(message.body) + (len(message.headers) if message.headers else 0)
    if size > limit:
        raise MessageTooLarge(
            f"expected at most {limit} bytes of body and headers (max_message_size), got {size}"
        )
    return size


def _body(body: object) -> bytes:
    if type(body) is bytes:
        return body
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if isinstance(body, str):
        raise InvalidMessage(f"expected body to be bytes, got text {shown(body)}; encode it: body.encode()")
    raise InvalidMessage(f"expected body to be bytes, got {shown(body)}")


def check_text(name: str, value: object, longest: int | None = None) -> str:
    """Return `value` if it is text that can be stored, else raise InvalidMessage."""
    if not isinstance(value, str):
        raise InvalidMessage(f"expected {name} to be text or None, got {shown(value)}")
    if longest is not None and not 0 < len(value) <= longest:
        raise InvalidMessage(f"expected {name} of 1 to {longest} characters, got {len(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(f"expected {name} to be valid Unicode, got a lone surrogate in it") from None
    return value


def _check_id(name: str, value: object) -> None:
    check_text(name, value, LONGEST_ID)


def _time_to_live(value: object) -> int | None:
    if value is None:
        return None
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or math.isnan(number) or number <= 0:
        raise InvalidMessage(f"expected time_to_live to be seconds above 0 or None, got {shown(value)}")
    micros = number * 1_000_000
    return None if micros >= _FOREVER_MICROS else max(1, round(micros))


def _scheduled(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidMessage(
            f"expected scheduled_enqueue_time to be a datetime with a time zone, got {shown(value)}"
        )
    return to_micros(value)


def _headers(message: Message, time_to_live: int | None, scheduled: int | None) -> bytes | None:
    for name in _TEXTS:
        value = getattr(message, name)
        if value is not None:
            check_text(name, value)
    if message.dead_letter_queue is not None:
        check_text("dead_letter_queue", message.dead_letter_queue)
    headers = Headers(
        message.session_id,
        message.subject,
        message.correlation_id,
        message.to,
        message.reply_to,
        message.reply_to_session_id,
        message.content_type,
        message.partition_key,
        time_to_live,
        scheduled,
        check_properties(message.properties) if message.properties else {},
        message.dead_letter_queue,
    )
    return encode_bounded(headers)


_PLAIN = encode_headers(Headers())


def encode_bounded(headers: Headers) -> bytes | None:
    """Return headers encoded, None if there is nothing in them; MessageTooLarge over the quota."""
    encoded = encode_headers(headers)
    if encoded == _PLAIN:
        return None
    if len(encoded) > MAX_HEADERS_SIZE:
        raise MessageTooLarge(f"expected at most {MAX_HEADERS_SIZE} bytes of headers, got {len(encoded)}")
    return encoded


def check_properties(properties: object) -> dict[str, Any]:
    """Return application properties as a dictionary. Raises InvalidMessage, MessageTooLarge."""
    if not isinstance(properties, Mapping):
        raise InvalidMessage(f"expected properties to be a mapping, got {shown(properties)}")
    return {check_text("a property's name", name, 256): _property(name, v) for name, v in properties.items()}


def _property(name: str, value: object) -> PropertyValue:
    if value is None or isinstance(value, bool | float | uuid.UUID):
        return value
    if isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise InvalidMessage(f"expected property {name!r} to fit in 64 bits, got {shown(value)}")
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidMessage(f"expected property {name!r} to have a time zone, got {shown(value)}")
        return value
    if isinstance(value, str | bytes):
        size = len(check_text(f"property {name!r}", value).encode() if isinstance(value, str) else value)
        if size > MAX_PROPERTY_SIZE:
            raise MessageTooLarge(
                f"expected property {name!r} of at most {MAX_PROPERTY_SIZE} bytes, got {size}"
            )
        return value
    raise InvalidMessage(
        f"expected property {name!r} to be str, int, float, bool, bytes, UUID, datetime or None, "
        f"got {shown(value)}"
    )
