"""Topics, workers, claims, and the keys of the console."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import datetime

from lazaretto.engine.workers.list_workers import MessageTaker, Worker
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.permissions import Permission
from lazaretto.model.presence import AMQP_CLIENT, HTTP_CLIENT
from lazaretto.web.console.visit import Page, Visit

_CLAIMS = 100
#: Queues, those in trouble first, whose breakers are looked at, and breakers that are told.
_TROUBLED, _BREAKERS = 200, 20


async def topics(visit: Visit) -> Page:
    """Show topics with their subscriptions and rules."""
    visit.require(Permission.SEE, None)
    rows = [
        (topic, await visit.broker.subscriptions(topic.path)) for topic in (await visit.broker.topics())[:50]
    ]
    return Page("topics.html", "queues", "Topics", {"topics": rows})


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


async def workers(visit: Visit) -> Page:
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


async def claims(visit: Visit) -> Page:
    """Show the claims that pipelines took of a queue."""
    queue = visit.queue()
    visit.require(Permission.SEE, queue)
    page = await visit.broker.claims(queue, limit=_CLAIMS)
    return Page("claims.html", "queues", f"Claims of {queue}", {"claims": page, "queue": queue})


async def keys(visit: Visit) -> Page:
    """Show the keys."""
    return Page("keys.html", "", "Keys", {})
