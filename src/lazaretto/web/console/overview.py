"""The pages of a whole store: trouble first, topics, what happened, who may do what, and the API."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from lazaretto.broker.claims import Claim
from lazaretto.commands.opposites import opposites
from lazaretto.engine.entities.overview import QueueGlance
from lazaretto.engine.log import EVENT_KINDS
from lazaretto.engine.outcome.causes import Cause
from lazaretto.engine.workers.list_workers import MessageTaker, Worker
from lazaretto.errors import InvalidOption, LazarettoError, MessageNotFound
from lazaretto.model.actors import AMQP_CLIENT, HTTP_CLIENT
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.grants import ROLES, Permission, may
from lazaretto.model.rates import Rate
from lazaretto.model.repairs import Phase
from lazaretto.web.answers import STATUSES
from lazaretto.web.console.visit import Page, Visit
from lazaretto.web.readings import later_than
from lazaretto.web.refusals import HttpError
from lazaretto.web.routes import ROUTES

#: Queues on the page, those of which their trouble is told, and how many of these have their largest cause.
_QUEUES, _TROUBLES, _TOLD = 50, 8, 3
#: Queues in trouble that are shown if only these are asked for.
_MOST = 500
#: Which queues can be shown: all, those in trouble, those that stand still.
_WHICH = ("all", "trouble", "severe")
#: What is shown of the last hour, and over how many full minutes it is told per minute.
_FLOW = {"sent": "sent", "completed": "completed", "failed": "failed attempts", "dead": "dead letters"}
_MINUTES, _RECENT = 60, 5

_ENTRIES = 50
#: Above every position of an event.
_LATEST = 1 << 62


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """A flow of messages of all queues: how many a minute lately, and in each of the last minutes."""

    name: str
    a_minute: float
    counts: tuple[int, ...]


async def show_overview(visit: Visit) -> Page:
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


async def list_topics(visit: Visit) -> Page:
    """Show topics with their subscriptions and rules."""
    visit.require(Permission.SEE, None)
    rows = [
        (topic, await visit.broker.subscriptions(topic.path)) for topic in (await visit.broker.topics())[:50]
    ]
    return Page("topics.html", "queues", "Topics", {"topics": rows})


async def list_keys(visit: Visit) -> Page:
    """Show the keys."""
    return Page("keys.html", "", "Keys", {})


async def show_activity(visit: Visit) -> Page:
    """Show the audit log with what takes each action back, or the latest events."""
    queue, actor, before = visit.text("queue"), visit.text("actor"), visit.text("before")
    repair = visit.text("repair")
    if repair is not None:
        queue = (await (await visit.broker.repair(repair)).status()).queue
    visit.require(Permission.SEE, queue)
    if before is not None and not (before.isascii() and before.isdigit() and 0 < int(before) < 1 << 62):
        raise InvalidOption("expected before to be a position")
    if visit.text("lens") == "events":
        kind, position = visit.text("kind"), _LATEST if before is None else int(before)
        events = await visit.broker.events(before=position, queue=queue, kind=kind, limit=_ENTRIES)
        shown = {
            "events": events, "queue": queue, "kind": kind, "kinds": EVENT_KINDS, "before": before,
            "following": events[-1].position if len(events) == _ENTRIES else None,
        }  # fmt: skip
        return Page("events.html", "activity", "Events", shown)
    page = await visit.broker.audit(
        queue=queue,
        actor=actor,
        repair=repair,
        limit=_ENTRIES,
        before=None if before is None else int(before),
    )
    entries = list(zip(page, opposites(page, await later_than(visit.broker, page)), strict=True))
    following = page[-1].position if len(page) == _ENTRIES else None
    values = {
        "entries": entries, "queue": queue, "actor": actor, "following": following, "repair": repair
    }  # fmt: skip
    return Page("activity.html", "activity", "Activity", values)


async def show_access(visit: Visit) -> Page:
    """Show who may do what."""
    # A server that changes nothing still shows it.
    allowed = may(visit.who.grants, Permission.ADMINISTER, None)
    values: dict[str, Any] = {"roles": ROLES, "permissions": list(Permission), "allowed": allowed}
    if allowed:
        broker = visit.broker
        values |= {
            "people": await broker.people(), "tokens": await broker.tokens(),
            "sessions": await broker.browser_sessions(), "four_eyes": await broker.four_eyes(),
            "wish": await broker.four_eyes_wish(),
        }  # fmt: skip
    return Page("access.html", "access", "Access", values)


async def show_routes(visit: Visit) -> Page:
    """Show the routes of the API."""
    return Page("api.html", "", "HTTP API", {"routes": ROUTES})


async def show_problem(visit: Visit) -> Page:
    """Show what an error's code means: where `type` of a problem leads."""
    code = visit.request.path_params["code"]
    kinds = [kind for kind in _errors(LazarettoError) if kind.code == code and kind is not HttpError]
    status = STATUSES.get(code, 500)
    if not kinds and code not in STATUSES:
        raise HttpError("route_not_found", "expected the code of an error")
    rows = [(kind.__name__, inspect.getdoc(kind) or "", kind.retriable) for kind in kinds]
    values = {"code": code, "status": HTTPStatus(status), "told": rows}
    return Page("problem.html", "", code, values)


def _errors(kind: type[LazarettoError]) -> Iterator[type[LazarettoError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _errors(narrower)


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
