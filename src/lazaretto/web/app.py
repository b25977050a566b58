"""The ASGI application: checks each request, hands it to its route, and tells errors as problems."""

from __future__ import annotations

import functools
import itertools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Place
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lazaretto.aio import AsyncBroker
from lazaretto.aio.posting import hold_for_clients
from lazaretto.aio.witness import Witness
from lazaretto.errors import LazarettoError
from lazaretto.model.checks import without_unseen
from lazaretto.web import api
from lazaretto.web.access import NOBODY, Access
from lazaretto.web.access_door import AccessDoor, login_places
from lazaretto.web.answers import json_of, not_modified, problem_of
from lazaretto.web.console.render import base_of
from lazaretto.web.console.site import console_places, page_of
from lazaretto.web.ending import Ending
from lazaretto.web.held import HeldMessages
from lazaretto.web.openapi import document
from lazaretto.web.origin import RelativeRedirects, check_host
from lazaretto.web.page_options import PageOptions, TriedHandlers
from lazaretto.web.refusals import HttpError
from lazaretto.web.routes import ROUTES, Call, RequestTimes, Route, answer_of, bounded
from lazaretto.web.viewed import seen_by

Answer = Callable[[Request], Awaitable[Response]]
_log = logging.getLogger("lazaretto.web")
PREFIX = "/api/v1"
#: What the numbers of this process's requests begin with, and the numbers.
_RUN, _numbers = secrets.token_hex(4), itertools.count(1)
#: What every answer says to browsers, unless it says something of its own.
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


class IndexedHeaders(Headers):
    """Headers that are asked for several times each: the first of a name is found at once."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope=scope)
        self._first: dict[str, str] = {}
        for name, value in reversed(self._list):
            self._first[name.decode("latin-1")] = value.decode("latin-1")

    def get(self, key: str, default: Any = None) -> Any:
        return self._first.get(key.lower(), default)


class DirectRequest(Request):
    """A request whose headers are indexed."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self._indexed = IndexedHeaders(scope)

    @property
    def headers(self) -> Headers:
        return self._indexed


class DirectApp(Starlette):
    """An application that answers some paths without a search for their route.

    `direct`: by method and path. `told_of`: what answers if that raises something. `common`: headers that
    every answer has, unless it says something of its own.
    """

    direct: Mapping[tuple[str, str], Answer]
    told_of: Callable[[Request, Exception], Awaitable[Response]]
    common: tuple[tuple[bytes, bytes], ...]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path, root = scope["path"], scope.get("root_path", "")
            answer = self.direct.get((scope["method"], path[len(root) :] if path.startswith(root) else ""))
            if answer is not None:
                scope["app"] = self
                await self._answer(answer, DirectRequest(scope, receive, send), send)
                return
        await super().__call__(scope, receive, send)

    async def _answer(self, answer: Answer, request: Request, send: Send) -> None:
        try:
            response = await answer(request)
        except Exception as error:
            response = await self.told_of(request, error)
        names = {name for name, _ in response.raw_headers}
        response.raw_headers += [one for one in self.common if one[0] not in names]
        await response(request.scope, request.receive, send)


def web_app(
    broker: AsyncBroker,
    access: Access,
    *,
    host_names: Iterable[str] = ("localhost", "127.0.0.1", "[::1]"),
    pages: PageOptions | None = None,
    handlers: TriedHandlers | None = None,
) -> Starlette:
    """Return the HTTP API and the console of a broker as an ASGI application, to be served or mounted.

    `host_names`: those that requests may give in `Host`; any other is refused, so that no page of another
    site reaches a server on the same machine. `pages`: what its pages show to be told from another's.
    `handlers`: what people can try letters on; None: nothing.
    """
    hold_for_clients(broker)
    door = AccessDoor(broker, access, host_names)
    ending, messages, times, witness = Ending(), HeldMessages(), RequestTimes(), Witness(broker)

    def call_of(request: Request) -> Call:
        admit = functools.partial(door.admit, request, again=True)
        return Call(broker, NOBODY, request, ending, messages, times, admit, witness)

    def endpoint(route: Route) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await _answered(request, route, call_of(request), door)

        return answer

    async def describe(request: Request) -> Response:
        check_host(request.headers.get("host"), door.host_names)
        base = base_of(request)
        served = {"servers": [{"url": base}]} if base else {}
        return Response(json_of(document(PREFIX) | served), media_type="application/json")

    async def tell_me(request: Request) -> Response:
        who = await door.admit(request)
        person = {"name": who.name, "grants": who.grants, "csrf": who.csrf}
        return Response(json_of(person), headers={"Cache-Control": "no-store"}, media_type="application/json")

    async def live(request: Request) -> Response:
        return Response(b"ok\n", media_type="text/plain")

    async def ready(request: Request) -> Response:
        await broker.last_event()
        return Response(b"ready\n", media_type="text/plain")

    assert api.MODULES
    places = [Place(PREFIX + one.path, endpoint(one), methods=[one.method]) for one in ROUTES]
    places += [
        # Where Prometheus looks.
        *(Place("/metrics", endpoint(one)) for one in ROUTES if one.path == "/metrics"),
        Place("/openapi.json", describe),
        Place(f"{PREFIX}/access/me", tell_me),
        *login_places(door),
        *console_places(broker, door, call_of),
        Place("/healthz", live),
        Place("/readyz", ready),
    ]
    app = DirectApp(
        routes=places,
        exception_handlers={
            LazarettoError: _told,
            HTTPException: _told_of_http,
            Exception: _told_of_fault,
        },
        middleware=[Middleware(_Secured), Middleware(RelativeRedirects)],
    )
    app.direct = {
        (method, place.path): place.endpoint
        for place in places
        if "{" not in place.path
        for method in place.methods or ()
        if method != "HEAD"
    }
    app.told_of, app.common = _told_of, _HEADERS
    app.state.ending = ending
    app.state.door = door
    app.state.pages = pages or PageOptions()
    app.state.stores = []
    app.state.handlers = handlers
    return app


