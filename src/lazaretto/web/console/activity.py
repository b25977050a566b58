"""Actions of operators, and events that happened by themselves."""

from __future__ import annotations

from lazaretto.commands.opposites import opposites
from lazaretto.engine.log import EVENT_KINDS
from lazaretto.errors import InvalidOption
from lazaretto.model.permissions import Permission
from lazaretto.web.console.visit import Page, Visit
from lazaretto.web.later import later_than

_ENTRIES = 50
#: Above every position of an event.
_LATEST = 1 << 62


async def show(visit: Visit) -> Page:
    """Show the audit log with what takes each action back, or the latest events."""
    queue, actor, before = visit.text("queue"), visit.text("actor"), visit.text("before")
    repair = visit.text("repair")
    if repair is not None:
        queue = (await (await visit.broker.repair(repair)).status()).queue
    visit.require(Permission.SEE, queue)
    if before is not None and not (before.isascii() and before.isdigit() and 0 < int(before) < 1 << 62):
        raise InvalidOption("expected before to be a position")
    if visit.text("lens") == "events":
        kind, position = visit.text("kind"), _LATEST if before is None else int(before)
        events = await visit.broker.events(before=position, queue=queue, kind=kind, limit=_ENTRIES)
        shown = {
            "events": events, "queue": queue, "kind": kind, "kinds": EVENT_KINDS, "before": before,
            "following": events[-1].position if len(events) == _ENTRIES else None,
        }  # fmt: skip
        return Page("events.html", "activity", "Events", shown)
    page = await visit.broker.audit(
        queue=queue,
        actor=actor,
        repair=repair,
        limit=_ENTRIES,
        before=None if before is None else int(before),
    )
    entries = list(zip(page, opposites(page, await later_than(visit.broker, page)), strict=True))
    following = page[-1].position if len(page) == _ENTRIES else None
    values = {
        "entries": entries, "queue": queue, "actor": actor, "following": following, "repair": repair
    }  # fmt: skip
    return Page("activity.html", "activity", "Activity", values)
