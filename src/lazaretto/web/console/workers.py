"""The pages of who takes messages: workers, and pipelines with their claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from lazaretto.broker.claims import Claim
from lazaretto.engine.workers.list_workers import MessageTaker, Worker
from lazaretto.errors import MessageNotFound
from lazaretto.model.actors import AMQP_CLIENT, HTTP_CLIENT
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.grants import Permission
from lazaretto.web.console.visit import Page, Visit

#: Queues, those in trouble first, whose breakers are looked at, and breakers that are told.
_TROUBLED, _BREAKERS = 200, 20
#: Claims of a queue that are listed, and those in which a pipeline's are looked for.
_LISTED_CLAIMS, _CLAIMS = 100, 200
#: The span that a rate is told over.
_SPAN = timedelta(hours=1)


@dataclasses.dataclass(frozen=True, slots=True)
class TakerRow:
    """One that takes messages, of any number of queues, and the process that it is in, or comes through."""

    kind: str
    name: str
    queues: tuple[str, ...]
    since: datetime
    seen: datetime
    worker: Worker

    @property
    def comes_through(self) -> bool:
        """Whether it is a client of a server."""
        return self.kind in (AMQP_CLIENT, HTTP_CLIENT)


def taker_rows(workers: Iterable[Worker]) -> list[TakerRow]:
    """Return who takes messages, clients of servers last."""
    rows = []
    for worker in workers:
        of: dict[tuple[str, str], list[MessageTaker]] = {}
        for one in worker.takers:
            of.setdefault((one.kind, one.name), []).append(one)
        rows += [
            TakerRow(
                *who,
                tuple(one.queue for one in some),
                min(one.since for one in some),
                max(one.seen for one in some),
                worker,
            )
            for who, some in of.items()
        ]
    return sorted(rows, key=lambda row: (row.comes_through, row.name, row.worker.name))


async def list_workers(visit: Visit) -> Page:
    """Show who takes messages of which queues, what they hold, and breakers that are not closed."""
    visit.require(Permission.SEE, None)
    status = await visit.broker.status(limit=_TROUBLED)
    moved = [one for one in status.queues if one.breaker is not BreakerStatus.CLOSED][:_BREAKERS]
    breakers = [(one.path, await visit.broker.breaker(one.path)) for one in moved]
    queue = visit.text("queue")
    listed = await visit.broker.workers()
    rows = taker_rows(listed)
    at_work = {(queue, row.name) for row in rows if row.worker.alive for queue in row.queues}
    values = {
        "queue": queue,
        "takers": [row for row in rows if not queue or queue in row.queues],
        "at_work": at_work,
        "workers": [one for one in listed if one.holds or not one.alive],
        "breakers": breakers,
        "pipelines": await visit.visits.consumers(),
    }
    return Page("workers.html", "workers", "Workers", values)


async def list_claims(visit: Visit) -> Page:
    """Show the claims that pipelines took of a queue."""
    queue = visit.queue()
    visit.require(Permission.SEE, queue)
    page = await visit.broker.claims(queue, limit=_LISTED_CLAIMS)
    return Page("claims.html", "queues", f"Claims of {queue}", {"claims": page, "queue": queue})


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


async def show_pipeline(visit: Visit) -> Page:
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
