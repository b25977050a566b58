"""Stored messages as AMQP, of which nothing is left but types that an AMQP client sent: most are such. Pure.

The bytes are those of `conversions.encode_message`, made quicker.
"""

from __future__ import annotations

import functools
import itertools
import secrets
import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lazaretto.errors import MessageNotFound
from lazaretto.model.entities import MessageState
from lazaretto.model.headers import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    EMPTY_HEADERS,
    Headers,
)
from lazaretto.model.keys import PARTITION_SEQUENCE_BITS
from lazaretto.model.messages import StoredMessage
from lazaretto.servicebus.amqp import Section, encode, encode_section
from lazaretto.servicebus.amqp.encode import (
    NULL,
    described,
    long,
    map_of_raw,
    string,
    symbol,
    timestamp,
    uint,
)
from lazaretto.servicebus.amqp.values import Int, Symbol
from lazaretto.servicebus.residue import typed, typed_all

#: Promised numbers begin here, beyond all that a queue gives.
_FIRST: Final = 1 << 62
#: Promises that are remembered; beyond them, the first ones are forgotten.
_MOST: Final = 10_000

_PARTITION_BITS: Final = 48
_LAST: Final = (1 << PARTITION_SEQUENCE_BITS) - 1
_LAST_HERE: Final = (1 << _PARTITION_BITS) - 1

SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
LOCKED_UNTIL: Final = "x-opt-locked-until"
SCHEDULED_TIME: Final = "x-opt-scheduled-enqueue-time"
PARTITION_KEY: Final = "x-opt-partition-key"
MESSAGE_STATE: Final = "x-opt-message-state"
ENQUEUE_SEQUENCE_NUMBER: Final = "x-opt-enqueue-sequence-number"
DEAD_LETTER_SOURCE: Final = "x-opt-deadletter-source"
LOCK_TOKEN: Final = "x-opt-lock-token"  # noqa: S105 - a name

#: The states of messages that clients are told of.
STATES: Final = {MessageState.DEFERRED: 1, MessageState.SCHEDULED: 2}
LARGEST_TTL: Final = 0xFFFFFFFF

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
#: The annotations that all messages have, with one constructor before each value.
_numbered: Final = struct.Struct(f">{len(_NAMES[SEQUENCE_NUMBER])}sBq{len(_NAMES[ENQUEUED_TIME])}sBq").pack
#: The whole section for a message that has these and a lock.
_BEGIN: Final = (
    _ANNOTATIONS
    + map_of_raw(
        _numbered(_NAMES[SEQUENCE_NUMBER], 0x81, 0, _NAMES[ENQUEUED_TIME], 0x83, 0)
        + _NAMES[LOCKED_UNTIL]
        + timestamp(0),
        6,
    )[: 3 + len(_NAMES[SEQUENCE_NUMBER])]
)
_locked: Final = struct.Struct(
    f">{len(_BEGIN)}sBq{len(_NAMES[ENQUEUED_TIME])}sBq{len(_NAMES[LOCKED_UNTIL])}sBq"
).pack
#: The properties of a message that has no others than its id.
_IDENTIFIED: Final = b"\x00\x53\x73\xc0%c\x0d\xa1%c%b" + NULL * 12
#: The longest id whose properties have a size of one byte.
_LONGEST: Final = 255 - 1 - 2 - 12
_APPLICATION: Final = bytes((0x00, 0x53, Section.APPLICATION_PROPERTIES))
#: The same names come again and again.
_name: Final = functools.lru_cache(1024)(string)
_DATA: Final = b"\x00\x53\x75"
_pack_size: Final = struct.Struct(">4sI").pack


class Promises:
    """Stand-ins for numbers, which clients may give back to cancel what they scheduled."""

    def __init__(self) -> None:
        # Another server, or this one started again, must not take one of them for its own.
        self._next = itertools.count(_FIRST + secrets.randbits(60))
        self._kept: dict[int, int] = {}

    def make(self, count: int) -> list[int]:
        """Return numbers that stand for those that a commit will give."""
        return list(itertools.islice(self._next, count))

    def keep(self, promised: Sequence[int], numbers: Sequence[int]) -> None:
        """Remember which numbers a commit has given for those that were promised."""
        self._kept.update(zip(promised, numbers, strict=True))
        while len(self._kept) > _MOST:
            del self._kept[next(iter(self._kept))]

    def number_of(self, size: int) -> int:
        """Return the number that a client means. Raises MessageNotFound for a promise that was not kept."""
        if size < _FIRST:
            return read_number(size)
        if size not in self._kept:
            raise MessageNotFound("expected the number of a scheduled message, got one that was never given")
        return self._kept[size]


def written_number(number: int) -> int:
    """Return a number of this store as clients get it; it is the same in the first partition."""
    if number <= _LAST:
        return number
    return number >> PARTITION_SEQUENCE_BITS << _PARTITION_BITS | number & _LAST


def read_number(number: int) -> int:
    """Return the number in this store that a client means, or that of the place where it would be."""
    if number <= _LAST:
        return number
    return number >> _PARTITION_BITS << PARTITION_SEQUENCE_BITS | min(number & _LAST_HERE, _LAST)


