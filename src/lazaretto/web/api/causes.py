"""Causes of dead letters: what is wrong, how often, since when, and what its messages share."""

from __future__ import annotations

from datetime import datetime

from lazaretto.engine.outcome.causes import Cause, Triage
from lazaretto.model.permissions import Permission
from lazaretto.web.routes import Call, OfQueue, route


class CausesQuery(OfQueue, kw_only=True, frozen=True):
    """`over`: also causes without pending letters. `explain`: seconds to look for what messages share."""

    since: datetime | None = None
    over: bool = False
    explain: float = 0.0


class CauseQuery(OfQueue, kw_only=True, frozen=True):
    since: datetime | None = None


#: The longest time to look for what the messages of causes share, in seconds.
_LONGEST = 10.0


@route("GET", "/causes", Permission.SEE, searches=True)
async def list_causes(call: Call, query: CausesQuery) -> Triage:
    """List the causes of a queue's dead letters, the largest first."""
    return await call.broker.triage(
        query.queue, since=query.since, over=query.over, explain_for=min(query.explain, _LONGEST)
    )


@route("GET", "/causes/{number}", Permission.READ_BODIES, searches=True)
async def show_cause(call: Call, number: int, query: CauseQuery) -> Cause:
    """Show one cause, with what its messages share that good ones lack."""
    return await call.broker.cause(query.queue, number, since=query.since)
