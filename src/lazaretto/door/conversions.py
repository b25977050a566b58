"""Messages of AMQP and of Lazaretto, each made from the other. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lazaretto.amqp import DecodeError, Header, Properties, Section, Sections, encode
from lazaretto.amqp.composites import encode_composite
from lazaretto.amqp.decode import PLAIN, read
from lazaretto.amqp.encode import binary, symbol_map
from lazaretto.amqp.values import Char, Decimal, Int, Symbol, Timestamp
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

_STATES: Final = {MessageState.DEFERRED: 1, MessageState.SCHEDULED: 2}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_TTL: Final = 0xFFFFFFFF
_EARLIEST, _LATEST = -62_135_596_800_000, 253_402_300_799_999


def messages_of(payload: bytes, message_format: int) -> list[Message]:
    """Return the messages that a delivery carries: one, or those of a batch.

    Raises DecodeError for what is no message, InvalidMessage for what a queue cannot hold.
    """
    if message_format != BATCH_FORMAT:
        return [message_of(payload)]
    sections = Sections(payload)
    parts = [part for part in sections.parts if part.section == Section.DATA]
    return [message_of(_data(sections.raw, part.value)) for part in parts]


def _data(raw: bytes, place: int) -> bytes:
    value, _ = read(raw, place, PLAIN)
    if not isinstance(value, bytes):
        raise DecodeError(f"expected a data section to hold bytes, got {type(value).__name__}")
    return value


def message_of(payload: bytes) -> Message:
    """Return the message that sections are."""
    sections = Sections(payload)
    body = sections.data()
    if body is None:
        if any(part.section in (Section.SEQUENCE, Section.VALUE) for part in sections.parts):
            raise InvalidMessage("expected a body of data, got one of AMQP values; send bytes or text")
        body = b"".join(sections.body())
    header, properties = sections.header(), sections.properties()
    annotations = sections.mapping(Section.MESSAGE_ANNOTATIONS)
    given = sections.mapping(Section.APPLICATION_PROPERTIES)
    scheduled = annotations.get(SCHEDULED_TIME)
    return Message(
        body,
        message_id=_text(properties.message_id) or None,
        session_id=properties.group_id,
        subject=properties.subject,
        correlation_id=_text(properties.correlation_id),
        to=properties.to,
        reply_to=properties.reply_to,
        reply_to_session_id=properties.reply_to_group_id,
        content_type=None if properties.content_type is None else str(properties.content_type),
        partition_key=_text(annotations.get(PARTITION_KEY)),
        time_to_live=None if header.ttl is None else timedelta(milliseconds=header.ttl),
        scheduled_enqueue_time=_moment(scheduled) if isinstance(scheduled, int) else None,
        properties=properties_of(given) or None,
    )


def properties_of(given: Mapping[Any, Any]) -> dict[str, PropertyValue]:
    """Return application properties as Lazaretto keeps them. Raises InvalidMessage for lists and maps."""
    found: dict[str, PropertyValue] = {}
    for name, value in given.items():
        text = _text(name)
        if text is None:
            raise InvalidMessage(f"expected a property's name to be text, got {name!r}")
        found[text] = _plain(text, value)
    return found


def _plain(name: str, value: Any) -> PropertyValue:
    if isinstance(value, Timestamp):
        return _moment(value)
    if isinstance(value, Symbol | Char):
        return str(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str | bytes | uuid.UUID):
        return value
    kind = "a decimal number" if isinstance(value, Decimal) else f"a {type(value).__name__}"
    raise InvalidMessage(f"expected property {name!r} to be a simple value, got {kind}")


def _moment(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(max(milliseconds, _EARLIEST), _LATEST))


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def encode_message(
    message: StoredMessage,
    *,
    token: uuid.UUID | None = None,
    locked_until: datetime | None = None,
    state: MessageState | None = None,
    deleted: bool = False,
) -> bytes:
    """Return a stored message as its receiver gets it.

    `token`: of the lock it is handed over with. `state`: of a message that is peeked at. `deleted`: it is
    handed over without a lock, for which Service Bus sends empty delivery annotations.
    """
    parts = [encode_composite(_header(message))]
    if token is not None:
        parts.append(_section(Section.DELIVERY_ANNOTATIONS, symbol_map({LOCK_TOKEN: token})))
    elif deleted:
        parts.append(_section(Section.DELIVERY_ANNOTATIONS, symbol_map({})))
    annotations = symbol_map(_annotations(message, locked_until, state))
    parts.append(_section(Section.MESSAGE_ANNOTATIONS, annotations))
    parts.append(encode_composite(_properties(message)))
    given = _application(message)
    if given:
        parts.append(_section(Section.APPLICATION_PROPERTIES, encode(given)))
    parts.append(_section(Section.DATA, binary(message.body)))
    return b"".join(parts)


def _section(section: Section, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((section,)) + value


def _header(message: StoredMessage) -> Header:
    ttl = message.headers.time_to_live
    return Header(
        ttl=None if ttl is None else min(ttl // 1000, _LARGEST_TTL), delivery_count=message.delivery_count
    )


def _annotations(
    message: StoredMessage, locked_until: datetime | None, state: MessageState | None
) -> dict[str, Any]:
    """Return what the broker says of a message; as Service Bus, nothing that says nothing."""
    scheduled = message.scheduled_enqueue_time
    said: dict[str, Any] = {
        SEQUENCE_NUMBER: message.sequence_number,
        ENQUEUED_TIME: message.enqueued_time,
        LOCKED_UNTIL: locked_until,
        MESSAGE_STATE: None if state not in _STATES else Int(_STATES[state]),
        ENQUEUE_SEQUENCE_NUMBER: message.enqueued_sequence_number,
        PARTITION_KEY: message.partition_key,
        SCHEDULED_TIME: scheduled,
        DEAD_LETTER_SOURCE: message.dead_letter_source,
    }
    return {name: value for name, value in said.items() if value is not None}


def _properties(message: StoredMessage) -> Properties:
    return Properties(
        message.message_id,
        to=message.to,
        subject=message.subject,
        reply_to=message.reply_to,
        correlation_id=message.correlation_id,
        content_type=message.content_type,
        group_id=message.session_id,
        reply_to_group_id=message.reply_to_session_id,
    )


def _application(message: StoredMessage) -> dict[str, Any]:
    given: dict[str, Any] = dict(message.properties)
    if message.recorded_reason is not None:
        given[DEAD_LETTER_REASON] = message.recorded_reason
    if message.recorded_description is not None:
        given[DEAD_LETTER_DESCRIPTION] = message.recorded_description
    return given
