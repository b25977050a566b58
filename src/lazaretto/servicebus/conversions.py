"""Messages of AMQP and of Lazaretto, each made from the other. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from lazaretto.errors import InvalidMessage
from lazaretto.model.entities import MessageState
from lazaretto.model.headers import PropertyValue
from lazaretto.model.messages import Message, StoredMessage
from lazaretto.model.sized import sized
from lazaretto.servicebus.amqp import DecodeError, Header, Properties, Section, Sections, encode_section
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.values import Int, Symbol, Timestamp
from lazaretto.servicebus.plain_messages import (
    DEAD_LETTER_SOURCE,
    ENQUEUE_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LARGEST_TTL,
    LOCK_TOKEN,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    PARTITION_KEY,
    SCHEDULED_TIME,
    SEQUENCE_NUMBER,
    STATES,
    encode_plain,
    recorded_of,
    source_of,
    time_to_live,
    written,
    written_number,
)
from lazaretto.servicebus.residue import (
    Residue,
    body_of,
    data_of,
    encode_body,
    encode_types,
    moment_of,
    original,
    overlaid,
    read_residue,
    split_properties,
    text_of,
    typed,
    typed_all,
    types_alone,
)

#: The format of a message whose data sections are messages: Service Bus's batch.
BATCH_FORMAT: Final = 0x80013700

#: What the broker says of a message, which nobody else can.
_OF_BROKER: Final = frozenset({
    SEQUENCE_NUMBER, ENQUEUED_TIME, LOCKED_UNTIL, SCHEDULED_TIME, MESSAGE_STATE, ENQUEUE_SEQUENCE_NUMBER,
    DEAD_LETTER_SOURCE,
})  # fmt: skip
#: Milliseconds after which no message need end: the years of Python's calendar.
_LONGEST_LIFE: Final = 3_000_000 * 86_400_000
_OF_MESSAGE: Final = _OF_BROKER | {PARTITION_KEY}
_OF_DELIVERY: Final = frozenset({LOCK_TOKEN})
#: Properties that Lazaretto has fields for.
_TEXTS: Final = ("to", "subject", "reply_to", "content_type", "group_id", "reply_to_group_id")


def messages_of(payload: bytes, message_format: int) -> list[Message]:
    """Return the messages that a delivery carries: one, or those of a batch.

    Raises DecodeError for what is no message, InvalidMessage for what a queue cannot hold.
    """
    if message_format != BATCH_FORMAT:
        return [message_of(payload)]
    sections = Sections(payload)
    parts = sections.body_parts
    if parts and parts[0].section is not Section.DATA:
        raise DecodeError("expected a batch to be sections of data, got another section")
    return [message_of(data_of(sections.raw, part)) for part in parts]


def message_of(payload: bytes) -> Message:
    """Return the message that sections are. Raises DecodeError, InvalidMessage."""
    sections = Sections(payload)
    body, value_kinds = body_of(sections)
    header, standard = sections.header(), sections.properties()
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
    residue: bytes | None
    if (
        delivery
        or annotations
        or others
        or footer
        or value_kinds is not None
        or _is_special(header, standard)
    ):
        residue = Residue(
            Header(header.durable, header.priority),
            delivery,
            annotations,
            msgspec.structs.replace(
                standard,
                message_id=_unless_text(standard.message_id),
                correlation_id=_unless_text(standard.correlation_id),
                **dict.fromkeys(_TEXTS),
            ),
            others,
            types,
            value_kinds,
            footer,
        ).encoded()
    else:
        # As it would be encoded, without the work.
        residue = encode_types(types) if types else None
    if scheduled is not None and residue is None:
        # That it came from a client of Service Bus says that its life begins at its time.
        residue = b""
    return Message(
        body,
        text_of(standard.message_id) or None,
        standard.group_id,
        standard.subject,
        text_of(standard.correlation_id),
        standard.to,
        standard.reply_to,
        standard.reply_to_group_id,
        None if standard.content_type is None else str(standard.content_type),
        text_of(partition_key),
        _life(header, standard),
        None if scheduled is None else moment_of(scheduled),
        properties or None,
        amqp=residue,
    )


def _life(header: Header, properties: Properties) -> timedelta | None:
    """Return how long a message lives: beyond what a header can say, its properties tell."""
    made, ends = properties.creation_time, properties.absolute_expiry_time
    if header.ttl == LARGEST_TTL and made is not None and ends is not None and ends > made:
        return timedelta(milliseconds=min(ends - made, _LONGEST_LIFE))
    return None if header.ttl is None else timedelta(milliseconds=header.ttl)


def _is_special(header: Header, properties: Properties) -> bool:
    """Whether a header or properties say something that Lazaretto has no field for."""
    return not (
        header.durable is header.priority is None
        and (properties.message_id is None or type(properties.message_id) is str)
        and (properties.correlation_id is None or type(properties.correlation_id) is str)
        and properties.user_id is None
        and properties.content_encoding is None
        and properties.absolute_expiry_time is properties.creation_time is properties.group_sequence is None
    )


def _without(values: dict[Any, Any], names: frozenset[str]) -> dict[Any, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _unless_text(value: Any) -> Any:
    return None if type(value) is str else value


def properties_of(values: Mapping[Any, Any]) -> dict[str, PropertyValue]:
    """Return application properties that say their types. Raises InvalidMessage for lists and maps."""
    plain, types, others = split_properties(values)
    for name, value in others.items():
        kind = type(value).__name__
        raise InvalidMessage(f"expected property {name!r} to be a simple value, got {kind}")
    return {name: sized(value, types[name]) if name in types else value for name, value in plain.items()}


def encode_message(
    message: StoredMessage,
    *,
    token: bytes | None = None,
    locked_until: int | None = None,
    state: MessageState | None = None,
    deleted: bool = False,
    bare: bool = False,
) -> bytes:
    """Return a stored message as its receiver gets it.

    `token`: of the lock it is handed over with, as bytes, until `locked_until` in microseconds. `state`: of a
    message that is peeked at. `deleted`: it is handed over without a lock, for which Service Bus sends empty
    delivery annotations. `bare`: without its body.
    """
    headers = message.headers
    types = {} if headers.amqp is None else types_alone(headers.amqp)
    if types is None:
        return _encode_any(message, token, locked_until, state, deleted=deleted, bare=bare)
    types = overlaid(types, headers.types)
    return encode_plain(message, headers, types, token, locked_until, state, deleted=deleted, bare=bare)


def _encode_any(
    message: StoredMessage,
    token: bytes | None,
    locked_until: int | None,
    state: MessageState | None,
    *,
    deleted: bool,
    bare: bool,
) -> bytes:
    residue = read_residue(message.amqp)
    parts = [encode_composite(_header(message, residue.header))]
    delivery = residue.delivery_annotations
    if token is not None:
        delivery = {**delivery, Symbol(LOCK_TOKEN): uuid.UUID(bytes=token)}
    if delivery or deleted:
        parts.append(encode_section(Section.DELIVERY_ANNOTATIONS, delivery))
    annotations = residue.annotations | _annotations(message, locked_until, state)
    if PARTITION_KEY in annotations:
        annotations[PARTITION_KEY] = original(residue.annotations.get(PARTITION_KEY), message.partition_key)
    parts.append(encode_section(Section.MESSAGE_ANNOTATIONS, annotations))
    parts.append(encode_composite(_properties(message, residue.properties)))
    application = residue.application | _application(message, residue.types)
    if application:
        parts.append(encode_section(Section.APPLICATION_PROPERTIES, application))
    if not bare:
        parts.append(encode_body(message.body, residue.body))
    if residue.footer:
        parts.append(encode_section(Section.FOOTER, residue.footer))
    return b"".join(parts)


def _header(message: StoredMessage, residue: Header) -> Header:
    ttl = time_to_live(message, message.headers)
    return Header(
        residue.durable,
        residue.priority,
        None if ttl is None else min(ttl // 1000, LARGEST_TTL),
        delivery_count=message.delivery_count,
    )


def _annotations(
    message: StoredMessage, locked_until: int | None, state: MessageState | None
) -> dict[Any, Any]:
    """Return what the broker says of a message; as Service Bus, nothing that says nothing."""
    scheduled = message.scheduled_enqueue_time
    said: dict[str, Any] = {
        SEQUENCE_NUMBER: written_number(message.sequence_number),
        ENQUEUED_TIME: message.enqueued_time,
        LOCKED_UNTIL: None if locked_until is None else Timestamp(locked_until // 1000),
        MESSAGE_STATE: None if state not in STATES else Int(STATES[state]),
        ENQUEUE_SEQUENCE_NUMBER: written(message.enqueued_sequence_number),
        PARTITION_KEY: message.partition_key,
        SCHEDULED_TIME: scheduled,
        DEAD_LETTER_SOURCE: source_of(message.headers),
    }
    return {Symbol(name): value for name, value in said.items() if value is not None}


def _properties(message: StoredMessage, residue: Properties) -> Properties:
    content_type = message.content_type
    made, ends = residue.creation_time, residue.absolute_expiry_time
    ttl, life = message.headers.time_to_live, time_to_live(message, message.headers)
    if made is not None and ends is not None and ttl is not None and life is not None and life < ttl:
        # Its entity allows less. Clients take the difference for its time to live.
        ends = min(ends, made + life // 1000)
    return msgspec.structs.replace(
        residue,
        message_id=original(residue.message_id, message.message_id),
        absolute_expiry_time=ends,
        to=message.to,
        subject=message.subject,
        reply_to=message.reply_to,
        correlation_id=original(residue.correlation_id, message.correlation_id),
        # A symbol: in Python it may be any text.
        content_type=content_type and content_type.encode("ascii", "backslashreplace").decode(),
        group_id=message.session_id,
        reply_to_group_id=message.reply_to_session_id,
    )


def _application(message: StoredMessage, types: Mapping[str, int]) -> dict[str, Any]:
    types = overlaid(types, message.headers.types)
    values = typed_all(message.properties, types) | recorded_of(message)
    return {name: typed(value) for name, value in values.items()}
