"""Dead letters: pages, one with its history, all as a stream of lines, their causes, and repairs."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta
from starlette.responses import Response

from lazaretto.engine.outcome.causes import Cause, Triage
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import DeadLetterPage
from lazaretto.errors import InvalidOption, MessageNotFound
from lazaretto.model.entities import EntityPath, dead_letter_path
from lazaretto.model.grants import Permission
from lazaretto.model.messages import DeadLetter
from lazaretto.model.records.messages import LETTER_COLUMNS, letter_cells
from lazaretto.model.repairs import RepairedLetter, RepairPreview, RepairStatus
from lazaretto.web.answers import json_of
from lazaretto.web.bounded import LastingResponse, lettered
from lazaretto.web.routes import Call, OfQueue, Query, route
from lazaretto.web.viewed import check_filter, readings_of

Letters = Sequence[DeadLetter]

#: The longest time to look for what the messages of causes share, in seconds.
_LONGEST = 10.0

Limit = Annotated[int, Meta(ge=1, le=1000)]


class FilterQuery(OfQueue, kw_only=True, frozen=True):
    """Which dead letters: those that match every part. `numbers`: sequence numbers, with commas between."""

    reason: str | None = None
    error_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None
    numbers: str | None = None
    cause: int | None = None
    message_id: str | None = None
    where: str | None = None


class PageQuery(FilterQuery, kw_only=True, frozen=True):
    """`cursor`: the `next` or `previous` of another page."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    cursor: str | None = None
    order: str = "-number"


class ExportQuery(FilterQuery, kw_only=True, frozen=True):
    format: Literal["jsonl", "csv"] = "jsonl"
    messages: bool = True


class CausesQuery(OfQueue, kw_only=True, frozen=True):
    """`over`: also causes without pending letters. `explain`: seconds to look for what messages share."""

    since: datetime | None = None
    over: bool = False
    explain: float = 0.0


class CauseQuery(OfQueue, kw_only=True, frozen=True):
    since: datetime | None = None


class RepairsQuery(Query, frozen=True):
    queue: str | None = None
    limit: Limit = 100


class LettersQuery(Query, frozen=True):
    """`skipped`: only those that were not sent back. `failed`: only those that failed again."""

    skipped: bool = False
    failed: bool = False
    limit: Limit = 100


class PreviewQuery(Query, frozen=True):
    """`limit`: how many letters are looked at, spread over the set."""

    limit: Limit = 1000


def filter_of(query: FilterQuery) -> DeadLetterFilter:
    """Return the filter that the parameters make. Raises InvalidOption."""
    values: dict[str, Any] = {
        name: getattr(query, name)
        for name in FilterQuery.__struct_fields__
        if name not in ("queue", "numbers")
    }
    if query.numbers is not None:
        parts = query.numbers.split(",")
        if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
            raise InvalidOption("expected numbers to be sequence numbers with commas between")
        values["sequence_numbers"] = tuple(map(int, parts))
    return DeadLetterFilter(**values)


@route("GET", "/dead-letters", Permission.READ_BODIES, searches=True)
async def list_dead_letters(call: Call, query: PageQuery) -> DeadLetterPage:
    """List a page of the pending dead letters of a queue, with the first bytes of their bodies.

    A search may end after a quarter of a second; `next` then continues it.
    """
    # A condition can take long to read, too.
    which = await asyncio.to_thread(filter_of, query)
    return await call.broker.dead_letter_page(
        query.queue, which, limit=query.limit, cursor=query.cursor, order=query.order
    )


