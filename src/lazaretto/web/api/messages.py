"""Messages: sent, received under a lock, settled by their lock tokens, and looked at."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from lazaretto.aio.posting import introduce
from lazaretto.broker.settling import Mode
from lazaretto.dialogs.declaration import as_declaration
from lazaretto.dialogs.description import ConversationDescription, TimelineEntry
from lazaretto.engine.messages.peek import ROOM
from lazaretto.errors import InvalidMessage, MessageTooLarge
from lazaretto.model.actors import HTTP_CLIENT, client_name
from lazaretto.model.clock import iso
from lazaretto.model.entities import EntityPath
from lazaretto.model.filters.records import property_value
from lazaretto.model.grants import Permission
from lazaretto.model.message_history import MessageHistory
from lazaretto.model.messages import Message, PeekedMessage, ReceivedMessage
from lazaretto.model.records.messages import message_of, refuse_many, usual_messages
from lazaretto.observe.traces.context import TRACEPARENT, TRACESTATE, has_context, parse, properties_of
from lazaretto.web.bounded import COST, LastingResponse, array_of, peeked
from lazaretto.web.refusals import HttpError
from lazaretto.web.routes import Call, OfQueue, Query, route
from lazaretto.web.viewed import readings_of

#: Messages of one request.
_MOST_SENT = 10_000
#: Bytes of the messages that one receive takes, unless the first alone has more.
_RECEIVED = 8 << 20
#: Bytes for which nothing is held.
_SMALL = 65_536
#: How long a receive may wait for its first message, in seconds.
_LONGEST_WAIT = 60.0

Count = Annotated[int, Meta(ge=1, le=1000)]

_LIKE = Message(b"")


class PeekQuery(OfQueue, kw_only=True, frozen=True):
    """`start`: the lowest sequence number. `session_id`: only messages of a session."""

    session_id: str | None = None
    subqueue: str | None = None
    start: Annotated[int, Meta(ge=0)] = 0
    limit: Count = 50


class ReceiveQuery(OfQueue, kw_only=True, frozen=True):
    """`wait`: seconds to wait for the first message."""

    subqueue: str | None = None
    limit: Count = 1
    wait: Annotated[float, Meta(ge=0, le=_LONGEST_WAIT)] = 0.0
    mode: Mode = "peek_lock"


class SettleQuery(OfQueue, kw_only=True, frozen=True):
    subqueue: str | None = None


class Sent(msgspec.Struct):
    """The sequence numbers of the messages, in their order."""

    sequence_numbers: list[int]


class Verb(enum.Enum):
    """How messages are settled."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEAD_LETTER = "dead_letter"
    DEFER = "defer"
    INVALID = "invalid"
    RELEASE = "release"


class Settlement(msgspec.Struct, forbid_unknown_fields=True):
    """How the messages that are held under lock tokens are settled: all of them, or none.

    `error`: of the failed attempt. `delay`: seconds until an abandoned message is tried again. `reason`,
    `description`: of a dead letter. `properties`: application properties to add.
    """

    verb: Verb
    lock_tokens: Annotated[list[uuid.UUID], Meta(min_length=1, max_length=1000)]
    error: str | None = None
    delay: float | None = None
    reason: str | None = None
    description: str | None = None
    properties: dict[str, Any] | None = None


class Renewal(msgspec.Struct, forbid_unknown_fields=True):
    lock_tokens: Annotated[list[uuid.UUID], Meta(min_length=1, max_length=1000)]


class Renewed(msgspec.Struct):
    """Until when the locks hold now: the earliest."""

    locked_until: str


class Numbers(msgspec.Struct, forbid_unknown_fields=True):
    sequence_numbers: Annotated[list[int], Meta(min_length=1, max_length=1000)]


class ConversationsQuery(Query, frozen=True):
    """`held`: only conversations that a poison message holds. `after`: `next` of the page before."""

    queue: str | None = None
    state: str | None = None
    group: str | None = None
    held: bool = False
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ConversationPage(Struct):
    """Conversations in the order of their handles. `next`: what `after` is on the next page, or null."""

    items: list[ConversationDescription]
    next: str | None


