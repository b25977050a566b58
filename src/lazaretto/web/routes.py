"""The table of routes: method, path, permission, and what goes in and out, by each handler's types.

How long requests took is a metric by route.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import re
import time
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from lazaretto.aio import AsyncBroker
from lazaretto.aio.witness import Witness
from lazaretto.commands import Command
from lazaretto.engine.command import read_command
from lazaretto.errors import InvalidOption, LazarettoError
from lazaretto.model.checks import shown, suggestion
from lazaretto.model.clock import within
from lazaretto.model.grants import Permission
from lazaretto.serving.budget import Share
from lazaretto.serving.http import seat_of, share_of, until_gone
from lazaretto.web.access import Identity, require_for
from lazaretto.web.bounded import COST, content_of, hold_messages
from lazaretto.web.ending import Ending, end
from lazaretto.web.held import HeldMessages
from lazaretto.web.refusals import HttpError, NotAuthenticated, NotPermitted

#: Upper bounds of durations, in seconds, as OpenTelemetry advises them.
_DURATIONS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class RequestTimes:
    """Times that a server has taken for its requests, by route."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._seconds = Histogram(
            "lazaretto_http_request_duration_seconds",
            "How long requests of the HTTP API took.",
            ("method", "route", "status"),
            registry=self._registry,
            buckets=_DURATIONS,
        )
        #: Those that were asked for, since finding one takes as long as counting.
        self._kept: dict[tuple[str, str, int], Histogram] = {}

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. `route`: its template."""
        key = method, route, status
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = self._seconds.labels(*key)
        kept.observe(seconds)

    def exposition(self) -> bytes:
        """Return them in Prometheus's format."""
        return generate_latest(self._registry)


T = TypeVar("T")

_DATE: Final = re.compile(r"\d{4}-")
_ENTITY_TAG: Final = re.compile(r'"([\x21\x23-\x7e]{1,200})"')

#: Bytes of a request's body, unless its route takes others; None: as many as the server's limits say.
MOST_BYTES: Final = 1024 * 1024
#: Bytes of what is made of a byte of JSON at most, and of one that is only taken as it is.
_JSON_COST: Final = 16
#: Bytes of parameters that are kept in case that they come again.
_USUAL: Final = 200
#: Seconds after which whoever gets a long answer, or waits for one, must still have the right to it.
AUTHORIZED_EVERY: Final = 3.0


class Query(msgspec.Struct, kw_only=True, frozen=True):
    """The parameters of a request's query, which requests can share. Subclasses name them.

    An unknown one is refused.
    """


class OfQueue(Query, kw_only=True, frozen=True):
    """The parameters of a request about one queue. `queue`: its path."""

    queue: str


