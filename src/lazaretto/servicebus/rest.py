"""Answers requests about messages: checks who asks, and does what is asked for.

A message is made from headers and a body of HTTP, and these from a message.
"""

from __future__ import annotations

import asyncio
import email.utils
import enum
import json
import logging
import re
import uuid
from collections.abc import Awaitable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs

from lazaretto.aio.posting import introduce
from lazaretto.aio.readings import Readings
from lazaretto.errors import InvalidMessage, MessageLockLost
from lazaretto.model.actors import HTTP_CLIENT
from lazaretto.model.entities import EntityPath
from lazaretto.model.headers import PropertyValue
from lazaretto.model.messages import Message, ReceivedMessage
from lazaretto.model.spans import iso_time
from lazaretto.servicebus.answers import Settlement, Verb
from lazaretto.servicebus.atom import feeds
from lazaretto.servicebus.atom.application import admit
from lazaretto.servicebus.atom.feeds import Refusal, refusal_of
from lazaretto.servicebus.exchange import body_of, send_answer
from lazaretto.servicebus.grants import Grants, Right
from lazaretto.servicebus.server import Door
from lazaretto.serving.http import Receive, Scope, Send, seat_of, share_of, spelled_headers, until_gone

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


_MESSAGES: Final = "messages"

T = TypeVar("T")

_log = logging.getLogger("lazaretto.door")
#: Seconds that a receive waits at most, and unless it says for how long.
_LONGEST_WAIT: Final = 60.0
#: What a byte of a message takes: as the database has it, as bytes, as headers, and as it is sent.
_COST: Final = 6
#: Bytes of a batch, as a multiple of the largest message that the entity takes.
_BATCH_FACTOR: Final = 4
_XML: Final = b"application/xml;charset=utf-8"


class Act(enum.Enum):
    """An act on messages."""

    SEND = "send"
    LOCK = "lock"
    RECEIVE_AND_DELETE = "receive and delete"
    COMPLETE = "complete"
    UNLOCK = "unlock"
    RENEW = "renew"


class Wish(NamedTuple):
    """An act at an entity. `name`, `token`: of a message, its number or id, and its lock."""

    act: Act
    path: str
    name: str = ""
    token: uuid.UUID | None = None


_AT_HEAD: Final = {"POST": Act.LOCK, "DELETE": Act.RECEIVE_AND_DELETE}
_AT_LOCK: Final = {"DELETE": Act.COMPLETE, "PUT": Act.UNLOCK, "POST": Act.RENEW}


class _Answer(NamedTuple):
    status: int
    body: bytes = b""
    kind: bytes = _XML
    headers: tuple[tuple[bytes, bytes], ...] = ()


def wish_of(method: str, path: str) -> Wish | None:
    """Return what is asked for; None: nothing about messages."""
    parts = path.strip("/").split("/")
    words = [part.lower() for part in parts]
    if method == "POST" and len(parts) > 1 and words[-1] == _MESSAGES:
        return Wish(Act.SEND, "/".join(parts[:-1]))
    if len(parts) > 2 and words[-2:] == [_MESSAGES, "head"] and method in _AT_HEAD:
        return Wish(_AT_HEAD[method], "/".join(parts[:-2]))
    if len(parts) > 3 and words[-3] == _MESSAGES and method in _AT_LOCK:
        try:
            token = uuid.UUID(parts[-1])
        except ValueError:
            return None
        return Wish(_AT_LOCK[method], "/".join(parts[:-3]), parts[-2], token)
    return None


