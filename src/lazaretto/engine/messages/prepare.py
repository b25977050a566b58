"""Checks a message before it is sent and encodes its headers. Pure: no store, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from lazaretto.errors import InvalidMessage, MessageTooLarge
from lazaretto.model.checks import is_aware, shown
from lazaretto.model.clock import to_datetime, to_micros
from lazaretto.model.entities import LONGEST_PATH, SYSTEM_DEAD_LETTER_QUEUE
from lazaretto.model.filters.view import MessageView
from lazaretto.model.headers import (
    LONGEST_ID,
    MAX_HEADERS_SIZE,
    SHORTEST_IDS,
    Headers,
    check_properties,
    check_text,
    decode_headers,
    encode_headers,
)
from lazaretto.model.messages import (
    SENT_COLUMNS,
    Message,
    SentColumns,
    StoredMessage,
    as_body,
    as_message,
    sent_columns,
    sets_columns,
)
from lazaretto.store.records.messages import NewMessage

#: What can be sent: a message, or a copy of one that was received or peeked at.
Sendable = Message | StoredMessage

#: A longer time to live means forever.
_FOREVER_MICROS = 1 << 60
_TEXTS = ("subject", "correlation_id", "to", "reply_to", "content_type")


def prepare(message: Message | StoredMessage) -> NewMessage:
    """Check and encode a message; a received or peeked message is copied.

    Raises InvalidMessage or MessageTooLarge.
    """
    if type(message) is not Message:
        message = as_message(message)
    body = message.body if type(message.body) is bytes else _body(message.body)
    if (
        # It is only a body, perhaps with an id: nothing else needs checks.
        message.session_id is None
        and message.subject is None
        and message.correlation_id is None
        and message.to is None
        and message.reply_to is None
        and message.reply_to_session_id is None
        and message.content_type is None
        and message.partition_key is None
        and message.time_to_live is None
        and message.scheduled_enqueue_time is None
        and (message.properties is None or (type(message.properties) is dict and not message.properties))
        and type(message.dead_letter_queue) is str
        and message.dead_letter_queue == SYSTEM_DEAD_LETTER_QUEUE
        and message.amqp is None
        and not (SENT_COLUMNS and sets_columns(message))
    ):
        named = message.message_id
        if named is not None:
            named = check_text("message_id", named, LONGEST_ID)
        return NewMessage(body, named, None, None, None, None, None)
    message_id, session_id, partition_key, reply_to_session_id = (
        value if (value := getattr(message, name)) is None else check_text(name, value, LONGEST_ID, shortest)
        for name, shortest in SHORTEST_IDS.items()
    )
    if partition_key is not None and session_id is not None and partition_key != session_id:
        raise InvalidMessage(
            f"expected partition_key to be None or the session id {shown(session_id)}, "
            f"got {shown(partition_key)}"
        )
    time_to_live = _time_to_live(message.time_to_live)
    scheduled = _scheduled(message.scheduled_enqueue_time)
    subject, correlation_id, to, reply_to, content_type = _texts(message, _TEXTS)
    (dead_letter_queue,) = _texts(message, ("dead_letter_queue",), LONGEST_PATH)
    properties = {} if message.properties is None else check_properties(message.properties)
    headers = Headers(
        session_id, subject, correlation_id, to, reply_to, reply_to_session_id, content_type, partition_key,
        time_to_live, scheduled, properties, dead_letter_queue, amqp=_amqp(message.amqp),
    )  # fmt: skip
    encoded = encode_bounded(headers)
    # As at Service Bus, whose clients send such messages.
    begins = scheduled if scheduled is not None and headers.amqp is not None else 0
    columns = _columns(message) if SENT_COLUMNS else {}
    return NewMessage(
        body, message_id, session_id, time_to_live, scheduled, partition_key, encoded, begins,
        dead_letter_queue, dead_letter_queue is not None or bool(columns), **columns,
    )  # fmt: skip


def view_of(message: Message | StoredMessage) -> MessageView:
    """Return a message as rules see it when it is sent. Raises InvalidMessage or MessageTooLarge."""
    made = prepare(message)
    headers = decode_headers(made.headers)
    return MessageView(headers, made.message_id, size=len(made.body), body=lambda: made.body)


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
    advice = as_body(body)
    raise InvalidMessage(f"expected body to be bytes, got {shown(body)}{advice}")


def _amqp(value: object) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidMessage(f"expected amqp to be bytes or None, got {shown(value)}")
    return bytes(value)


def _texts(message: Message, names: tuple[str, ...], longest: int | None = None) -> list[str | None]:
    """Check the fields of a message that must be text or None, and return them."""
    texts: list[str | None] = []
    for name in names:
        value = getattr(message, name)
        texts.append(value if value is None else check_text(name, value, longest))
    return texts


def _columns(message: Message) -> dict[str, Any]:
    """Check what is set in columns of its own, and return it by name. Texts are as long as ids, at most."""
    columns = sent_columns(message)
    try:
        msgspec.convert(columns, SentColumns)
    except msgspec.ValidationError as error:
        raise InvalidMessage(f"expected other columns of the message: {error}") from None
    return {
        name: check_text(name, value, LONGEST_ID, 0) if isinstance(value, str) else value
        for name, value in columns.items()
        if value is not None
    }


def _time_to_live(value: object) -> int | None:
    if value is None:
        return None
    number = value.total_seconds() if isinstance(value, timedelta) else value
    # NaN is not above 0 either.
    if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
        raise InvalidMessage(f"expected time_to_live to be seconds above 0 or None, got {shown(value)}")
    micros = number if number >= _FOREVER_MICROS else number * 1_000_000
    return None if micros >= _FOREVER_MICROS else max(1, round(micros))


def _scheduled(value: object) -> int | None:
    if value is None:
        return None
    if not is_aware(value):
        raise InvalidMessage(
            f"expected scheduled_enqueue_time to be a datetime with a time zone, got {shown(value)}"
        )
    return to_micros(value)


_PLAIN = encode_headers(Headers())


def encode_bounded(headers: Headers) -> bytes | None:
    """Return encoded headers, None if they are empty. Raises MessageTooLarge above the quota."""
    encoded = encode_headers(headers)
    if encoded == _PLAIN:
        return None
    if len(encoded) > MAX_HEADERS_SIZE:
        raise MessageTooLarge(f"expected at most {MAX_HEADERS_SIZE} bytes of headers, got {len(encoded)}")
    return encoded


def prepare_all(messages: object) -> list[NewMessage]:
    """Return one message or several, checked and encoded. Raises InvalidMessage."""
    if isinstance(messages, Sendable):
        return [prepare(messages)]
    return [prepare(message) for message in several(messages)]


def several(messages: object) -> Iterable[Any]:
    """Return the messages if they are a collection, else raise InvalidMessage."""
    if isinstance(messages, Iterable) and not isinstance(messages, str | bytes | bytearray | Mapping):
        return messages
    advice = as_body(messages)
    raise InvalidMessage(f"expected a lazaretto.Message or a list of them, got {shown(messages)}{advice}")


def message_of(new: NewMessage) -> Message:
    """Return a message that is ready to be sent as users hold it."""
    headers = decode_headers(new.headers)
    names = [name for name in Message.__struct_fields__ if name not in ("body", "message_id", *SENT_COLUMNS)]
    fields = {**sent_columns(new), **{name: getattr(headers, name) for name in names}}
    ttl, scheduled = headers.time_to_live, headers.scheduled_enqueue_time
    fields["time_to_live"] = None if ttl is None else timedelta(microseconds=ttl)
    fields["scheduled_enqueue_time"] = None if scheduled is None else to_datetime(scheduled)
    return Message(body=new.body, message_id=new.message_id, **fields)
