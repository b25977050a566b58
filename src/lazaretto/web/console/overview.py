"""The first page: trouble first, then all queues."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lazaretto.engine.entities.overview import QueueGlance
from lazaretto.engine.outcome.causes import Cause
from lazaretto.errors import InvalidOption
from lazaretto.model.permissions import Permission
from lazaretto.model.rates import Rate
from lazaretto.model.repair_phases import Phase
from lazaretto.web.console.visit import Page, Visit

#: Queues on the page, those of which their trouble is told, and how many of these have their largest cause.
_QUEUES, _TROUBLES, _TOLD = 50, 8, 3
#: Queues in trouble that are shown if only these are asked for.
_MOST = 500
#: Which queues can be shown: all, those in trouble, those that stand still.
_WHICH = ("all", "trouble", "severe")
#: What is shown of the last hour, and over how many full minutes it is told per minute.
_FLOW = {"sent": "sent", "completed": "completed", "failed": "failed attempts", "dead": "dead letters"}
_MINUTES, _RECENT = 60, 5


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """A flow of messages of all queues: how many a minute lately, and in each of the last minutes."""

    name: str
    a_minute: float
    counts: tuple[int, ...]


async def show(visit: Visit) -> Page:
    """Show what needs somebody, and how queues stand."""
    visit.require(Permission.SEE, None)
    part, which = visit.text("text"), visit.text("which") or "all"
    if which not in _WHICH:
        raise InvalidOption(f"expected which to be one of {', '.join(_WHICH)}")
    limit = _QUEUES if which == "all" else _MOST
    status = await visit.broker.status(limit=limit, name_contains=part)
    troubled = [queue for queue in status.queues if queue.troubles]
    chosen = {
        "all": list(status.queues), "trouble": troubled,
        "severe": [queue for queue in troubled if queue.troubles[0].severe],
    }[which]  # fmt: skip
    failing = [queue for queue in troubled[:_TROUBLES] if queue.dead_letters][:_TOLD]
    largest = {queue.path: await _largest(visit, queue) for queue in failing}
    running = [one for one in await visit.broker.repairs(limit=20) if one.ended is None]
    halted = [one for one in running if one.phase in (Phase.FAILED, Phase.STOPPED)]
    values = {
        "halted": halted,
        "status": status, "troubled": troubled, "largest": largest, "text": part, "repairs": running,
        "which": which, "told": troubled[:_TROUBLES], "chosen": chosen,
        "flows": _flows(await visit.broker.rates(limit=_MINUTES)),
    }  # fmt: skip
    return Page("overview.html", "overview", "Overview", values)


def _flows(rates: Sequence[Rate]) -> list[Flow]:
    flows = []
    for field, name in _FLOW.items():
        counts = tuple(getattr(rate, field) for rate in rates)
        # The last minute is not over.
        flows.append(Flow(name, sum(counts[-1 - _RECENT : -1]) / _RECENT, counts))
    return flows


async def _largest(visit: Visit, queue: QueueGlance) -> Cause | None:
    causes = (await visit.broker.triage(queue.path)).causes
    return causes[0] if causes else None
