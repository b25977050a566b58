"""Events: a page after a position, or a stream that goes on where the client was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from lazaretto.engine.log import Event
from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.permissions import Permission
from lazaretto.web.json import json_of
from lazaretto.web.routes import Call, Query, route

#: Seconds after which a silent stream says something, so that proxies keep it open.
_SILENCE = 15.0
#: Milliseconds after which a client that lost its stream asks again.
_RETRY = 3000
#: What a client is told last.
_BYE = b"event: bye\ndata: {}\n\n"


class EventsQuery(Query, frozen=True):
    """`after`: the position of the last event that is known. `wait`: seconds to wait for the first.

    `before`: instead, events below this position, newest first.
    """

    after: Annotated[int, Meta(ge=0)] = 0
    before: Annotated[int, Meta(ge=1)] | None = None
    kind: str | None = None
    queue: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0


class StreamQuery(Query, frozen=True):
    """`after`: the position of the last event that is known; the default: what happens from now on."""

    after: Annotated[int, Meta(ge=0)] | None = None
    kind: str | None = None
    queue: str | None = None


@route("GET", "/events", Permission.SEE)
async def list_events(call: Call, query: EventsQuery) -> list[Event]:
    """List events after a position, oldest first, or before one, newest first."""
    events = call.broker.events(
        query.after, kind=query.kind, queue=query.queue, limit=query.limit, max_wait=query.wait,
        before=query.before,
    )  # fmt: skip
    return await call.wait_for(events)


@route("GET", "/events/stream", Permission.SEE, media_types=("text/event-stream",))
async def stream_events(call: Call, query: StreamQuery) -> Response:
    """Stream events as they happen (server-sent events).

    The id of each is its position, so a client that comes back with `Last-Event-ID` misses none.
    """
    last = call.request.headers.get("last-event-id")
    if last is not None and not (last.isascii() and last.isdigit() and len(last) < 19):
        raise InvalidOption("expected Last-Event-ID to be the position of an event")
    after = int(last) if last is not None else query.after
    if after is None:
        after = await call.broker.last_event()
    # What is wrong with kind or queue is said before the stream begins.
    await call.broker.events(after, kind=query.kind, queue=query.queue, limit=1)
    made = call.while_allowed(_stream(call, query, after), _BYE)
    return StreamingResponse(made, media_type="text/event-stream")


async def _stream(call: Call, query: StreamQuery, after: int) -> AsyncGenerator[bytes]:
    yield f"retry: {_RETRY}\n\n".encode()
    while True:
        try:
            news = call.broker.events(after, kind=query.kind, queue=query.queue, limit=100, max_wait=_SILENCE)
            events = await call.ending.wait_for(news)
        except LazarettoError:
            # The server ends, or the client comes back and learns what is wrong.
            yield _BYE
            return
        if not events:
            yield b": still here\n\n"
        for event in events:
            after = event.position
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (after, event.kind.encode(), json_of(event))
        await asyncio.sleep(0)
