"""Finds queues by their names, and dead letters by number, ID, text or conditions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import DeadLetterPage
from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.permissions import Permission
from lazaretto.web.console.render import address
from lazaretto.web.console.search_words import CONDITIONS, Search, search_of
from lazaretto.web.console.visit import Page, Visit, moved_to

#: Queues in which letters are looked for at once.
_QUEUES, _LETTERS = 5, 20


async def show(visit: Visit) -> Page:
    """Show what a search finds: queues, then dead letters."""
    text, queue = (visit.text("q") or "").strip(), visit.text("queue")
    visit.require(Permission.SEE, queue)
    values: dict[str, Any] = {
        "text": text, "queue": queue, "queues": [], "found": [], "conditions": CONDITIONS, "wrong": None
    }  # fmt: skip
    try:
        search = search_of(text, datetime.now(UTC))
    except InvalidOption as error:
        return Page("search.html", "search", "Search", {**values, "wrong": str(error)})
    queue = queue or search.queue
    pages: list[tuple[str, DeadLetterPage]] = []
    queues = []
    if search.plain and queue is None and not search.conditions:
        queues = list((await visit.broker.status(limit=20, name_contains=search.plain)).queues)
    if text:
        for path in [queue] if queue else await _failing(visit):
            if not visit.may(Permission.READ_BODIES, path):
                continue
            if search.plain.isdigit() and len(search.plain) < 13 and not search.conditions:
                try:
                    letter = await visit.broker.dead_letter(path, int(search.plain))
                except LazarettoError:
                    continue
                if letter.resolution is None:
                    return moved_to(address(visit.base, f"/dead-letters/{search.plain}", queue=path))
                continue
            page = await _page(visit, path, search)
            if page.letters or page.next:
                pages.append((path, page))
    values |= {"queue": queue, "queues": queues, "found": pages}
    return Page("search.html", "search", "Search", values)


async def _page(visit: Visit, path: str, search: Search) -> DeadLetterPage:
    """Return the letters with an ID, else a page of those that a search means."""
    which = search.which
    if search.plain and not search.conditions:
        by_id = await visit.broker.dead_letter_page(path, DeadLetterFilter(message_id=search.plain), limit=1)
        if by_id.letters:
            return by_id
        which = DeadLetterFilter(text=search.plain)
    return await visit.broker.dead_letter_page(path, which, limit=_LETTERS, cursor=visit.text("cursor"))


async def _failing(visit: Visit) -> list[str]:
    status = await visit.broker.status(limit=50)
    return [one.path for one in status.queues if one.dead_letters][:_QUEUES]
