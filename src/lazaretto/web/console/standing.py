"""Topics, workers, claims, and the keys of the console."""

from __future__ import annotations

from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.permissions import Permission
from lazaretto.web.console.visit import Page, Visit

_CLAIMS = 100
#: Queues, those in trouble first, whose breakers are looked at, and breakers that are told.
_TROUBLED, _BREAKERS = 200, 20


async def topics(visit: Visit) -> Page:
    """Show topics with their subscriptions and rules."""
    visit.require(Permission.SEE, None)
    found = [
        (topic, await visit.broker.subscriptions(topic.path)) for topic in (await visit.broker.topics())[:50]
    ]
    return Page("topics.html", "queues", "Topics", {"topics": found})


async def workers(visit: Visit) -> Page:
    """Show the processes that take messages, what they hold, and breakers that are not closed."""
    visit.require(Permission.SEE, None)
    status = await visit.broker.status(limit=_TROUBLED)
    moved = [one for one in status.queues if one.breaker is not BreakerStatus.CLOSED][:_BREAKERS]
    breakers = [(one.path, await visit.broker.breaker(one.path)) for one in moved]
    values = {
        "workers": await visit.broker.workers(),
        "breakers": breakers,
        "pipelines": await visit.visits.consumers(),
    }
    return Page("workers.html", "workers", "Workers", values)


async def claims(visit: Visit) -> Page:
    """Show the claims that pipelines took of a queue."""
    queue = visit.queue()
    visit.require(Permission.SEE, queue)
    found = await visit.broker.claims(queue, limit=_CLAIMS)
    return Page("claims.html", "queues", f"Claims of {queue}", {"claims": found, "queue": queue})


async def keys(visit: Visit) -> Page:
    """Show the keys."""
    return Page("keys.html", "", "Keys", {})
