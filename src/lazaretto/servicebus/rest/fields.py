"""Messages as headers and bodies of HTTP, each made from the other. Pure."""

from __future__ import annotations

import email.utils
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from lazaretto.errors import InvalidMessage
from lazaretto.model.headers import PropertyValue
from lazaretto.model.messages import Message, ReceivedMessage
from lazaretto.model.records.times import iso_time
from lazaretto.servicebus.atom.feeds import Refusal

#: The type of a body that has several messages.
BATCH: Final = "application/vnd.microsoft.servicebus.json"
#: The header with what the broker knows of a message.
BROKER_PROPERTIES: Final = "BrokerProperties"

#: Texts of a message by the names that they have there.
_TEXTS: Final = {
    "MessageId": "message_id",
    "Label": "subject",
    "CorrelationId": "correlation_id",
    "SessionId": "session_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "To": "to",
    "PartitionKey": "partition_key",
}
#: Headers that are no property of a message: those that clients of HTTP and what is between send.
_OF_HTTP: Final = frozenset({
    "accept", "accept-charset", "accept-encoding", "accept-language", "authorization", "cache-control",
    "connection", "content-encoding", "content-language", "content-length", "content-type", "cookie", "date",
    "dnt", "expect", "forwarded", "from", "host", "keep-alive", "max-forwards", "origin", "pragma",
    "proxy-authorization", "proxy-connection", "range", "referer", "te", "trailer", "transfer-encoding",
    "upgrade", "upgrade-insecure-requests", "user-agent", "via", "warning", "brokerproperties",
})  # fmt: skip
_PREFIXES_OF_HTTP: Final = ("sec-", "x-forwarded-", "if-", "x-ms-")
_BYTES: Final = b"application/octet-stream"
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
#: Seconds that stand for ever: the longest duration of .NET.
_FOR_EVER: Final = 922337203685.47754


def message_of(headers: Iterable[tuple[str, str]], body: bytes) -> Message:
    """Return the message of a request, with headers as they came. Raises Refusal, InvalidMessage."""
    named = {name.lower(): value for name, value in headers}
    properties = {
        name: _value(value)
        for name, value in headers
        if name.lower() not in _OF_HTTP and not name.lower().startswith(_PREFIXES_OF_HTTP)
    }
    source = _object(named.get(BROKER_PROPERTIES.lower(), "{}"), BROKER_PROPERTIES)
    return _message(body, source, properties, named.get("content-type"))


def messages_of(body: bytes) -> list[Message]:
    """Return the messages of a batch, each with Body, BrokerProperties and UserProperties. Raises Refusal."""
    try:
        rows = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"expected a batch to be JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not rows:
        raise Refusal(400, "expected a batch to be an array of objects, each with a Body")
    return [
        _message(
            _text(row.get("Body", ""), "Body").encode(),
            _dict(row.get("BrokerProperties") or {}, "BrokerProperties"),
            _simple(_dict(row.get("UserProperties") or {}, "UserProperties")),
            None,
        )
        for row in rows
    ]


def _message(
    body: bytes, source: Mapping[str, Any], properties: dict[str, PropertyValue], content_type: str | None
) -> Message:
    fields = {ours: _text(source[theirs], theirs) for theirs, ours in _TEXTS.items() if source.get(theirs)}
    life, time = source.get("TimeToLive"), source.get("ScheduledEnqueueTimeUtc")
    if life is not None and (not isinstance(life, int | float) or isinstance(life, bool)):
        raise Refusal(400, f"expected TimeToLive to be a number of seconds, got {json.dumps(life)[:100]}")
    scheduled = None if time is None else _moment(_text(time, "ScheduledEnqueueTimeUtc"))
    return Message(
        body,
        **fields,
        content_type=content_type
        if "ContentType" not in source
        else _text(source["ContentType"], "ContentType"),
        time_to_live=None if life is None or life >= _FOR_EVER else life,
        scheduled_enqueue_time=scheduled,
        properties=properties or None,
        # That it came in Service Bus's form says that its life begins at its time.
        amqp=None if scheduled is None else b"",
    )


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"expected {what} to be JSON: {error}") from None
    return _dict(value, what)


def _dict(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refusal(400, f"expected {what} to be an object, got {json.dumps(value)[:100]}")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise Refusal(400, f"expected {what} to be text, got {json.dumps(value)[:100]}")
    return value


def _simple(source: dict[str, Any]) -> dict[str, PropertyValue]:
    for name, value in source.items():
        if isinstance(value, dict | list):
            raise InvalidMessage(
                f"expected property {name!r} to be a simple value, got {type(value).__name__}"
            )
    return source


def _value(text: str) -> PropertyValue:
    """Return a property as a header spells it: JSON's text, number or boolean; any other text as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str | int | float) else text


def _moment(text: str) -> datetime:
    """Return a time in ISO 8601, or as HTTP has it. Raises Refusal."""
    try:
        moment = iso_time(text) if text[:1].isdigit() else email.utils.parsedate_to_datetime(text)
    except ValueError:
        moment = None
    if moment is None:
        raise Refusal(400, f"expected ScheduledEnqueueTimeUtc to be a time, got {text[:100]!r}")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def headers_of(message: ReceivedMessage) -> list[tuple[bytes, bytes]]:
    """Return the headers of a message: what the broker knows of it, and its properties that fit into some."""
    facts: dict[str, Any] = {
        theirs: value for theirs, ours in _TEXTS.items() if (value := getattr(message, ours)) is not None
    }
    # The entity may have given it a time to live, or a shorter one.
    ends = message.expires_at
    life = message.time_to_live if ends is None else ends - message.enqueued_time
    facts |= {
        "SequenceNumber": message.sequence_number,
        "EnqueuedSequenceNumber": message.enqueued_sequence_number or 0,
        "EnqueuedTimeUtc": _http_time(message.enqueued_time),
        "DeliveryCount": message.delivery_count + 1,
        "State": "Active",
        "TimeToLive": _FOR_EVER if life is None else life.total_seconds(),
    }
    if message.lock_token is not None and message.locked_until is not None:
        facts |= {"LockToken": str(message.lock_token), "LockedUntilUtc": _http_time(message.locked_until)}
    if message.content_type is not None:
        facts["ContentType"] = message.content_type
    if message.dead_letter_source is not None:
        facts["DeadLetterSource"] = message.dead_letter_source
    headers = [(BROKER_PROPERTIES.encode(), json.dumps(facts).encode())]
    for name, value in (message.properties or {}).items():
        if _NAME.fullmatch(name) and name.lower() not in _OF_HTTP:
            headers.append((name.encode(), json.dumps(_plain(value)).encode()))
    return headers


def type_of(message: ReceivedMessage) -> bytes:
    """Return the type of a message's body as a header can say it; its BrokerProperties have any."""
    content_type = message.content_type
    if content_type is None or not content_type.isascii() or not content_type.isprintable():
        return _BYTES
    return content_type.strip().encode() or _BYTES


def _plain(value: PropertyValue) -> Any:
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, datetime):
        return _http_time(value)
    if isinstance(value, Decimal):
        return float(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _http_time(moment: datetime) -> str:
    return email.utils.format_datetime(moment.astimezone(UTC), usegmt=True)