@dataclasses.dataclass(slots=True)
class Call:
    """One request: the broker, who asks, and the request itself.

    `held`: what the server has given out. `times`: how long its requests took. `admit`: looks again who asks.
    `witness`: notes in the audit log what changes nothing.
    """

    broker: AsyncBroker
    identity: Identity
    request: Request
    ending: Ending
    held: HeldMessages
    times: RequestTimes
    admit: Callable[[], Awaitable[Identity]]
    witness: Witness

    def require(self, permission: Permission, path: str | None) -> None:
        """Raise NotPermitted unless the caller may do so on another entity too."""
        self.identity.require(permission, path)

    async def authorize_again(self) -> None:
        """Raise LazarettoError if the caller has lost a right since the request came."""
        now = await self.admit()
        if not set(self.identity.grants) <= set(now.grants):
            raise NotPermitted(f"expected somebody with the roles of before, got {self.identity.name!r}")

    async def wait_for(self, work: Awaitable[T]) -> T:
        """Return what work comes to, unless the client goes away or the server ends: then it is cancelled.

        It is also if the client loses its rights: then why is raised.
        """
        task = asyncio.ensure_future(work)
        watching = asyncio.ensure_future(self._watch(task))
        guarding = asyncio.ensure_future(self._guard(task))
        try:
            return await self.ending.wait_for(task)
        except asyncio.CancelledError:
            if guarding.done() and not guarding.cancelled():
                raise guarding.result() from None
            if watching.done() and not watching.cancelled():
                raise HttpError("client_gone", "the client went away") from None
            raise
        finally:
            watching.cancel()
            guarding.cancel()

    async def _guard(self, task: asyncio.Future[Any]) -> LazarettoError:
        while True:
            await asyncio.sleep(AUTHORIZED_EVERY)
            try:
                await self.authorize_again()
            except LazarettoError as error:
                task.cancel()
                return error

    async def while_allowed(
        self, parts: AsyncGenerator[bytes], farewell: bytes | None = None
    ) -> AsyncIterator[bytes]:
        """Yield parts of a long answer while the caller may have them.

        Then raise LazarettoError, or yield `farewell` and end.
        """
        checked = time.monotonic()
        try:
            while True:
                coming = asyncio.ensure_future(anext(parts, None))
                try:
                    while not coming.done() or checked + AUTHORIZED_EVERY <= time.monotonic():
                        await asyncio.wait({coming}, timeout=checked + AUTHORIZED_EVERY - time.monotonic())
                        if checked + AUTHORIZED_EVERY <= time.monotonic():
                            await self.authorize_again()
                            checked = time.monotonic()
                    part = coming.result()
                finally:
                    await end(coming)
                if part is None:
                    return
                yield part
        except (NotAuthenticated, NotPermitted):
            if farewell is None:
                raise
            yield farewell
        finally:
            await parts.aclose()

    async def _watch(self, task: asyncio.Future[Any]) -> None:
        await until_gone(self.request.receive)
        task.cancel()

    @property
    def share(self) -> Share:
        """The request's share of the server's memory."""
        return share_of(self.request.scope)

    async def hold_messages(self, path: str, numbers: Sequence[int]) -> None:
        """Hold what it takes to answer with some messages of a queue. Raises ServerOverloaded."""
        await hold_messages(self.share, self.broker, path, numbers)

    @property
    def seen_version(self) -> str | None:
        """The version that an entity must still have: the entity tag of `If-Match`. Raises HttpError."""
        headers = self.request.headers.getlist("if-match")
        if not headers or headers == ["*"]:
            return None
        if headers[0].startswith("W/"):
            raise HttpError("changed_meanwhile", "expected a strong entity tag in If-Match, got a weak one")
        match = _ENTITY_TAG.fullmatch(headers[0].strip())
        if match is None or len(headers) > 1:
            raise HttpError("bad_request", 'expected one entity tag in If-Match, such as "a1b2", or *')
        return match[1]

    async def change(self, command: Command) -> Any:
        """Run a command if the entity still has the version that `If-Match` names, and return its answer."""
        require_for(command, self.require)
        version = self.seen_version
        # A form shows what it changes.
        blind = self.identity.csrf is not None and self.request.method in ("PATCH", "DELETE")
        if blind and not self.request.headers.get("if-match"):
            raise HttpError("precondition_required", "expected If-Match with the ETag of what was shown")
        return await self.broker.run(command, actor=self.actor, version=version)

    @property
    def actor(self) -> str:
        return self.identity.actor


Handler = Callable[..., Awaitable[Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route. `query`, `body` and `answer`: types; None: there is none. `success`: the status of an answer.

    `asks_itself`: the handler asks for the permission on what the body names; before, it must be granted on
    something. `most`: bytes of a body; None: as many as the server's limits say. `searches`: whether it may
    look through much: then few are answered at the same time.
    """

    method: str
    path: str
    permission: Permission
    handler: Handler
    query: type[Query] | None
    body: Any
    answer: Any
    path_types: Mapping[str, Any]
    success: int = 200
    media_types: tuple[str, ...] = ("application/json",)
    asks_itself: bool = False
    most: int | None = MOST_BYTES
    searches: bool = False

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def streams(self) -> bool:
        """Whether the answer is no value, but something that the handler sends by itself."""
        return self.answer is Response

    @property
    def waits(self) -> bool:
        """Whether an answer may wait for something to happen."""
        return self.query is not None and "wait" in self.query.__struct_fields__

    @property
    def summary(self) -> str:
        """The first sentence of the handler's docstring."""
        return (self.handler.__doc__ or self.name).strip().partition("\n")[0]


#: All routes, in the order of their modules.
ROUTES: Final[list[Route]] = []


def route(method: str, path: str, permission: Permission, **facts: Any) -> Callable[[Handler], Handler]:
    """Add a handler to the table. Its parameters `query` and `body` and its return type say what it takes.

    Other parameters are parts of the path, texts or numbers. `facts`: what else a Route has.
    """

    def add(handler: Handler) -> Handler:
        hints = typing.get_type_hints(handler, include_extras=True)
        answer = hints.pop("return", None)
        hints.pop("call", None)
        query, body = hints.pop("query", None), hints.pop("body", None)
        ROUTES.append(
            Route(
                method=method, path=path, permission=permission, handler=handler, query=query, body=body,
                answer=answer, path_types=hints, **facts,
            )
        )  # fmt: skip
        return handler

    return add


def query_of(kind: type[Query], text: bytes) -> Query:
    """Return the parameters that a request gives behind its path. Raises InvalidOption."""
    return _usual_query(kind, text) if len(text) <= _USUAL else _read_query(kind, text)


def _read_query(kind: type[Query], text: bytes) -> Query:
    fields = kind.__struct_fields__
    values: dict[str, Any] = {}
    for name, value in QueryParams(text).multi_items():
        if name not in fields:
            raise InvalidOption(f"unknown parameter {name!r}{suggestion(name, fields)}")
        if name in values:
            raise InvalidOption(f"expected the parameter {name!r} once, got it twice")
        values[name] = value
    for name in values.keys() & _times_of(kind):
        value = values[name]
        # A number would be taken for seconds since 1970.
        if not _DATE.match(value):
            raise InvalidOption(f"{name}: expected a time such as 2026-01-31T12:00:00Z, got {shown(value)}")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"parameters: {_told(error)}") from None


#: Programs ask for the same again and again.
_usual_query = functools.lru_cache(1024)(_read_query)


@functools.cache
def _times_of(kind: type[Query]) -> frozenset[str]:
    """Return the names of the parameters that are times."""
    hints = typing.get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if datetime in typing.get_args(hint))


