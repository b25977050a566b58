"""One pipeline, such as a Spark query: its rate, its lag, its last micro-batch and its claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timedelta

from lazaretto.broker.claims import Claim
from lazaretto.errors import MessageNotFound
from lazaretto.model.permissions import Permission
from lazaretto.web.console.visit import Page, Visit

_CLAIMS = 200
#: The span that a rate is told over.
_SPAN = timedelta(hours=1)


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineProgress:
    """The progress of a pipeline: messages a minute in the last hour, open claims, and the last that ended.

    `seconds`: how long the last one took.
    """

    a_minute: float
    open: tuple[Claim, ...]
    last: Claim | None
    seconds: float | None


def progress_of(claims: Sequence[Claim], now: datetime) -> PipelineProgress:
    """Return the progress that a pipeline's claims tell, the newest claim first."""
    ended = [one for one in claims if one.ended is not None]
    recent = sum(one.rows for one in ended if one.ended is not None and now - one.ended <= _SPAN)
    last = ended[0] if ended else None
    took = None if last is None or last.ended is None else (last.ended - last.created).total_seconds()
    running = tuple(one for one in claims if one.state == "open")
    return PipelineProgress(recent / (_SPAN / timedelta(minutes=1)), running, last, took)


async def show(visit: Visit) -> Page:
    """Show a pipeline of a queue."""
    queue, name = visit.queue(), visit.text("consumer")
    visit.require(Permission.SEE, queue)
    consumers = await visit.visits.consumers()
    consumer = next((one for one in consumers if (one.queue, one.name) == (queue, name)), None)
    if consumer is None:
        raise MessageNotFound(f"no pipeline {name!r} takes claims of {queue!r}")
    described = await visit.broker.queue(queue)
    claims = [one for one in await visit.broker.claims(queue, limit=_CLAIMS) if one.consumer == name]
    glances = (await visit.broker.status(limit=50, name_contains=queue)).queues
    values = {
        "consumer": consumer, "claims": claims[:20], "queue": described,
        "progress": progress_of(claims, datetime.now(tz=described.created.tzinfo)),
        "oldest": next((one.oldest for one in glances if one.path == described.path), None),
    }  # fmt: skip
    return Page("pipeline.html", "workers", f"{name} of {queue}", values)
