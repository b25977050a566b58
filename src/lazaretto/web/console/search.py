"""Finds queues by their names, and dead letters by number, id or text."""

from __future__ import annotations

from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import DeadLetterPage
from lazaretto.errors import LazarettoError
from lazaretto.model.permissions import Permission
from lazaretto.web.console.render import address
from lazaretto.web.console.visit import Page, Visit, moved_to

#: Queues in which letters are looked for at once.
_QUEUES, _LETTERS = 5, 20


async def show(visit: Visit) -> Page:
    """Show what a text is found in: queues, then dead letters."""
    text, queue = (visit.text("q") or "").strip(), visit.text("queue")
    visit.require(Permission.SEE, queue)
    found: list[tuple[str, DeadLetterPage]] = []
    queues = []
    if text and queue is None:
        queues = list((await visit.broker.status(limit=20, name_contains=text)).queues)
    if text:
        for path in [queue] if queue else await _failing(visit):
            if not visit.may(Permission.READ_BODIES, path):
                continue
            if text.isdigit() and len(text) < 13:
                try:
                    letter = await visit.broker.dead_letter(path, int(text))
                except LazarettoError:
                    continue
                if letter.resolution is None:
                    return moved_to(address(visit.base, f"/dead-letters/{text}", queue=path))
                continue
            by_id = await visit.broker.dead_letter_page(path, DeadLetterFilter(message_id=text), limit=1)
            page = by_id
            if not by_id.letters:
                which = DeadLetterFilter(text=text)
                page = await visit.broker.dead_letter_page(
                    path, which, limit=_LETTERS, cursor=visit.text("cursor")
                )
            if page.letters or page.next:
                found.append((path, page))
    values = {"text": text, "queue": queue, "queues": queues, "found": found}
    return Page("search.html", "search", "Search", values)


async def _failing(visit: Visit) -> list[str]:
    status = await visit.broker.status(limit=50)
    return [one.path for one in status.queues if one.dead_letters][:_QUEUES]
