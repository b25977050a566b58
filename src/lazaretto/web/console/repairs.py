"""Repairs: all of them, and one from plan to undo."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import NamedTuple

from lazaretto.aio import AsyncRepair
from lazaretto.errors import MessageNotFound
from lazaretto.model.messages import DeadLetter
from lazaretto.model.permissions import Permission
from lazaretto.model.repair_phases import Phase
from lazaretto.model.repairs import RepairedLetter, RepairStatus
from lazaretto.web.console.visit import Page, Visit

#: Letters whose fate is looked at before a repair begins, and of which a page tells.
_LOOKED_AT, _LETTERS = 200, 20


async def list_repairs(visit: Visit) -> Page:
    """Show repairs, the newest first."""
    queue = visit.text("queue")
    visit.require(Permission.SEE, queue)
    repairs = await visit.broker.repairs(queue, limit=100)
    return Page("repairs.html", "repairs", "Repairs", {"repairs": repairs, "queue": queue})


class FailedAgain(NamedTuple):
    """A letter that failed again: with the error that it had, and as the letter that it is now."""

    before: DeadLetter
    after: DeadLetter | None
    queue: str


async def _failed_again(visit: Visit, repair: AsyncRepair, status: RepairStatus) -> list[FailedAgain]:
    """Return the first letters that failed again, of those that whoever asks may see."""
    letters: list[FailedAgain] = []
    if not status.counts.failed or not visit.may(Permission.READ_BODIES, status.queue):
        return letters
    async for one in repair.letters(failed=True):
        before = await _without_message(visit, status.queue, one.sequence_number)
        after, queue = None, one.queue or status.queue
        if one.sent_as is not None and visit.may(Permission.READ_BODIES, queue):
            with contextlib.suppress(MessageNotFound):
                after = await _without_message(visit, queue, one.sent_as)
        letters.append(FailedAgain(before, after, queue))
        if len(letters) == _LETTERS:
            break
    return letters


async def _without_message(visit: Visit, queue: str, number: int) -> DeadLetter:
    """Return a dead letter without its message, which can be large."""
    await visit.hold(queue, number)
    return dataclasses.replace(await visit.broker.dead_letter(queue, number), message=None)


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
    values = {
        "repair": status, "preview": preview, "skipped": skipped,
        "failed": await _failed_again(visit, repair, status),
    }  # fmt: skip
    return Page("repair.html", "repairs", f"Repair {status.name}", values)