class Messages:
    """Sends, receives and settles for clients over HTTP."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, wish: Wish, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        grants = Grants(self._door.keys, self._door.guard, seat_of(scope))
        try:
            answer = await self._answer(wish, scope, receive, grants)
        except Exception as error:
            refusal = refusal_of(error, grants.sees)
            if isinstance(error, MessageLockLost):
                refusal = Refusal(404, refusal.detail)
            if refusal.status == 500:
                _log.error("a client's request failed: %s", type(error).__name__, exc_info=error)
            answer = _Answer(refusal.status, feeds.error(refusal).encode())
        await send_answer(send, answer.status, answer.body, answer.kind, answer.headers)

    async def _answer(self, wish: Wish, scope: Scope, receive: Receive, grants: Grants) -> _Answer:
        headers = spelled_headers(scope)
        named = {name.lower(): value for name, value in headers}
        self._door.check_page(named)
        right = Right.SEND if wish.act is Act.SEND else Right.LISTEN
        await admit(grants, wish.path, right, named.get("authorization", ""))
        self._door.guard.refuse_new_work()
        if wish.act is Act.SEND:
            return await self._send(wish, scope, receive, headers)
        await body_of(receive, 0)
        if wish.token is None:
            return await self._receive(wish, scope, receive, named, grants)
        return await self._settle(wish)

    async def _send(
        self, wish: Wish, scope: Scope, receive: Receive, headers: list[tuple[str, str]]
    ) -> _Answer:
        most = await self._door.size_of_messages(wish.path)
        share = share_of(scope)
        kind = next((value for name, value in headers if name.lower() == "content-type"), "")
        batch = kind.partition(";")[0].strip().lower() == BATCH
        body = await body_of(
            receive, most * _BATCH_FACTOR if batch else most, lambda size: share.hold(_COST * size)
        )
        messages = messages_of(body) if batch else [message_of(headers, body)]
        await self._door.broker.sender(wish.path).send(messages)
        return _Answer(201)

    async def _receive(
        self, wish: Wish, scope: Scope, receive: Receive, named: Mapping[str, str], grants: Grants
    ) -> _Answer:
        locks = wish.act is Act.LOCK
        await self._door.check_receivable(wish.path, of_session=False)
        wait = _wait_of(scope["query_string"].decode("latin-1"))
        share = share_of(scope)
        await share.hold(_COST * await Readings(self._door.broker).size_ahead(EntityPath.parse(wish.path), 1))
        receiver = self._door.broker.receiver(wish.path, mode="peek_lock" if locks else "receive_and_delete")
        introduce(receiver, wish.path, HTTP_CLIENT, grants.name_on(wish.path))
        messages: list[ReceivedMessage] = await _while_there(receive, receiver.receive(1, wait))
        if not messages:
            return _Answer(204)
        (message,) = messages
        headers = headers_of(message)
        if locks:
            at = f"{scope['scheme']}://{named.get('host', 'localhost')}/{wish.path}/messages"
            headers.append((b"Location", f"{at}/{message.sequence_number}/{message.lock_token}".encode()))
        return _Answer(201 if locks else 200, message.body, type_of(message), tuple(headers))

    async def _settle(self, wish: Wish) -> _Answer:
        assert wish.token is not None
        locked = await self._door.settler(wish.path).messages_held([wish.token])
        if wish.name not in (str(locked[0].sequence_number), locked[0].message_id):
            raise MessageLockLost(
                f"expected the number or id of the message that is locked, got {wish.name!r}"
            )
        if wish.act is Act.RENEW:
            await self._door.settler(wish.path).renew_lock(locked)
        else:
            verb = Verb.COMPLETE if wish.act is Act.COMPLETE else Verb.ABANDON
            await self._door.settle(wish.path, locked, Settlement(verb))
        return _Answer(200)


def _wait_of(query: str) -> float:
    """Return the seconds of the parameter `timeout`. Raises Refusal."""
    try:
        text = parse_qs(query, max_num_fields=100).get("timeout", [str(_LONGEST_WAIT)])[0]
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e9:
        raise Refusal(400, "expected timeout to be a number of seconds, got another value")
    return min(seconds, _LONGEST_WAIT)


async def _while_there(receive: Receive, work: Awaitable[T]) -> T:
    """Return what comes of work, which ends if the client goes: its messages go back."""
    task: asyncio.Future[Any] = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refusal(408, "the client has gone")
        return task.result()  # type: ignore[no-any-return]
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