class Definitions(Struct):
    """Message types, contracts, services and priorities, as a file of definitions has them."""

    definitions: dict[str, Any]


@route("POST", "/messages", Permission.SEND, success=201, most=None)
async def send(call: Call, query: OfQueue, body: msgspec.Raw) -> Sent:
    """Send a message, or an array of messages in one commit, to a queue or a topic.

    The body of a message is "body", a text or any JSON, which is sent as it is spelled; or "body_base64".
    """
    messages, sender = _messages_of(bytes(body)), call.broker.sender(query.queue)
    traced = _traced(messages, call.request.headers)
    try:
        numbers = await sender.send(traced)
    except MessageTooLarge:
        if traced is messages:
            raise
        # What is just as large as it may be is sent without a trace context.
        numbers = await sender.send(messages)
    return Sent([numbers] if isinstance(numbers, int) else list(numbers))


def _messages_of(content: bytes) -> list[Message]:
    try:
        refuse_many(content, _MOST_SENT)
    except ValueError as error:
        raise HttpError("request_too_large", str(error)) from None
    usual = usual_messages(content)
    if usual is not None:
        return usual
    rows = [content]
    if content.lstrip()[:1] == b"[":
        try:
            rows = [bytes(row) for row in msgspec.json.decode(content, type=list[msgspec.Raw])]
        except RecursionError:
            raise InvalidMessage("the JSON is nested too deep") from None
    messages = []
    for place, row in enumerate(rows):
        try:
            messages.append(message_of(row, _LIKE))
        except ValueError as error:
            raise InvalidMessage(f"message {place}: {error}") from None
    return messages


def _traced(messages: list[Message], headers: Mapping[str, str]) -> list[Message]:
    """Return messages with the request's trace context, if it has one, where they have none."""
    context = parse(headers.get(TRACEPARENT), headers.get(TRACESTATE))
    if context is None:
        return messages
    carried, traced = properties_of(context), []
    for message in messages:
        properties = message.properties or {}
        if not has_context(properties):
            message = msgspec.structs.replace(message, properties={**properties, **carried})
        traced.append(message)
    return traced


@route("GET", "/messages", Permission.READ_BODIES)
async def peek(call: Call, query: PeekQuery) -> list[PeekedMessage] | Response:
    """Look at messages in the order of their numbers, without a lock."""
    path = EntityPath.parse(query.queue, query.subqueue)
    parts = peeked(call.share, readings_of(call.broker), path, query.limit, query.start, query.session_id)
    messages, last = await anext(parts)
    if last:
        return messages
    return LastingResponse(call.while_allowed(array_of(messages, parts)), media_type="application/json")


@route("GET", "/messages/{number}", Permission.READ_BODIES)
async def show_message(call: Call, query: OfQueue, number: int) -> MessageHistory:
    """Show a message, wherever it is, and what happened to it, also before and after it was sent back."""
    await call.hold_messages(query.queue, [number])
    return await call.broker.message_history(query.queue, number)


@route("POST", "/messages/receive", Permission.RECEIVE)
async def receive(call: Call, query: ReceiveQuery) -> list[ReceivedMessage]:
    """Receive messages in order, each with the token of its lock; wait for the first one.

    `mode=receive_and_delete` deletes them at once.
    """
    receiver = call.broker.receiver(query.queue, subqueue=query.subqueue, mode=query.mode)
    client = call.identity
    introduce(
        receiver,
        str(EntityPath.parse(query.queue, query.subqueue)),
        HTTP_CLIENT,
        client_name(client.name, client.origin),
    )
    limit = await _room_to_receive(call, query)
    receiving = receiver.receive(limit, query.wait)
    # Nobody needs to watch a client that does not wait.
    messages = await (call.wait_for(receiving) if query.wait else receiving)
    call.held.keep(query.queue, query.subqueue, messages)
    return messages


