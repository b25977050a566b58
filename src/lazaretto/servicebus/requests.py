"""Requests of clients to an entity's management node, and their answers."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lazaretto.errors import MessageLockLost, SessionLockLost
from lazaretto.model.clock import LAST_MOMENT
from lazaretto.model.entities import MessageState
from lazaretto.model.filters.rules import sorted_rules
from lazaretto.model.messages import ReceivedMessage
from lazaretto.servicebus.amqp import AmqpError
from lazaretto.servicebus.amqp.conditions import DECODE_ERROR, NOT_ALLOWED, NOT_IMPLEMENTED
from lazaretto.servicebus.amqp.values import Array
from lazaretto.servicebus.answers import Answer, Settlement, Verb, described_rule, rule_of, subscription_of
from lazaretto.servicebus.consumer import Consumer
from lazaretto.servicebus.conversions import encode_message, message_of, properties_of
from lazaretto.servicebus.grants import Right
from lazaretto.servicebus.plain_messages import read_number, written_number
from lazaretto.servicebus.residue import moment_of
from lazaretto.servicebus.server import Client

if TYPE_CHECKING:
    from lazaretto.aio import AsyncReceiver
    from lazaretto.servicebus.transactions import Work

#: Messages that one peek returns at most, and bytes after which it returns no more: clients ask again.
MOST_PEEKED: Final = 250
MOST_PEEKED_SIZE: Final = 1 << 20
#: Messages that a peek reads at first; each time after, twice as many, if they are small.
_FIRST_PEEKED: Final = 16
#: Messages that one request deletes at most, as at Service Bus.
MOST_DELETED: Final = 4_000
#: Sessions that one request lists at most, with those that it passes over.
MOST_LISTED: Final = 1 << 30


class Request(NamedTuple):
    """A request: of which peer, for which entity, with what. `work`: of its transaction, if it has one."""

    client: Client
    path: str
    properties: Mapping[Any, Any]
    body: Mapping[Any, Any]
    work: Work | None = None

    def actor(self, right: Right) -> str:
        """Return whom the audit log names: whoever has a right on the entity."""
        return self.client.grants.actor(self.path, right)

    def number(self, name: str) -> int:
        """Return a field that holds a number. Raises AmqpError."""
        value = self.body.get(name)
        if not isinstance(value, int):
            raise AmqpError(DECODE_ERROR, f"expected {name} to be a number, got {type(value).__name__}")
        return int(value)

    def items(self, name: str) -> list[Any]:
        """Return a field that holds an array or a list. Raises AmqpError."""
        value = self.body.get(name)
        items_ = value.items if isinstance(value, Array) else value
        if not isinstance(items_, list):
            raise AmqpError(DECODE_ERROR, f"expected {name} to be an array, got {type(value).__name__}")
        return items_

    def numbers(self, name: str) -> list[int]:
        """Return a field that holds numbers. Raises AmqpError."""
        items = self.items(name)
        if not all(isinstance(one, int) for one in items):
            raise AmqpError(DECODE_ERROR, f"expected {name} to be numbers, got other values")
        return [int(one) for one in items]

    def tokens(self) -> list[uuid.UUID]:
        """Return the lock tokens. Raises AmqpError."""
        items = self.items("lock-tokens")
        if not all(isinstance(one, uuid.UUID) for one in items):
            raise AmqpError(DECODE_ERROR, "expected lock-tokens to be UUIDs, got other values")
        return items

    async def held(self) -> list[ReceivedMessage]:
        """Return the messages that the lock tokens stand for, whoever has them.

        Raises MessageLockLost; of a session whose lock is lost, SessionLockLost.
        """
        try:
            return await self.client.door.settler(self.path).messages_held(self.tokens())
        except MessageLockLost:
            if self.session_id is not None:
                await (await self.session()).get_session_state()
            raise

    @property
    def session_id(self) -> str | None:
        """The session that the request is about: the one that it names, or that of the link that it names.

        Some clients leave an empty id out.
        """
        if "session-id" in self.body:
            return _text(self.body["session-id"])
        link = self.properties.get("associated-link-name")
        of_link = (one for one in self.client.links.held(Consumer) if one.name == link)
        return next((one.receiver.session_id for one in of_link), None)

    async def session(self) -> AsyncReceiver:
        """Return a receiver with the lock on the session: of this connection, or of one at any door.

        For the latter the client has to name the link that took it. Raises SessionLockLost.
        """
        session_id, link = self.session_id, self.properties.get("associated-link-name")
        consumer = self._consumer(session_id)
        if consumer is not None:
            return consumer.receiver
        return await self._joined(session_id, link)

    async def locking(self) -> AsyncReceiver:
        """Return a receiver that locks what it takes: with the session, if the request is about one."""
        session_id = self.session_id
        if session_id is None:
            return self.client.door.settler(self.path)
        consumer = self._consumer(session_id)
        if consumer is not None and consumer.deletes:
            # What is deferred is taken under a lock also for a link that deletes what it takes.
            return await self._joined(session_id, consumer.name)
        return await self.session()

    def _consumer(self, session_id: str | None) -> Consumer | None:
        """Return the link of this connection that has a session of the entity."""
        of_entity = (
            one
            for one in self.client.links.held(Consumer)
            if session_id is not None and one.path.lower() == self.path.lower()
        )
        return next((one for one in of_entity if one.receiver.session_id == session_id), None)

    async def _joined(self, session_id: str | None, link: object) -> AsyncReceiver:
        if session_id is None or not isinstance(link, str) or not link:
            raise SessionLockLost("expected the id of a session that this connection holds, got another")
        receiver = self.client.door.broker.receiver(self.path)
        await receiver.join_session(session_id, link)
        return receiver


async def _peek(request: Request) -> Answer:
    limit = min(max(request.number("message-count"), 1), MOST_PEEKED)
    start = read_number(max(request.number("from-sequence-number"), 0))
    session = request.session_id
    bare = request.body.get("omit-message-body") is True
    encoded: list[bytes] = []
    size, most = 0, min(_FIRST_PEEKED, limit)
    while most > 0:
        messages = await request.client.door.settler(request.path).peek(most, start, session_id=session)
        for one in messages:
            message = encode_message(one, locked_until=one.locked_until_micros, state=one.state, bare=bare)
            size += len(message)
            if encoded and size > MOST_PEEKED_SIZE:
                break
            encoded.append(message)
        if len(messages) < most or size > MOST_PEEKED_SIZE:
            break
        start, most = messages[-1].sequence_number + 1, min(2 * most, limit - len(encoded))
    if not encoded:
        return Answer(204, "no messages")
    return Answer(200, "OK", {"messages": [{"message": one} for one in encoded]})


async def _renew_locks(request: Request) -> Answer:
    messages = await request.held()
    await request.client.door.settler(request.path).renew_lock(messages)
    untils = [_milliseconds(one.locked_until) for one in messages]
    return Answer(200, "OK", {"expirations": untils})


async def _schedule(request: Request) -> Answer:
    messages = []
    for one in request.items("messages"):
        payload = one.get("message") if isinstance(one, dict) else None
        if not isinstance(payload, bytes):
            raise AmqpError(
                DECODE_ERROR, "expected each message to hold bytes in 'message', got another type"
            )
        messages.append(message_of(payload))
    if request.work is not None:
        numbers = request.work.schedule(request.path, messages)
    else:
        sent = await request.client.door.broker.sender(request.path).send(messages)
        numbers = [written_number(number) for number in sent]
    return Answer(200, "OK", {"sequence-numbers": numbers})


async def _cancel(request: Request) -> Answer:
    promises = request.client.door.promises
    numbers = [promises.number_of(one) for one in request.numbers("sequence-numbers")]
    if request.work is not None:
        request.work.cancel(request.path, numbers)
    else:
        await request.client.door.broker.sender(request.path).cancel(numbers)
    return Answer(200, "OK")


async def _receive_deferred(request: Request) -> Answer:
    receiver = await request.locking()
    deferred = await receiver.receive_deferred(
        [read_number(one) for one in request.numbers("sequence-numbers")]
    )
    deletes = request.body.get("receiver-settle-mode") == 0
    if deletes:
        await receiver.complete(deferred)
    messages = [_handed_over(one, deletes) for one in deferred]
    return Answer(200, "OK", {"messages": messages})


def _handed_over(message: ReceivedMessage, deletes: bool) -> dict[str, Any]:
    token, lock = message.lock_token, message.lock
    assert token is not None and lock is not None
    if deletes:
        return {"lock-token": token, "message": encode_message(message, deleted=True)}
    return {
        "lock-token": token,
        "message": encode_message(
            message, token=token.bytes, locked_until=lock.until, state=MessageState.DEFERRED
        ),
    }


#: Verbs by disposition-status; "defered" is how Service Bus spells it.
_VERBS: Final = {
    "completed": Verb.COMPLETE,
    "abandoned": Verb.ABANDON,
    "defered": Verb.DEFER,
    "suspended": Verb.DEAD_LETTER,
    "unlocked": Verb.RELEASE,
}


async def _settle(request: Request) -> Answer:
    verb = _VERBS.get(str(request.body.get("disposition-status")))
    if verb is None:
        raise AmqpError(DECODE_ERROR, f"expected disposition-status to be one of {', '.join(_VERBS)}")
    messages = await request.held()
    changes = request.body.get("properties-to-modify")
    settlement = Settlement(
        verb,
        properties_of(changes) if isinstance(changes, Mapping) and changes else None,
        _text(request.body.get("deadletter-reason")),
        _text(request.body.get("deadletter-description")),
    )
    if request.work is not None:
        request.work.settle(messages, settlement)
    else:
        await request.client.door.settle(request.path, messages, settlement)
    return Answer(200, "OK")


async def _renew_session(request: Request) -> Answer:
    until = await (await request.session()).renew_session_lock()
    return Answer(200, "OK", {"expiration": _milliseconds(until)})


async def _get_state(request: Request) -> Answer:
    return Answer(200, "OK", {"session-state": await (await request.session()).get_session_state()})


async def _set_state(request: Request) -> Answer:
    state = request.body.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise AmqpError(DECODE_ERROR, "expected session-state to be bytes or null, got another type")
    receiver = await request.session()
    if request.work is not None:
        request.work.set_session_state(receiver, state)
    else:
        await receiver.set_session_state(state)
    return Answer(200, "OK")


async def _list_sessions(request: Request) -> Answer:
    skip, top = (max(request.number(name), 0) for name in ("skip", "top"))
    after = request.number("last-updated-time")
    # The last moment of .NET, which means none, is later than any that Python has.
    since = None if after > LAST_MOMENT // 1000 else moment_of(after)
    # A client asks for one page after the other: the next one begins behind the last session of this one.
    page, last = (request.path.lower(), after, skip), request.client.last_listed
    follows = skip > 0 and last is not None and last[0] == page
    behind, passed = (last[1], 0) if last is not None and follows else (None, skip)
    some: list[str] = []
    if top:
        most = min(passed + top, MOST_LISTED)
        sessions = await request.client.door.broker.sessions(
            request.path, active=True, state_set_after=since, limit=most, after=behind
        )
        some = sessions[passed:]
    if not some:
        return Answer(204, "no sessions")
    request.client.last_listed = ((*page[:2], skip + len(some)), some[-1])
    return Answer(200, "OK", {"skip": skip + len(some), "sessions-ids": some})


async def _delete_messages(request: Request) -> Answer:
    count = min(request.number("message-count"), MOST_DELETED)
    before = request.body.get("enqueued-time-utc")
    deleted = await request.client.door.broker.delete_messages(
        request.path,
        count,
        session_id=request.session_id,
        enqueued_before=moment_of(before) if isinstance(before, int) else None,
        actor=request.actor(Right.LISTEN),
    )
    if not deleted:
        return Answer(204, "no messages")
    return Answer(200, "OK", {"message-count": deleted})


async def _add_rule(request: Request) -> Answer:
    rule = rule_of(request.body.get("rule-name"), request.body.get("rule-description"))
    names = subscription_of(request.path)
    await request.client.door.broker.add_rule(*names, rule, actor=request.actor(Right.MANAGE))
    return Answer(200, "OK")


async def _remove_rule(request: Request) -> Answer:
    name = _text(request.body.get("rule-name"))
    if name is None:
        raise AmqpError(DECODE_ERROR, "expected rule-name to be text, got null")
    names = subscription_of(request.path)
    await request.client.door.broker.remove_rule(*names, name, actor=request.actor(Right.MANAGE))
    return Answer(200, "OK")


async def _enumerate_rules(request: Request) -> Answer:
    description = await request.client.door.broker.subscription(*subscription_of(request.path))
    skip, top = (max(request.number(name), 0) for name in ("skip", "top"))
    rules = sorted_rules(description.rules)[skip : skip + top]
    if not rules:
        return Answer(204, "no rules")
    listed = [{"rule-description": described_rule(rule)} for rule in rules]
    return Answer(200, "OK", {"rules": listed})


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _milliseconds(moment: datetime | None) -> int:
    moment = moment or datetime.now(UTC)
    return int(moment.timestamp() * 1000)


#: What each operation needs, and what does it.
_OPERATIONS: Final[dict[str, tuple[Right, Callable[[Request], Awaitable[Answer]]]]] = {
    "com.microsoft:peek-message": (Right.LISTEN, _peek),
    "com.microsoft:renew-lock": (Right.LISTEN, _renew_locks),
    "com.microsoft:schedule-message": (Right.SEND, _schedule),
    "com.microsoft:cancel-scheduled-message": (Right.SEND, _cancel),
    "com.microsoft:receive-by-sequence-number": (Right.LISTEN, _receive_deferred),
    "com.microsoft:update-disposition": (Right.LISTEN, _settle),
    "com.microsoft:renew-session-lock": (Right.LISTEN, _renew_session),
    "com.microsoft:get-session-state": (Right.LISTEN, _get_state),
    "com.microsoft:set-session-state": (Right.LISTEN, _set_state),
    "com.microsoft:get-message-sessions": (Right.LISTEN, _list_sessions),
    "com.microsoft:batch-delete-messages": (Right.LISTEN, _delete_messages),
    "com.microsoft:add-rule": (Right.MANAGE, _add_rule),
    "com.microsoft:remove-rule": (Right.MANAGE, _remove_rule),
    "com.microsoft:enumerate-rules": (Right.MANAGE, _enumerate_rules),
}


#: Those that cannot take part in a transaction. What only reads or renews takes effect at once in one.
_ALONE: Final = frozenset({
    "com.microsoft:batch-delete-messages", "com.microsoft:add-rule", "com.microsoft:remove-rule",
})  # fmt: skip


async def answer(request: Request) -> Answer:
    """Do what a request asks for. Raises LazarettoError."""
    name = request.properties.get("operation")
    answerer = _OPERATIONS.get(str(name))
    if answerer is None:
        raise AmqpError(NOT_IMPLEMENTED, f"expected a known operation, got {name!r}")
    right, operation = answerer
    if request.work is not None:
        if name in _ALONE:
            raise AmqpError(NOT_ALLOWED, f"expected {name} outside of a transaction: it cannot be undone")
        request.work.refuse_over()
    request.client.grants.require(request.path, right)
    return await operation(request)