def body_of(kind: Any, content: bytes) -> Any:
    """Return the JSON of a request's body as a type. Raises HttpError, InvalidOption."""
    try:
        if isinstance(kind, type) and issubclass(kind, Command):
            return read_command(kind, content)
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"body: {_told(error)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError("bad_request", f"expected JSON: {error}") from None


def _told(error: msgspec.ValidationError) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]


async def bounded(call: Call, work: Callable[[], Awaitable[T]], *, searches: bool, always: bool = False) -> T:
    """Return what work comes to, within what one person may have under way.

    `searches`: it may look through much, and is ended if nobody waits for it. `always`: it is done also while
    the server refuses new work. Raises ServerOverloaded, TooManyRequests.
    """
    seat, share = seat_of(call.request.scope), call.share
    if seat is None:
        return await work()
    if not always:
        seat.guard.refuse_new_work()
    seat.people.begin(call.identity.name, share)
    if searches:
        await seat.people.search(call.identity.name, share)
        return await call.wait_for(work())
    # Nobody needs to watch a client that asks for little.
    return await work()


def deadline_of(request: Request) -> AbstractContextManager[object]:
    """Return the context of what a request asks for: it has a deadline, which a change has later."""
    seat = seat_of(request.scope)
    if seat is None:
        return nullcontext()
    return within(seat.limits.query_seconds if request.method == "GET" else seat.limits.change_seconds)


async def answer_of(route: Route, call: Call) -> Response | Any:
    """Do what a request asks for, and return its answer. Raises LazarettoError."""
    request = call.request
    arguments: dict[str, Any] = {}
    for name, kind in route.path_types.items():
        try:
            arguments[name] = msgspec.convert(request.path_params[name], kind, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidOption(f"{name}: {_told(error)}") from None
    if route.query is not None:
        arguments["query"] = query_of(route.query, request.scope["query_string"])
    elif request.scope["query_string"] and request.query_params:
        raise InvalidOption(f"unknown parameter {next(iter(request.query_params))!r}; there are none")
    if route.asks_itself:
        call.identity.require_anywhere(route.permission)
    else:
        call.require(route.permission, _entity(arguments))
    if route.body is not None:
        plain = route.body in (bytes, msgspec.Raw)
        content = await content_of(request, route.most, COST if plain else _JSON_COST)
        arguments["body"] = content if route.body is bytes else body_of(route.body, content)
    # A body may take longer to come.
    with nullcontext() if route.waits else deadline_of(request):
        return await route.handler(call, **arguments)


def _entity(arguments: dict[str, Any]) -> str | None:
    """Return the entity that a request is about; None: about all of them."""
    if "path" in arguments:
        return str(arguments["path"])
    query = arguments.get("query")
    for name in ("queue", "topic"):
        value = getattr(query, name, None)
        if value is not None:
            return str(value)
    return None