@route(
    "GET", "/dead-letters/export", Permission.READ_BODIES, media_types=("application/jsonl", "text/csv"),
    searches=True,
)  # fmt: skip
async def export_dead_letters(call: Call, query: ExportQuery) -> Response:
    """Stream all pending dead letters of a queue as JSON Lines, or without their messages as CSV."""
    as_csv = query.format == "csv"
    which = await asyncio.to_thread(filter_of, query)
    # What is wrong with the request is said before the stream begins.
    await call.broker.queue(query.queue)
    await check_filter(call.broker, query.queue, which)
    await call.witness.exported(
        call.identity.actor, query.queue, format=query.format, messages=query.messages and not as_csv
    )
    parts = lettered(
        call.share, readings_of(call.broker), dead_letter_path(EntityPath.parse(query.queue)), which,
        messages=query.messages and not as_csv,
    )  # fmt: skip
    first = await anext(parts)
    made = _csv(first, parts) if as_csv else _jsonl(first, parts)
    kind = "text/csv; charset=utf-8" if as_csv else "application/jsonl"
    name = f"dead-letters.{query.format}"
    return LastingResponse(
        call.while_allowed(made),
        media_type=kind,
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


async def _jsonl(first: Letters, parts: AsyncIterator[Letters]) -> AsyncGenerator[bytes]:
    letters: Letters | None = first
    while letters is not None:
        for letter in letters:
            yield json_of(letter)
            yield b"\n"
        letters = await anext(parts, None)


async def _csv(first: Letters, parts: AsyncIterator[Letters]) -> AsyncGenerator[bytes]:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(LETTER_COLUMNS)
    letters: Letters | None = first
    while letters is not None:
        writer.writerows(map(letter_cells, letters))
        yield out.getvalue().encode()
        out.seek(0)
        out.truncate()
        letters = await anext(parts, None)


@route(
    "GET", "/dead-letters/{number}/body", Permission.READ_BODIES, media_types=("application/octet-stream",)
)
async def download_body(call: Call, number: int, query: OfQueue) -> Response:
    """Give the body of a dead letter as a file, byte by byte as it was sent."""
    await call.hold_messages(query.queue, [number])
    letter = await call.broker.dead_letter(query.queue, number)
    if letter.message is None:
        raise MessageNotFound(f"{number} of {query.queue!r} is no dead letter any more: it has no body")
    headers = {
        "Content-Disposition": f'attachment; filename="{number}.bin"',
        "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    }  # fmt: skip
    return Response(letter.message.body, media_type="application/octet-stream", headers=headers)


@route("GET", "/dead-letters/{number}", Permission.READ_BODIES)
async def show_dead_letter(call: Call, number: int, query: OfQueue) -> DeadLetter:
    """Show one dead letter with its whole history, even after its resolution."""
    await call.hold_messages(query.queue, [number])
    return await call.broker.dead_letter(query.queue, number)


@route("GET", "/causes", Permission.SEE, searches=True)
async def list_causes(call: Call, query: CausesQuery) -> Triage:
    """List the causes of a queue's dead letters, the largest first."""
    return await call.broker.triage(
        query.queue, since=query.since, over=query.over, explain_for=min(query.explain, _LONGEST)
    )


@route("GET", "/causes/{number}", Permission.READ_BODIES, searches=True)
async def show_cause(call: Call, number: int, query: CauseQuery) -> Cause:
    """Show one cause, with what its messages share that good ones lack."""
    return await call.broker.cause(query.queue, number, since=query.since)


@route("GET", "/repairs", Permission.SEE)
async def list_repairs(call: Call, query: RepairsQuery) -> list[RepairStatus]:
    """List repairs, the newest first."""
    return await call.broker.repairs(query.queue, limit=query.limit)


@route("GET", "/repairs/{name}", Permission.SEE)
async def show_repair(call: Call, name: str) -> RepairStatus:
    """Show how a repair stands."""
    return await (await call.broker.repair(name)).status()


@route("GET", "/repairs/{name}/preview", Permission.READ_BODIES, searches=True)
async def preview_repair(call: Call, name: str, query: PreviewQuery) -> RepairPreview:
    """Tell what would become of a repair's letters if they were sent now, with the first differences."""
    return await (await call.broker.repair(name)).preview(letters=query.limit)


@route("GET", "/repairs/{name}/letters", Permission.SEE)
async def list_repaired(call: Call, name: str, query: LettersQuery) -> list[RepairedLetter]:
    """List what became of a repair's letters."""
    letters: list[RepairedLetter] = []
    repair = await call.broker.repair(name)
    async for letter in repair.letters(skipped=query.skipped, failed=query.failed):
        letters.append(letter)
        if len(letters) == query.limit:
            break
    return letters
