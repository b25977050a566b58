"""Values as JSON shows them, and details of the logs as sentences."""

from __future__ import annotations

import base64
import dataclasses
import enum
import re
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from lazaretto.model.clock import iso, iso_of
from lazaretto.model.descriptions import QueueDescription
from lazaretto.model.entity_changes import merged, parts_of
from lazaretto.model.filters.records import filter_record, property_record, rule_record
from lazaretto.model.filters.rules import Filter, Rule
from lazaretto.model.messages import SENT_COLUMNS, DeadLetter, PeekedMessage, ReceivedMessage, StoredMessage

_AS_IT_IS = frozenset({type(None), bool, int, float, str})

#: What programs take an action back with, or compare; people have no use for it.
_FOR_PROGRAMS: Final = frozenset({"kind", "origin", "digest", "fingerprints", "parts"})
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?(\.\d+)?Z\Z")
_RUN: Final = re.compile(r"(\d+)-(\d+)\Z")

T = TypeVar("T")


def plain(value: Any) -> Any:
    """Return a value made of nothing but what JSON has."""
    if type(value) in _AS_IT_IS:
        return value
    if type(value) is ReceivedMessage:
        return message_record(value)
    match value:
        case bool() | int() | float() | str() if not isinstance(value, enum.Enum):
            return value
        case PeekedMessage() | ReceivedMessage():
            return message_record(value)
        case QueueDescription():
            return queue_record(value)
        case DeadLetter():
            return letter_record(value)
        case enum.Enum():
            return value.value
        case datetime():
            return iso(value)
        case timedelta():
            return value.total_seconds()
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case uuid.UUID():
            return {"uuid": str(value)}
        case Mapping():
            return {str(name): plain(part) for name, part in value.items()}
        case msgspec.Struct():
            return _fields(value, value.__struct_fields__)
        case tuple() if hasattr(value, "_asdict"):
            return plain(value._asdict())
        case list() | tuple() | set() | frozenset():
            return [plain(part) for part in value]
    if isinstance(value, Filter):
        return filter_record(value)
    if isinstance(value, Rule):
        return rule_record(value)
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return str(value)


def _fields(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return fields of an object; most hold what JSON has, and a call for each would take longest."""
    return {name: part if type(part := getattr(value, name)) in _AS_IT_IS else plain(part) for name in names}


def queue_record(queue: QueueDescription) -> dict[str, Any]:
    """Return a queue as JSON has it."""
    record = {f.name: plain(getattr(queue, f.name)) for f in dataclasses.fields(queue)}
    record["counts"]["total"] = queue.counts.total
    return record


def body_record(body: bytes) -> dict[str, str]:
    """Return a body under "body" if it is UTF-8, else under "body_base64"."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def message_record(message: StoredMessage) -> dict[str, Any]:
    """Return a message as JSON has it."""
    # Exports make one for each message: names that are spelled out take a quarter of the time of a loop.
    headers = message.headers
    properties = headers.properties
    record: dict[str, Any] = {
        "sequence_number": message.sequence_number,
        "message_id": message.message_id,
        "enqueued_time": iso_of(message.enqueued),
        "expires_at": plain(message.expires_at),
        "session_id": headers.session_id,
        "subject": headers.subject,
        "correlation_id": headers.correlation_id,
        "to": headers.to,
        "reply_to": headers.reply_to,
        "reply_to_session_id": headers.reply_to_session_id,
        "content_type": headers.content_type,
        "partition_key": headers.partition_key,
        "time_to_live": plain(message.time_to_live),
        "scheduled_enqueue_time": plain(message.scheduled_enqueue_time),
        "properties": {name: property_record(value) for name, value in properties.items()},
        "dead_letter_queue": headers.dead_letter_queue,
        "amqp": plain(headers.amqp),
        "attempt": message.attempt,
        "delivery_count": message.delivery_count,
        "cycle": message.cycle,
        "generation": message.generation,
        "enqueued_sequence_number": message.enqueued_sequence_number,
        "dead_letter_reason": message.dead_letter_reason,
        "dead_letter_error_description": message.dead_letter_error_description,
        "dead_letter_source": headers.dead_letter_source,
        "edit_of": headers.edit_of,
        "negative_acknowledgement": plain(headers.negative_acknowledgement),
    }
    if isinstance(message, PeekedMessage):
        record["state"] = message.state.value
        record["locked_until"] = plain(message.locked_until)
        record["error"] = message.error
        record |= _fields(message, SENT_COLUMNS)
    elif isinstance(message, ReceivedMessage) and message.lock is not None:
        record["lock_token"] = str(message.lock_token)
        record["locked_until"] = iso_of(message.lock.until)
    record.update(body_record(message.body))
    return record


_BARE = StoredMessage(0, b"", "", 0, None, None, None, 0, 0, 0, 0, None, None, None)
#: What is said of every message, beside its body.
MESSAGE_FIELDS: Final = tuple(name for name in message_record(_BARE) if name != "body")


def letter_record(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as JSON has it."""
    message = letter.message
    return {
        "queue": letter.queue,
        "sequence_number": letter.sequence_number,
        "message_id": letter.message_id,
        "reason": letter.reason,
        "description": letter.description,
        "error_type": letter.error_type,
        "error_message": letter.error_message,
        "dead_lettered": iso(letter.dead_lettered),
        "enqueued": iso(letter.enqueued),
        "counters": letter.counters._asdict(),
        "generation": letter.generation,
        "message": None if message is None else message_record(message),
        "resolution": letter.resolution,
        "resolved": plain(letter.resolved),
        "resubmitted_as": letter.resubmitted_as,
        "attempts": [plain(attempt) for attempt in letter.attempts],
        "moved_to": letter.moved_to,
        "fingerprint": letter.fingerprint,
    }


def told_detail(detail: Mapping[str, Any]) -> str:
    """Return a detail in words: "reason: out of stock, error type: ValueError"."""
    before = detail.get("before")
    parts = [
        f"{_words(name)}: {_told(value)}"
        for name, value in detail.items()
        if name not in _FOR_PROGRAMS and name != "before" and value not in (None, [], {})
    ]
    if isinstance(before, Mapping):
        earlier = {name: value for name, value in before.items() if not isinstance(value, Mapping)}
        if earlier:
            parts.append("before: " + ", ".join(f"{_words(n)} {_told(v)}" for n, v in earlier.items()))
    elif before is not None:
        parts.append(f"before: {_told(before)}")
    return ", ".join(parts)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _told(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,g}" if abs(value) < 1e6 else f"{value:,.0f}"
        case str():
            return _text(value)
        case Mapping():
            parts = [f"{_words(str(name))} {_told(part)}" for name, part in value.items() if part is not None]
            return ", ".join(parts) or "none"
        case list() | tuple():
            return ", ".join(map(_told, value)) or "none"
    return str(value)


def _text(value: str) -> str:
    moment, run = _TIME.match(value), _RUN.match(value)
    if moment is not None:
        return f"{moment[1]} {moment[2]} UTC"
    return value if run is None else f"{int(run[1]):,} to {int(run[2]):,}"


def options_from(kind: type[T], record: Mapping[str, Any]) -> T:
    """Return options from JSON. Raises InvalidOption."""
    return kind(**merged(parts_of(kind, record), None))


def changes_from(kind: type[Any], record: Mapping[str, Any], current: Any) -> dict[str, Any]:
    """Return changed options; of an object within them, only what is given changes. Raises InvalidOption."""
    return merged(parts_of(kind, record), current)
