"""Messages of AMQP and of Lazaretto, each made from the other. Pure."""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from lazaretto.amqp import DecodeError, Header, Properties, Section, Sections, encode, encode_section
from lazaretto.amqp.composites import encode_composite
from lazaretto.amqp.encode import NULL, described, map_of_raw, string, symbol, timestamp, uint
from lazaretto.amqp.values import Int, Symbol, Timestamp
from lazaretto.door.residue import (
    Residue,
    body_of,
    data_of,
    encode_body,
    moment_of,
    original,
    read_residue,
    split_properties,
    text_of,
    typed,
)
from lazaretto.errors import InvalidMessage
from lazaretto.model.entities import MessageState
from lazaretto.model.headers import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, PropertyValue
from lazaretto.model.messages import Message, StoredMessage

#: The format of a message whose data sections are messages: Service Bus's batch.
BATCH_FORMAT: Final = 0x80013700

SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
LOCKED_UNTIL: Final = "x-opt-locked-until"
SCHEDULED_TIME: Final = "x-opt-scheduled-enqueue-time"
PARTITION_KEY: Final = "x-opt-partition-key"
MESSAGE_STATE: Final = "x-opt-message-state"
ENQUEUE_SEQUENCE_NUMBER: Final = "x-opt-enqueue-sequence-number"
DEAD_LETTER_SOURCE: Final = "x-opt-deadletter-source"
LOCK_TOKEN: Final = "x-opt-lock-token"  # noqa: S105 - a name

#: What the broker says of a message, which nobody else can.
_OF_BROKER: Final = frozenset({
    SEQUENCE_NUMBER, ENQUEUED_TIME, LOCKED_UNTIL, SCHEDULED_TIME, MESSAGE_STATE, ENQUEUE_SEQUENCE_NUMBER,
    DEAD_LETTER_SOURCE,
})  # fmt: skip
_OF_MESSAGE: Final = _OF_BROKER | {PARTITION_KEY}
_OF_DELIVERY: Final = frozenset({LOCK_TOKEN})
#: Properties that Lazaretto has fields for.
_TEXTS: Final = ("to", "subject", "reply_to", "content_type", "group_id", "reply_to_group_id")
_STATES: Final = {MessageState.DEFERRED: 1, MessageState.SCHEDULED: 2}
_LARGEST_TTL: Final = 0xFFFFFFFF


def messages_of(payload: bytes, message_format: int) -> list[Message]:
    """Return the messages that a delivery carries: one, or those of a batch.

    Raises DecodeError for what is no message, InvalidMessage for what a queue cannot hold.
    """
    if message_format != BATCH_FORMAT:
        return [message_of(payload)]
    sections = Sections(payload)
    parts = sections.body_parts()
    if any(part.section != Section.DATA for part in parts):
        raise DecodeError("expected a batch to be sections of data, got another section")
    return [message_of(data_of(sections.raw, part.value)) for part in parts]


def message_of(payload: bytes) -> Message:
    """Return the message that sections are. Raises DecodeError, InvalidMessage."""
    sections = Sections(payload)
    body, held = body_of(sections)
    header, given = sections.header(), sections.properties()
    annotations = sections.mapping(Section.MESSAGE_ANNOTATIONS)
    properties, types, others = split_properties(sections.mapping(Section.APPLICATION_PROPERTIES))
    scheduled, partition_key = annotations.get(SCHEDULED_TIME), annotations.get(PARTITION_KEY)
    if not isinstance(scheduled, int | None):
        kind = type(scheduled).__name__
        raise InvalidMessage(f"expected {SCHEDULED_TIME} to be a timestamp, got {kind}")
    delivery = sections.mapping(Section.DELIVERY_ANNOTATIONS)
    delivery = _without(delivery, _OF_DELIVERY) if delivery else delivery
    if annotations:
        annotations = _without(annotations, _OF_MESSAGE if isinstance(partition_key, str) else _OF_BROKER)
    footer = sections.mapping(Section.FOOTER)
    if delivery or annotations or others or types or footer or held is not None or _is_special(header, given):
        left = Residue(
            Header(header.durable, header.priority),
            delivery,
            annotations,
            msgspec.structs.replace(
                given,
                message_id=_unless_text(given.message_id),
                correlation_id=_unless_text(given.correlation_id),
                **dict.fromkeys(_TEXTS),
            ),
            others,
            types,
            held,
            footer,
        ).encoded()
    else:
        # As it would be encoded, without the work.
        left = None
    return Message(
        body,
        message_id=text_of(given.message_id) or None,
        session_id=given.group_id,
        subject=given.subject,
        correlation_id=text_of(given.correlation_id),
        to=given.to,
        reply_to=given.reply_to,
        reply_to_session_id=given.reply_to_group_id,
        content_type=None if given.content_type is None else str(given.content_type),
        partition_key=text_of(partition_key),
        time_to_live=None if header.ttl is None else timedelta(milliseconds=header.ttl),
        scheduled_enqueue_time=None if scheduled is None else moment_of(scheduled),
        properties=properties or None,
        amqp=left,
    )


