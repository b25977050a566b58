"""How the store stands: queues in trouble first, workers, sessions, claims, metrics; and who may do what."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from lazaretto.broker.claims import Claim
from lazaretto.engine.access import Person, Token
from lazaretto.engine.entities.overview import MOST_NAMED, NAMED, Status
from lazaretto.engine.four_eyes import FourEyesWish
from lazaretto.engine.workers.list_workers import Worker
from lazaretto.model.descriptions import BreakerDescription, HeldSession, SessionDescription
from lazaretto.model.grants import Permission
from lazaretto.model.rates import Rate
from lazaretto.model.redaction import RedactionRule
from lazaretto.observe.metrics import MEDIA_TYPE, MOST_REPAIRS, Look, exposition, process_exposition
from lazaretto.serving.http import seat_of
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


class MetricsQuery(Query, frozen=True):
    """`name_contains`: a text in the path of the queues that are told by name. `limit`: how many at most."""

    name_contains: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_NAMED)] = NAMED


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


class OfPerson(Query, frozen=True):
    person: str | None = None


class FourEyes(Struct):
    """The most letters that one person may send or delete in an hour; null: any number.

    `asked`: the wish to let one person send more that waits for a second person.
    """

    letters: int | None
    asked: FourEyesWish | None


@route("GET", "/access/people", Permission.ADMINISTER)
async def list_people(call: Call) -> list[Person]:
    """List the people and groups that were granted something."""
    return await call.broker.people()


@route("GET", "/access/tokens", Permission.ADMINISTER)
async def list_tokens(call: Call, query: OfPerson) -> list[Token]:
    """List the tokens of a person or of all, the latest first."""
    return await call.broker.tokens(query.person)


@route("GET", "/access/sessions", Permission.ADMINISTER)
async def list_browser_sessions(call: Call, query: OfPerson) -> list[Token]:
    """List the sessions of a person or of all in browsers, the latest first."""
    return await call.broker.browser_sessions(query.person)


@route("GET", "/access/four-eyes", Permission.SEE)
async def show_four_eyes(call: Call) -> FourEyes:
    """Show how many letters one person may send or delete, and who asks for more."""
    return FourEyes(await call.broker.four_eyes(), await call.broker.four_eyes_wish())


@route("GET", "/redaction", Permission.SEE)
async def list_redaction(call: Call) -> list[RedactionRule]:
    """List the fields of messages that are redacted for whoever may not read them."""
    return await call.broker.redaction()
