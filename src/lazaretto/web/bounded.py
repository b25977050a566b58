"""Requests and answers in parts: nobody holds more than a part, and each part is paid for before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from lazaretto.aio import AsyncBroker
from lazaretto.aio.readings import Readings
from lazaretto.engine.messages.peek import ROOM, PeekedPart, TooLittleRoom, size_of
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import Slice
from lazaretto.errors import QueryTooLong, ServerOverloaded
from lazaretto.model.clock import within
from lazaretto.model.entities import EntityPath
from lazaretto.model.limits import ServerLimits
from lazaretto.model.messages import DeadLetter, PeekedMessage
from lazaretto.serving.budget import Share
from lazaretto.serving.http import seat_of, share_of
from lazaretto.web.answers import json_of
from lazaretto.web.ending import Begun
from lazaretto.web.refusals import HttpError, NotAuthenticated, NotPermitted
from lazaretto.web.viewed import readings_of

_log = logging.getLogger("lazaretto.web")


class LastingResponse(StreamingResponse):
    """A stream that has an end, which a client must not take a part of it for."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except (NotAuthenticated, NotPermitted, QueryTooLong, ServerOverloaded) as error:
            # Without its end the server closes the connection.
            _log.warning("an answer was cut off: %s", error or type(error).__name__)


P = TypeVar("P")

#: Seconds that a part may take.
_LONGEST: Final = ServerLimits().query_seconds
#: Bytes for which nothing is held.
_SMALL: Final = 65_536
#: What a byte of a message takes, as measured: as the database has it, as bytes, as text, and as it is sent.
COST: Final = 6


async def in_room(share: Share, read: Callable[[int], Awaitable[P | TooLittleRoom]]) -> P:
    """Read a part for which the request holds room. Raises ServerOverloaded."""
    room = ROOM
    while True:
        await share.hold(COST * room)
        with within(_LONGEST):
            part = await read(room)
        if not isinstance(part, TooLittleRoom):
            return part
        # What waits holds nothing, so that others can go on.
        share.let_go()
        room = part.size


async def peeked(
    share: Share, readings: Readings, path: EntityPath, limit: int, start: int, session_id: str | None
) -> AsyncIterator[PeekedPart]:
    """Yield parts of what a peek means; the last one says so."""
    while True:

        async def read(room: int, limit: int = limit, start: int = start) -> PeekedPart | TooLittleRoom:
            return await readings.peek(path, limit, start, session_id, room)

        messages, last = await in_room(share, read)
        share.let_go(COST * size_of(messages))
        limit -= len(messages)
        last = last or not limit
        yield PeekedPart(messages, last)
        if last:
            return
        start = messages[-1].sequence_number + 1


async def lettered(
    share: Share, readings: Readings, path: EntityPath, which: DeadLetterFilter, *, messages: bool
) -> AsyncIterator[Sequence[DeadLetter]]:
    """Yield parts of the dead letters that a filter means. The first may be empty."""
    after: Slice | None = None
    while True:

        async def read(
            room: int, after: Slice | None = after
        ) -> tuple[list[DeadLetter], Slice] | TooLittleRoom:
            return await readings.letters(path, which, after, room, messages=messages)

        letters, part = await in_room(share, read)
        share.let_go(COST * size_of(one.message for one in letters))
        yield letters
        if part.position is None:
            return
        after = part


async def array_of(first: Iterable[PeekedMessage], parts: AsyncIterator[PeekedPart]) -> AsyncGenerator[bytes]:
    """Yield the JSON of messages: those that are read, and those that are still to be read."""
    lead = b"["
    for one in first:
        yield lead
        yield json_of(one)
        lead = b","
    async for messages, _ in parts:
        for one in messages:
            yield lead
            yield json_of(one)
    yield b"]"


async def hold_messages(share: Share, broker: AsyncBroker, path: str, numbers: Sequence[int]) -> None:
    """Hold what it takes to answer with some messages of a queue. Raises ServerOverloaded."""
    size = await readings_of(broker).size(EntityPath.parse(path), numbers)
    if size > _SMALL:
        await share.hold(COST * size)


#: Bytes of a body for which more is held at once.
_STEP: Final = 1 << 20
#: Bytes a second in which a body must come, and seconds that it may take beside.
_SLOWEST: Final = 16 * 1024
_PATIENCE: Final = 20.0


async def content_of(request: Request, most: int | None, cost: int = COST) -> bytes:
    """Return a request's body. Raises HttpError once it is over `most` bytes, or too slow.

    `most`: None for what the server's limits say. `cost`: what each byte takes of the server's memory.
    """
    seat = seat_of(request.scope)
    if most is None:
        most = (ServerLimits() if seat is None else seat.limits).body_size
    length = request.headers.get("content-length")
    if length is not None and (not length.isdigit() or int(length) > most):
        raise _too_large(most)
    first = Begun(request.receive())
    if first.over and first.answer["type"] == "http.request" and not first.answer.get("more_body"):
        # A small body comes with its request.
        content: bytes = first.answer.get("body", b"")
        if len(content) > most:
            raise _too_large(most)
        return content
    return await _content_in_parts(request, first, most, cost)


async def _content_in_parts(request: Request, first: Begun[Message], most: int, cost: int) -> bytes:
    parts, size, reserved, share = [], 0, _SMALL, share_of(request.scope)
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(_PATIENCE) as limit:
            message = await first
            while True:
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                part = message.get("body", b"")
                size += len(part)
                if size > most:
                    raise _too_large(most)
                if size > reserved:
                    reserved = size + _STEP
                    limit.reschedule(None)
                    await share.hold(cost * reserved)
                    began = asyncio.get_running_loop().time() - size / _SLOWEST
                    limit.reschedule(began + _PATIENCE + size / _SLOWEST)
                parts.append(part)
                if not message.get("more_body"):
                    return b"".join(parts)
                if size > _SLOWEST:
                    limit.reschedule(began + _PATIENCE + size / _SLOWEST)
                message = await request.receive()
    except TimeoutError:
        raise HttpError(
            "request_timeout", f"expected the body at {_SLOWEST} bytes a second or more"
        ) from None


def _too_large(most: int) -> HttpError:
    return HttpError("request_too_large", f"expected at most {most} bytes, got more")
