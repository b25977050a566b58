"""Repairs: how they stand, and what became of their letters."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from lazaretto.model.permissions import Permission
from lazaretto.model.repairs import RepairedLetter, RepairPreview, RepairStatus
from lazaretto.web.routes import Call, Query, route

Limit = Annotated[int, Meta(ge=1, le=1000)]


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
