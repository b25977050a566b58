"""Metrics: how the store stands, its queues in trouble by name, and how long requests took."""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta
from starlette.responses import Response

from lazaretto.engine.entities.overview import MOST_NAMED, NAMED
from lazaretto.model.permissions import Permission
from lazaretto.observe.metrics import MEDIA_TYPE, MOST_REPAIRS, Look, exposition, process_exposition
from lazaretto.serving.http import seat_of
from lazaretto.web.routes import Call, Query, route


class MetricsQuery(Query, frozen=True):
    """`name_contains`: a text in the path of the queues that are told by name. `limit`: how many at most."""

    name_contains: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_NAMED)] = NAMED


@route("GET", "/metrics", Permission.SEE, media_types=("text/plain",))
async def show_metrics(call: Call, query: MetricsQuery) -> Response:
    """Show how the store stands, in Prometheus's format.

    At most `limit` queues are told by name: those in most trouble, then others in the order of their paths.
    """
    broker, began = call.broker, time.perf_counter()
    look = Look(
        await broker.status(limit=query.limit, name_contains=query.name_contains),
        await broker.workers(),
        await broker.repairs(limit=MOST_REPAIRS),
        await broker.facts(),
        time.perf_counter() - began,
    )
    own = process_exposition(lambda path: call.identity.may(Permission.SEE, path))
    seat = seat_of(call.request.scope)
    own += b"" if seat is None else seat.guard.exposition()
    return Response(exposition(look) + own + call.times.exposition(), media_type=MEDIA_TYPE)