def encode_plain(
    message: StoredMessage,
    headers: Headers,
    types: Mapping[str, int],
    token: bytes | None,
    locked_until: int | None,
    state: MessageState | None,
    *,
    deleted: bool,
    bare: bool,
) -> bytes:
    """Return a message as its receiver gets it. `types`: of its properties. See `encode_message`."""
    parts = [_header(time_to_live(message, headers), message.delivery_count)]
    if token is not None:
        parts += _TOKEN, token
    elif deleted:
        parts.append(_NO_DELIVERY)
    parts.append(_annotations(message, headers, locked_until, state))
    raw = message.message_id.encode()
    if len(raw) <= _LONGEST and _only_id(headers):
        parts.append(_IDENTIFIED % (len(raw) + 15, len(raw), raw))
    else:
        parts.append(_properties(message, headers))
    application: dict[str, Any] = typed_all(headers.properties, types) if types else headers.properties
    if message.recorded_reason is not None or message.recorded_description is not None:
        application = application | recorded_of(message)
    if application:
        parts.append(_application(application))
    if not bare:
        body = message.body
        size = len(body)
        parts.append(_DATA + bytes((0xA0, size)) if size < 256 else _pack_size(_DATA + b"\xb0", size))
        parts.append(body)
    return b"".join(parts)


def time_to_live(message: StoredMessage, headers: Headers) -> int | None:
    """Return for how long a message lives that was given a time: less if its entity allows less."""
    ttl = headers.time_to_live
    if ttl is None or message.expires is None:
        return ttl
    return min(ttl, message.expires - message.enqueued)


def recorded_of(message: StoredMessage) -> dict[str, str]:
    """Return the properties that tell why a message is a dead letter, or was one."""
    reasons = {
        DEAD_LETTER_REASON: message.recorded_reason,
        DEAD_LETTER_DESCRIPTION: message.recorded_description,
    }
    return {name: text for name, text in reasons.items() if text is not None}


@functools.lru_cache(256)
def _header(ttl: int | None, delivery_count: int) -> bytes:
    milliseconds = NULL if ttl is None else uint(min(ttl // 1000, LARGEST_TTL))
    return described(Section.HEADER, (NULL, NULL, milliseconds, NULL, uint(delivery_count)))


def written(number: int | None) -> int | None:
    """Return a number as clients get it, None for None."""
    return None if number is None else written_number(number)


def source_of(headers: Headers) -> str | None:
    """Return which entity's dead letter a message was, with a subscription as Service Bus writes it."""
    path = headers.dead_letter_source
    return None if path is None else path.replace("/subscriptions/", "/Subscriptions/")


def _annotations(
    message: StoredMessage, headers: Headers, locked_until: int | None, state: MessageState | None
) -> bytes:
    plain = headers is EMPTY_HEADERS or (
        headers.partition_key is headers.dead_letter_source is None and headers.scheduled_enqueue_time is None
    )
    if plain and locked_until is not None and state is None and message.enqueued_sequence_number is None:
        return _locked(
            _BEGIN, 0x81, written_number(message.sequence_number),
            _NAMES[ENQUEUED_TIME], 0x83, message.enqueued // 1000,
            _NAMES[LOCKED_UNTIL], 0x83, locked_until // 1000,
        )  # fmt: skip
    raw = _numbered(
        _NAMES[SEQUENCE_NUMBER], 0x81, written_number(message.sequence_number),
        _NAMES[ENQUEUED_TIME], 0x83, message.enqueued // 1000,
    )  # fmt: skip
    count = 4
    if locked_until is not None:
        raw += _NAMES[LOCKED_UNTIL] + timestamp(locked_until // 1000)
        count += 2
    for name, value in (
        (MESSAGE_STATE, None if state not in STATES else Int(STATES[state])),
        (ENQUEUE_SEQUENCE_NUMBER, written(message.enqueued_sequence_number)),
        (PARTITION_KEY, headers.partition_key),
        (SCHEDULED_TIME, None if headers.scheduled_enqueue_time is None else message.scheduled_enqueue_time),
        (DEAD_LETTER_SOURCE, source_of(headers)),
    ):
        if value is not None:
            raw += _NAMES[name] + encode(value)
            count += 2
    return _ANNOTATIONS + map_of_raw(raw, count)


def _only_id(headers: Headers) -> bool:
    """Whether a message's properties are its id alone."""
    return headers is EMPTY_HEADERS or (
        headers.to is headers.subject is headers.reply_to is headers.correlation_id is None
        and headers.content_type is headers.session_id is headers.reply_to_session_id is None
    )


def _properties(message: StoredMessage, headers: Headers) -> bytes:
    content_type = headers.content_type
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


def _encode_typed(value: Any) -> bytes:
    return encode(typed(value))


def _application(values: dict[str, Any]) -> bytes:
    parts: list[bytes] = []
    for key, value in values.items():
        kind = type(value)
        write = string if kind is str else long if kind is int else _encode_typed
        parts += _name(key), write(value)
    return _APPLICATION + map_of_raw(b"".join(parts), len(parts))
