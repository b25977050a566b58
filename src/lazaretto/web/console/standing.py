"""Topics, workers, claims, and the keys of the console."""

from __future__ import annotations

from lazaretto.model.permissions import Permission
from lazaretto.web.console.visit import Page, Visit

_CLAIMS = 100


async def topics(visit: Visit) -> Page:
    """Show topics with their subscriptions and rules."""
    visit.require(Permission.SEE, None)
    found = [
        (topic, await visit.broker.subscriptions(topic.path)) for topic in (await visit.broker.topics())[:50]
    ]
    return Page("topics.html", "queues", "Topics", {"topics": found})


async def workers(visit: Visit) -> Page:
    """Show the processes that take messages, and what they hold."""
    visit.require(Permission.SEE, None)
    return Page("workers.html", "workers", "Workers", {"workers": await visit.broker.workers()})


async def claims(visit: Visit) -> Page:
    """Show the claims that pipelines took of a queue."""
    queue = visit.queue()
    visit.require(Permission.SEE, queue)
    found = await visit.broker.claims(queue, limit=_CLAIMS)
    return Page("claims.html", "queues", f"Claims of {queue}", {"claims": found, "queue": queue})


async def keys(visit: Visit) -> Page:
    """Show the keys."""
    return Page("keys.html", "", "Keys", {})
