"""Answers with messages, in parts: no request holds more than a part, and each part is paid for before."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Send

from lazaretto.aio import AsyncBroker
from lazaretto.engine.messages.peek import ROOM, PeekedPart, TooLittleRoom, size_of
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import Slice
from lazaretto.errors import QueryTooLong, ServerOverloaded
from lazaretto.model.clock import within
from lazaretto.model.entities import EntityPath
from lazaretto.model.limits import ServerLimits
from lazaretto.model.messages import DeadLetter, PeekedMessage
from lazaretto.serving.budget import Share
from lazaretto.web.answers import json_of
from lazaretto.web.readings import WebReadings
from lazaretto.web.refusals import NotAuthenticated, NotPermitted
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
    share: Share, readings: WebReadings, path: EntityPath, limit: int, start: int, session_id: str | None
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
    share: Share, readings: WebReadings, path: EntityPath, which: DeadLetterFilter, *, messages: bool
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
