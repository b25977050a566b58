"""How the store stands: queues in trouble first, workers, claims, sessions, breakers."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from lazaretto.broker.claims import Claim
from lazaretto.engine.entities.overview import Status
from lazaretto.engine.workers.list_workers import Worker
from lazaretto.model.descriptions import BreakerDescription, HeldSession, SessionDescription
from lazaretto.model.permissions import Permission
from lazaretto.model.rates import Rate
from lazaretto.web.routes import Call, OfQueue, Query, route

Limit = Annotated[int, Meta(ge=1, le=1000)]


class OverviewQuery(Query, frozen=True):
    limit: Limit = 50
    name_contains: str | None = None


class SessionQuery(OfQueue, frozen=True):
    session: str


class RatesQuery(Query, kw_only=True, frozen=True):
    """`queue`: its path; none: all queues together."""

    queue: str | None = None
    span: Literal["minute", "hour"] = "minute"
    limit: Annotated[int, Meta(ge=1, le=1440)] = 60


class HeldQuery(OfQueue, frozen=True):
    limit: Limit = 100


@route("GET", "/overview", Permission.SEE)
async def overview(call: Call, query: OverviewQuery) -> Status:
    """Tell how queues and subscriptions stand, those in trouble first."""
    return await call.broker.status(limit=query.limit, name_contains=query.name_contains)


@route("GET", "/rates", Permission.SEE)
async def list_rates(call: Call, query: RatesQuery) -> list[Rate]:
    """List what happened to the messages of a queue, or of all, by minute or hour, oldest first."""
    return await call.broker.rates(query.queue, span=query.span, limit=query.limit)


@route("GET", "/workers", Permission.SEE)
async def list_workers(call: Call, query: Query) -> list[Worker]:
    """List the processes that take messages, with what each holds."""
    return await call.broker.workers()


@route("GET", "/sessions", Permission.SEE)
async def list_sessions(call: Call, query: OfQueue) -> list[str]:
    """List the sessions of a queue that have messages or a state."""
    return await call.broker.sessions(query.queue)


@route("GET", "/session", Permission.SEE)
async def show_session(call: Call, query: SessionQuery) -> SessionDescription:
    """Show how a session stands."""
    return await call.broker.session(query.queue, query.session)


@route("GET", "/held-sessions", Permission.SEE)
async def list_held_sessions(call: Call, query: HeldQuery) -> list[HeldSession]:
    """List the sessions of a queue that a poison message holds."""
    return await call.broker.held_sessions(query.queue, limit=query.limit)


@route("GET", "/claims", Permission.SEE)
async def list_claims(call: Call, query: HeldQuery) -> list[Claim]:
    """List the claims that pipelines took of a queue, the newest first."""
    return await call.broker.claims(query.queue, limit=query.limit)


@route("GET", "/breaker", Permission.SEE)
async def show_breaker(call: Call, query: OfQueue) -> BreakerDescription:
    """Show how a queue's breaker stands."""
    return await call.broker.breaker(query.queue)
