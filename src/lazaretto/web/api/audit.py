"""The audit log: pages, and all of it as a stream of lines."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from lazaretto.aio import AsyncBroker
from lazaretto.commands.opposites import entry_records
from lazaretto.engine.log import AuditEntry
from lazaretto.errors import InvalidOption
from lazaretto.model.permissions import Permission
from lazaretto.model.records.letters import csv_cell
from lazaretto.model.records.plain import plain
from lazaretto.web.bounded import LastingResponse
from lazaretto.web.json import json_of
from lazaretto.web.later import later_than
from lazaretto.web.routes import Call, Query, route

#: Entries that are read at once, and those that are sent at once.
_PAGE: Final = 500
_LINES: Final = 200
_COLUMNS: Final = ("position", "time", "actor", "action", "queue", "detail", "door", "address", "kind")


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
    made = _stream(call.broker, first, entries, _csv if kind == "csv" else _jsonl)
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


Draw = Callable[[AsyncBroker, list[AuditEntry], bool], Awaitable[bytes]]


async def _stream(
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