def _is_special(header: Header, given: Properties) -> bool:
    """Whether a header or properties say something that Lazaretto has no field for."""
    return not (
        header.durable is header.priority is None
        and (given.message_id is None or type(given.message_id) is str)
        and (given.correlation_id is None or type(given.correlation_id) is str)
        and given.user_id is None
        and given.content_encoding is None
        and given.absolute_expiry_time is given.creation_time is given.group_sequence is None
    )


def _without(values: dict[Any, Any], names: frozenset[str]) -> dict[Any, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _unless_text(value: Any) -> Any:
    return None if type(value) is str else value


def properties_of(given: Mapping[Any, Any]) -> dict[str, PropertyValue]:
    """Return application properties as Lazaretto keeps them. Raises InvalidMessage for lists and maps."""
    found, _, others = split_properties(given)
    for name, value in others.items():
        kind = type(value).__name__
        raise InvalidMessage(f"expected property {name!r} to be a simple value, got {kind}")
    return found


def encode_message(
    message: StoredMessage,
    *,
    token: uuid.UUID | None = None,
    locked_until: int | None = None,
    state: MessageState | None = None,
    deleted: bool = False,
    bare: bool = False,
) -> bytes:
    """Return a stored message as its receiver gets it.

    `token`: of the lock it is handed over with, until `locked_until` in microseconds. `state`: of a message
    that is peeked at. `deleted`: it is handed over without a lock, for which Service Bus sends empty delivery
    annotations. `bare`: without its body.
    """
    if message.amqp is None:
        return _encode_plain(message, token, locked_until, state, deleted=deleted, bare=bare)
    return _encode_any(message, token, locked_until, state, deleted=deleted, bare=bare)


def _encode_any(
    message: StoredMessage,
    token: uuid.UUID | None,
    locked_until: int | None,
    state: MessageState | None,
    *,
    deleted: bool,
    bare: bool,
) -> bytes:
    left = read_residue(message.amqp)
    parts = [encode_composite(_header(message, left.header))]
    delivery = left.delivery_annotations
    if token is not None:
        delivery = {**delivery, Symbol(LOCK_TOKEN): token}
    if delivery or deleted:
        parts.append(encode_section(Section.DELIVERY_ANNOTATIONS, delivery))
    annotations = left.annotations | _annotations(message, locked_until, state)
    if PARTITION_KEY in annotations:
        annotations[PARTITION_KEY] = original(left.annotations.get(PARTITION_KEY), message.partition_key)
    parts.append(encode_section(Section.MESSAGE_ANNOTATIONS, annotations))
    parts.append(encode_composite(_properties(message, left.properties)))
    given = left.application | _application(message, left.types)
    if given:
        parts.append(encode_section(Section.APPLICATION_PROPERTIES, given))
    if not bare:
        parts.append(encode_body(message.body, left.body))
    if left.footer:
        parts.append(encode_section(Section.FOOTER, left.footer))
    return b"".join(parts)


def _header(message: StoredMessage, left: Header) -> Header:
    ttl = message.headers.time_to_live
    return Header(
        left.durable,
        left.priority,
        None if ttl is None else min(ttl // 1000, _LARGEST_TTL),
        delivery_count=message.delivery_count,
    )


def _annotations(
    message: StoredMessage, locked_until: int | None, state: MessageState | None
) -> dict[Any, Any]:
    """Return what the broker says of a message; as Service Bus, nothing that says nothing."""
    scheduled = message.scheduled_enqueue_time
    said: dict[str, Any] = {
        SEQUENCE_NUMBER: message.sequence_number,
        ENQUEUED_TIME: message.enqueued_time,
        LOCKED_UNTIL: None if locked_until is None else Timestamp(locked_until // 1000),
        MESSAGE_STATE: None if state not in _STATES else Int(_STATES[state]),
        ENQUEUE_SEQUENCE_NUMBER: message.enqueued_sequence_number,
        PARTITION_KEY: message.partition_key,
        SCHEDULED_TIME: scheduled,
        DEAD_LETTER_SOURCE: message.dead_letter_source,
    }
    return {Symbol(name): value for name, value in said.items() if value is not None}


def _properties(message: StoredMessage, left: Properties) -> Properties:
    content_type = message.content_type
    return msgspec.structs.replace(
        left,
        message_id=original(left.message_id, message.message_id),
        to=message.to,
        subject=message.subject,
        reply_to=message.reply_to,
        correlation_id=original(left.correlation_id, message.correlation_id),
        # A symbol: in Python it may be any text.
        content_type=content_type and content_type.encode("ascii", "backslashreplace").decode(),
        group_id=message.session_id,
        reply_to_group_id=message.reply_to_session_id,
    )


def _application(message: StoredMessage, types: Mapping[str, int]) -> dict[str, Any]:
    given: dict[str, Any] = dict(message.properties)
    for name in types.keys() & given.keys():
        given[name] = typed(given[name], types[name])
    if message.recorded_reason is not None:
        given[DEAD_LETTER_REASON] = message.recorded_reason
    if message.recorded_description is not None:
        given[DEAD_LETTER_DESCRIPTION] = message.recorded_description
    return given


# Messages of which nothing is left: the same bytes as above, made quicker, because most messages are such.

_NAMES: Final = {
    name: symbol(name)
    for name in (
        SEQUENCE_NUMBER, ENQUEUED_TIME, LOCKED_UNTIL, MESSAGE_STATE, ENQUEUE_SEQUENCE_NUMBER, PARTITION_KEY,
        SCHEDULED_TIME, DEAD_LETTER_SOURCE,
    )
}  # fmt: skip
_TOKEN: Final = encode_section(Section.DELIVERY_ANNOTATIONS, {Symbol(LOCK_TOKEN): uuid.UUID(int=0)})[:-16]
_NO_DELIVERY: Final = encode_section(Section.DELIVERY_ANNOTATIONS, {})
_ANNOTATIONS: Final = bytes((0x00, 0x53, Section.MESSAGE_ANNOTATIONS))
#: The annotations that most messages have, with one constructor before each value.
_numbered: Final = struct.Struct(f">{len(_NAMES[SEQUENCE_NUMBER])}sBq{len(_NAMES[ENQUEUED_TIME])}sBq").pack
#: Properties after the message's id, of a message that has no others.
_NONE_GIVEN: Final = (None,) * 7
_NO_MORE: Final = (NULL,) * 12


def _encode_plain(
    message: StoredMessage,
    token: uuid.UUID | None,
    locked_until: int | None,
    state: MessageState | None,
    *,
    deleted: bool,
    bare: bool,
) -> bytes:
    parts = [_plain_header(message.headers.time_to_live, message.delivery_count)]
    if token is not None:
        parts.append(_TOKEN + token.bytes)
    elif deleted:
        parts.append(_NO_DELIVERY)
    parts.append(_plain_annotations(message, locked_until, state))
    parts.append(_plain_properties(message))
    given = _application(message, {})
    if given:
        parts.append(encode_section(Section.APPLICATION_PROPERTIES, given))
    if not bare:
        parts.append(encode_body(message.body, None))
    return b"".join(parts)


@functools.lru_cache(256)
def _plain_header(ttl: int | None, delivery_count: int) -> bytes:
    left = NULL if ttl is None else uint(min(ttl // 1000, _LARGEST_TTL))
    return described(Section.HEADER, (NULL, NULL, left, NULL, uint(delivery_count)))


def _plain_annotations(message: StoredMessage, locked_until: int | None, state: MessageState | None) -> bytes:
    headers = message.headers
    raw = _numbered(
        _NAMES[SEQUENCE_NUMBER], 0x81, message.sequence_number,
        _NAMES[ENQUEUED_TIME], 0x83, message.enqueued // 1000,
    )  # fmt: skip
    count = 4
    if locked_until is not None:
        raw += _NAMES[LOCKED_UNTIL] + timestamp(locked_until // 1000)
        count += 2
    for name, value in (
        (MESSAGE_STATE, None if state not in _STATES else Int(_STATES[state])),
        (ENQUEUE_SEQUENCE_NUMBER, message.enqueued_sequence_number),
        (PARTITION_KEY, headers.partition_key),
        (SCHEDULED_TIME, None if headers.scheduled_enqueue_time is None else message.scheduled_enqueue_time),
        (DEAD_LETTER_SOURCE, headers.dead_letter_source),
    ):
        if value is not None:
            raw += _NAMES[name] + encode(value)
            count += 2
    return _ANNOTATIONS + map_of_raw(raw, count)


def _plain_properties(message: StoredMessage) -> bytes:
    headers, content_type = message.headers, message.headers.content_type
    given = (
        headers.to, headers.subject, headers.reply_to, headers.correlation_id, content_type,
        headers.session_id, headers.reply_to_session_id,
    )  # fmt: skip
    if given == _NONE_GIVEN:
        return described(Section.PROPERTIES, (string(message.message_id), *_NO_MORE))
    fields = (
        string(message.message_id),
        NULL,
        _text(headers.to),
        _text(headers.subject),
        _text(headers.reply_to),
        _text(headers.correlation_id),
        NULL if content_type is None else symbol(content_type.encode("ascii", "backslashreplace").decode()),
        NULL,
        NULL,
        NULL,
        _text(headers.session_id),
        NULL,
        _text(headers.reply_to_session_id),
    )
    return described(Section.PROPERTIES, fields)


def _text(value: str | None) -> bytes:
    return NULL if value is None else string(value)
