"""Changes as commands, the audit log of them, and the events of a store, as pages and as streams."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from lazaretto.aio import AsyncBroker
from lazaretto.commands import COMMANDS, Command
from lazaretto.commands.opposites import entry_records
from lazaretto.engine.log import AuditEntry, Event
from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.grants import Permission
from lazaretto.model.records.messages import csv_cell
from lazaretto.model.records.plain import plain
from lazaretto.web.access import key_of, require_for
from lazaretto.web.answers import json_of
from lazaretto.web.bounded import LastingResponse
from lazaretto.web.readings import later_than
from lazaretto.web.routes import Call, Query, route

Handler = Callable[[Call, Command], Awaitable[Any]]

#: Entries that are read at once, and those that are sent at once.
_PAGE: Final = 500
_LINES: Final = 200
_COLUMNS: Final = ("position", "time", "actor", "action", "queue", "detail", "door", "address", "kind")

Draw = Callable[[AsyncBroker, list[AuditEntry], bool], Awaitable[bytes]]

#: Seconds after which a silent stream says something, so that proxies keep it open.
_SILENCE = 15.0
#: Milliseconds after which a client that lost its stream asks again.
_RETRY = 3000
#: What a client is told last.
_BYE = b"event: bye\ndata: {}\n\n"


class Which(Query, kw_only=True, frozen=True):
    """Which entries are meant."""

    queue: str | None = None
    actor: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: Annotated[int, Meta(ge=1)] | None = None


class AuditQuery(Which, kw_only=True, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ExportQuery(Which, kw_only=True, frozen=True):
    """`repair`: only what was done with it."""

    repair: str | None = None
    format: Literal["jsonl", "csv"] = "jsonl"


class Entry(Struct):
    """An operator's action. `door`: where the actor came in: "http", "amqp" or "store".

    `address`: from where. `kind`: what the actor's name is that of: "person", "key", "token" or "process".
    `opposite`: the command that takes it back; null: there is none, or something was done since that took it
    back or would be lost.
    """

    position: int
    time: str
    actor: str
    action: str
    queue: str
    detail: dict[str, Any]
    door: str
    address: str
    kind: str
    opposite: dict[str, Any] | None


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


def _runs(name: str, kind: type[Command]) -> Handler:
    async def run(call: Call, body: Command) -> Any:
        require_for(body, call.require)
        key = call.request.headers.get("idempotency-key")
        mine = None if key is None else key_of(call.identity.name, key)
        return await call.broker.run(body, actor=call.actor, idempotency_key=mine, version=call.seen_version)

    run.__name__, run.__doc__ = f"run_{name}", kind.__doc__
    run.__annotations__ = {"call": Call, "body": kind, "return": Any}
    return run


for _name, _kind in COMMANDS.items():
    add = route("POST", f"/commands/{_name}", _kind.permission, asks_itself=True, searches=_kind.searches)
    add(_runs(_name, _kind))


@route("GET", "/audit", Permission.SEE)
async def list_audit(call: Call, query: AuditQuery) -> list[Entry]:
    """List what operators did, the latest first, each with the command that takes it back."""
    entries = await call.broker.audit(**msgspec.structs.asdict(query))
    return [Entry(**record) for record in entry_records(entries, await later_than(call.broker, entries))]


@route("GET", "/audit/export", Permission.SEE, media_types=("application/jsonl", "text/csv"))
async def export_audit(call: Call, query: ExportQuery) -> Response:
    """Stream what operators did, the latest first, as JSON Lines or CSV."""
    which = msgspec.structs.asdict(query)
    kind = which.pop("format")
    if query.repair is not None and query.queue is not None:
        raise InvalidOption("expected queue or repair, not both")
    if query.repair is not None:
        # One that is not known is an error, not an empty list.
        await call.broker.repair(query.repair)
    entries = _entries(call.broker, **which)
    # What is wrong with the request is said before the stream begins.
    first = await anext(entries, None)
    made = _stream_of_entries(call.broker, first, entries, _csv if kind == "csv" else _jsonl)
    await call.witness.exported(call.identity.actor, query.queue or "", format=kind, of="audit log")
    media_type = "text/csv; charset=utf-8" if kind == "csv" else "application/jsonl"
    headers = {"Content-Disposition": f'attachment; filename="activity.{kind}"'}
    return LastingResponse(call.while_allowed(made), media_type=media_type, headers=headers)


async def _entries(
    broker: AsyncBroker, *, before: int | None = None, **which: Any
) -> AsyncIterator[AuditEntry]:
    """Yield entries, the latest first. `before`, `which`: as for `Broker.audit`."""
    while True:
        page = await broker.audit(limit=_PAGE, before=before, **which)
        for entry in page:
            yield entry
        if len(page) < _PAGE:
            return
        before = page[-1].position


async def _stream_of_entries(
    broker: AsyncBroker, first: AuditEntry | None, entries: AsyncIterator[AuditEntry], draw: Draw
) -> AsyncGenerator[bytes]:
    some, begins = [] if first is None else [first], True
    async for entry in entries:
        some.append(entry)
        if len(some) == _LINES:
            yield await draw(broker, some, begins)
            some, begins = [], False
    yield await draw(broker, some, begins)


async def _jsonl(broker: AsyncBroker, entries: list[AuditEntry], begins: bool) -> bytes:
    records = entry_records(entries, await later_than(broker, entries))
    return b"".join(json_of(record) + b"\n" for record in records)


async def _csv(broker: AsyncBroker, entries: list[AuditEntry], begins: bool) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out)
    if begins:
        writer.writerow(_COLUMNS)
    for entry in entries:
        fields = {**plain(entry), "detail": json_of(entry.detail).decode()}
        writer.writerow([csv_cell(fields[name]) for name in _COLUMNS])
    return out.getvalue().encode("utf-8", "backslashreplace")


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
    made = call.while_allowed(_stream_of_events(call, query, after), _BYE)
    return StreamingResponse(made, media_type="text/event-stream")


async def _stream_of_events(call: Call, query: StreamQuery, after: int) -> AsyncGenerator[bytes]:
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
