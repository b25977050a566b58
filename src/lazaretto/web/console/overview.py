"""The first page: trouble first, then all queues."""

from __future__ import annotations

from lazaretto.engine.entities.overview import QueueGlance
from lazaretto.engine.outcome.causes import Cause
from lazaretto.model.permissions import Permission
from lazaretto.web.console.visit import Page, Visit

#: Queues on the page, and queues in trouble whose largest cause is told.
_QUEUES, _TOLD = 50, 3


async def show(visit: Visit) -> Page:
    """Show what needs somebody, and how queues stand."""
    visit.require(Permission.SEE, None)
    part = visit.text("text")
    status = await visit.broker.status(limit=_QUEUES, name_contains=part)
    troubled = [queue for queue in status.queues if queue.troubles]
    largest = {queue.path: await _largest(visit, queue) for queue in troubled[:_TOLD]}
    running = [one for one in await visit.broker.repairs(limit=20) if one.ended is None]
    values = {"status": status, "troubled": troubled, "largest": largest, "text": part, "repairs": running}
    return Page("overview.html", "overview", "Overview", values)


async def _largest(visit: Visit, queue: QueueGlance) -> Cause | None:
    if not queue.dead_letters:
        return None
    causes = (await visit.broker.triage(queue.path)).causes
    return causes[0] if causes else None
