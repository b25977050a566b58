"""What operators did, and what happened by itself."""

from __future__ import annotations

from lazaretto.commands import opposite_of
from lazaretto.errors import InvalidOption
from lazaretto.model.permissions import Permission
from lazaretto.web.console.visit import Page, Visit

_ENTRIES = 50


async def show(visit: Visit) -> Page:
    """Show the audit log with what takes each action back, or the latest events."""
    queue, actor, before = visit.text("queue"), visit.text("actor"), visit.text("before")
    repair = visit.text("repair")
    if repair is not None:
        queue = (await (await visit.broker.repair(repair)).status()).queue
    visit.require(Permission.SEE, queue)
    if visit.text("lens") == "events":
        last = await visit.broker.last_event()
        events = await visit.broker.events(max(0, last - 500), queue=queue, limit=1000)
        shown = {"events": events[::-1][:_ENTRIES], "queue": queue}
        return Page("events.html", "activity", "Events", shown)
    if before is not None and not (before.isdigit() and 0 < len(before) < 19):
        raise InvalidOption("expected before to be a position")
    found = await visit.broker.audit(
        queue=queue,
        actor=actor,
        repair=repair,
        limit=_ENTRIES,
        before=None if before is None else int(before),
    )
    entries = [(entry, opposite_of(entry)) for entry in found]
    following = found[-1].position if len(found) == _ENTRIES else None
    values = {
        "entries": entries, "queue": queue, "actor": actor, "following": following, "repair": repair
    }  # fmt: skip
    return Page("activity.html", "activity", "Activity", values)
