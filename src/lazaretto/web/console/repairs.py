"""Repairs: all of them, and one from plan to undo."""

from __future__ import annotations

from lazaretto.model.permissions import Permission
from lazaretto.model.repair_phases import Phase
from lazaretto.model.repairs import RepairedLetter
from lazaretto.web.console.visit import Page, Visit

#: Letters whose fate is looked at before a repair begins, and of which a page tells.
_LOOKED_AT, _LETTERS = 200, 20


async def list_repairs(visit: Visit) -> Page:
    """Show repairs, the newest first."""
    queue = visit.text("queue")
    visit.require(Permission.SEE, queue)
    found = await visit.broker.repairs(queue, limit=100)
    return Page("repairs.html", "repairs", "Repairs", {"repairs": found, "queue": queue})


async def show(visit: Visit) -> Page:
    """Show how a repair stands, and what can be done with it now."""
    repair = await visit.broker.repair(visit.request.path_params["name"])
    status = await repair.status()
    visit.require(Permission.SEE, status.queue)
    preview = None
    if status.phase is Phase.PLANNED and visit.may(Permission.READ_BODIES, status.queue):
        preview = await repair.preview(letters=_LOOKED_AT)
    skipped: list[RepairedLetter] = []
    if status.counts.skipped:
        async for letter in repair.letters(skipped=True):
            skipped.append(letter)
            if len(skipped) == _LETTERS:
                break
    values = {"repair": status, "preview": preview, "skipped": skipped}
    return Page("repair.html", "repairs", f"Repair {status.name}", values)
