"""Answers requests about messages: checks who asks, and does what is asked for."""

from __future__ import annotations

import asyncio
import enum
import logging
import uuid
from collections.abc import Awaitable, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs

from lazaretto.aio.posting import introduce
from lazaretto.aio.readings import Readings
from lazaretto.errors import MessageLockLost
from lazaretto.model.actors import HTTP_CLIENT
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import ReceivedMessage
from lazaretto.servicebus.answers import Settlement, Verb
from lazaretto.servicebus.atom import feeds
from lazaretto.servicebus.atom.application import admit
from lazaretto.servicebus.atom.feeds import Refusal, refusal_of
from lazaretto.servicebus.exchange import body_of, send_answer
from lazaretto.servicebus.grants import Grants, Right
from lazaretto.servicebus.rest.fields import BATCH, headers_of, message_of, messages_of, type_of
from lazaretto.servicebus.server import Door
from lazaretto.serving.http import Receive, Scope, Send, seat_of, share_of, spelled_headers, until_gone

_MESSAGES: Final = "messages"

T = TypeVar("T")

_log = logging.getLogger("lazaretto.door")
#: Seconds that a receive waits at most, and unless it says for how long.
_LONGEST_WAIT: Final = 60.0
#: What a byte of a message takes: as the database has it, as bytes, as headers, and as it is sent.
_COST: Final = 6
#: Bytes of a batch, as a multiple of the largest message that the entity takes.
_BATCH: Final = 4
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
        body = await body_of(receive, most * _BATCH if batch else most, lambda size: share.hold(_COST * size))
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