async def _room_to_receive(call: Call, query: ReceiveQuery) -> int:
    """Hold what messages as large as those ahead take, and return how many there is room for."""
    largest = call.held.largest(query.queue)
    if largest is None or largest * query.limit > ROOM:
        path = EntityPath.parse(query.queue, query.subqueue)
        largest = await readings_of(call.broker).size_ahead(path, query.limit)
    limit = max(1, min(query.limit, _RECEIVED // max(1, largest)))
    if largest * limit > _SMALL:
        await call.share.hold(COST * largest * limit)
    return limit


@route("POST", "/messages/receive-deferred", Permission.RECEIVE)
async def receive_deferred(call: Call, query: SettleQuery, body: Numbers) -> list[ReceivedMessage]:
    """Receive deferred messages by their numbers: all of them, or none."""
    await call.hold_messages(query.queue, body.sequence_numbers)
    receiver = call.broker.receiver(query.queue, subqueue=query.subqueue)
    return await receiver.receive_deferred(body.sequence_numbers)


@route("POST", "/messages/cancel", Permission.SEND, success=204)
async def cancel_scheduled(call: Call, query: OfQueue, body: Numbers) -> None:
    """Cancel scheduled messages by their numbers: all of them, or none."""
    await call.broker.sender(query.queue).cancel(body.sequence_numbers)


@route("POST", "/messages/settle", Permission.RECEIVE, success=204)
async def settle(call: Call, query: SettleQuery, body: Settlement) -> None:
    """Settle messages that are held under lock tokens: all of them, or none."""
    receiver = call.broker.receiver(query.queue, subqueue=query.subqueue)
    messages = call.held.take(query.queue, query.subqueue, body.lock_tokens)
    if messages is None:
        messages = await receiver.messages_held(body.lock_tokens)
    properties = None
    if body.properties is not None:
        properties = {name: _property(name, value) for name, value in body.properties.items()}
    match body.verb:
        case Verb.COMPLETE:
            await receiver.complete(messages)
        case Verb.ABANDON:
            await receiver.abandon(messages, error=body.error, delay=body.delay, properties=properties)
        case Verb.DEAD_LETTER:
            await receiver.dead_letter(
                messages,
                reason=body.reason,
                description=body.description,
                error=body.error,
                properties=properties,
            )
        case Verb.DEFER:
            await receiver.defer(messages, properties=properties)
        case Verb.INVALID:
            await receiver.invalid(messages, error=body.error)
        case Verb.RELEASE:
            await receiver.release(messages)


def _property(name: str, value: Any) -> Any:
    try:
        return property_value(value)
    except ValueError as error:
        raise InvalidMessage(f"property {name!r}: {error}") from None


@route("POST", "/messages/renew", Permission.RECEIVE)
async def renew(call: Call, query: SettleQuery, body: Renewal) -> Renewed:
    """Renew the locks of messages for their queue's lock duration from now."""
    receiver = call.broker.receiver(query.queue, subqueue=query.subqueue)
    until = await receiver.renew_lock(await receiver.messages_held(body.lock_tokens))
    return Renewed(iso(until))


@route("GET", "/conversations", Permission.SEE)
async def list_conversations(call: Call, query: ConversationsQuery) -> ConversationPage:
    """List conversations, and why they wait."""
    every = call.broker.dialogs.conversations(
        queue=query.queue, state=query.state, group=query.group, held=query.held, after=query.after,
        limit=query.limit,
    )  # fmt: skip
    page = [one async for one in every]
    return ConversationPage(page, page[-1].conversation if len(page) == query.limit else None)


@route("GET", "/dialogs/{dialog}", Permission.SEE)
async def show_dialog(call: Call, dialog: str) -> list[ConversationDescription]:
    """Show the ends of a dialog, by its id, its beginning, or a handle."""
    return await call.broker.dialogs.dialog(dialog)


@route("GET", "/dialogs/{dialog}/timeline", Permission.SEE)
async def show_timeline(call: Call, dialog: str) -> list[TimelineEntry]:
    """Show what happened in a dialog, in order, then what waits in it."""
    return await call.broker.dialogs.timeline(dialog)


@route("GET", "/definitions", Permission.SEE)
async def show_definitions(call: Call) -> Definitions:
    """Show all definitions of dialogs."""
    return Definitions(as_declaration(await call.broker.dialogs.definitions()))