class _Secured:
    """Adds what browsers must know to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in _HEADERS if one[0] not in names)]
            await send(message)

        await self._app(scope, receive, answer)


async def _answered(request: Request, route: Route, call: Call, door: AccessDoor) -> Response:
    began, number = time.perf_counter(), f"{_RUN}-{next(_numbers):x}"
    try:
        call.identity = await door.admit(request)
        if route.method == "GET":
            # Some of what is only read asks for more than a server that changes nothing allows.
            call.identity = call.identity.that_may_change() if call.identity.read_only else call.identity
        call.broker = seen_by(call.broker, call.identity)
        # Before anything else is read: an answer may be newer than its tag, never older.
        tag = await door.tag(request, call.identity) if route.method == "GET" and not route.streams else None
        answer = not_modified(tag, request) or await bounded(
            call,
            lambda: answer_of(route, call),
            searches=route.searches,
            # Whoever watches the server has to see why.
            always=route.path.startswith("/metrics"),
        )
        response = answer if isinstance(answer, Response) else _as_json(answer, route, tag)
    except LazarettoError as error:
        response = problem_of(without_unseen(error, call.identity.sees), base_of(request))
    response.raw_headers.append((b"x-request-id", number.encode()))
    seconds = time.perf_counter() - began
    call.times.note(route.method, route.path, response.status_code, seconds)
    if _log.isEnabledFor(logging.INFO):
        taken = round(seconds * 1000, 1)
        _log.info(
            "%s %s %s %s: %d in %s ms", number, call.identity.name, route.method, route.path,
            response.status_code, taken,
            extra={
                "event": "request", "request_id": number, "actor": call.identity.name,
                "origin": call.identity.origin, "method": route.method, "route": route.path,
                "status": response.status_code, "milliseconds": taken,
            },
        )  # fmt: skip
    return response


def _as_json(value: object, route: Route, tag: str | None) -> Response:
    if value is None:
        return Response(status_code=204)
    version = getattr(value, "version", None)
    # That of an entity stands for its settings, for changes.
    tag = tag if version is None else f'"{version}"'
    headers = None if tag is None else {"ETag": tag}
    return Response(json_of(value), route.success, headers, "application/json")


async def _told_of(request: Request, error: Exception) -> Response:
    if isinstance(error, LazarettoError):
        return problem_of(error, base_of(request))
    return await (_told_of_http if isinstance(error, HTTPException) else _told_of_fault)(request, error)


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, LazarettoError)
    return problem_of(error, base_of(request))


async def _told_of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        response = _as_page_or_problem(
            request, HttpError("method_not_allowed", f"expected another method than {request.method}")
        )
        response.headers.update(error.headers or {})
        return response
    return _as_page_or_problem(
        request, HttpError("route_not_found", "expected a path of this API, which /openapi.json lists")
    )


async def _told_of_fault(request: Request, error: Exception) -> Response:
    _log.error("a fault of the server", exc_info=error)
    response = _as_page_or_problem(
        request, HttpError("internal_error", "the server met a fault; its log tells more")
    )
    # This one is sent from outside of what adds them to every answer.
    for name, value in _HEADERS:
        response.headers.setdefault(name.decode(), value.decode())
    return response


def _as_page_or_problem(request: Request, error: HttpError) -> Response:
    base = base_of(request)
    for_people = "text/html" in request.headers.get("accept", "")
    if for_people and not request.url.path.startswith(f"{base}{PREFIX}"):
        return page_of(error, request)
    return problem_of(error, base)
