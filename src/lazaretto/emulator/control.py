"""Requests below `/$emulator/`: namespaces made, reset and moved in time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from http.cookies import SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from lazaretto.emulator.namespaces import FIRST, EmulatedNamespaces, OpenNamespace, label_of
from lazaretto.engine.log import actor_name, user_name
from lazaretto.model.clock import iso
from lazaretto.model.loopback import host_name
from lazaretto.servicebus.atom.application import admit
from lazaretto.servicebus.atom.feeds import Refusal, refusal_of
from lazaretto.servicebus.exchange import body_of, send_answer
from lazaretto.servicebus.grants import Grants, Right, policy_of
from lazaretto.servicebus.http import CONSOLE, CONTROL
from lazaretto.serving.http import Application, Receive, Scope, Send, seat_of
from lazaretto.web import Access, Grant, Identity, Role
from lazaretto.web.app import web_app
from lazaretto.web.origin import RelativeRedirects

_log = logging.getLogger("lazaretto.emulator")
_LARGEST: Final = 64 << 10
#: Names the namespace whose pages a browser has asked for last.
_COOKIE: Final = "lazaretto-namespace"
#: Fields of a query: the pages have many.
_MOST_FIELDS: Final = 1_000
_JSON: Final = b"application/json"
#: Seconds that one move of the clock may be: a hundred years.
_LONGEST: Final = 36_500 * 86_400.0


class ClockAdvance(msgspec.Struct, forbid_unknown_fields=True):
    """By how much the clock is moved."""

    seconds: float


class Clear(msgspec.Struct, forbid_unknown_fields=True):
    """The path of the queue, topic or subscription to empty."""

    entity: str


class ControlRequest(msgspec.Struct):
    """A request. `rest`: what follows the name in its path."""

    name: str
    rest: str
    body: bytes


class Control:
    """Answers those who run tests.

    `connection_string`: how clients connect to a namespace. `consoles`: the pages for people; None: there are
    none.
    """

    def __init__(
        self,
        namespaces: EmulatedNamespaces,
        connection_string: Callable[[str], str],
        consoles: ConsoleDesk | None,
    ) -> None:
        self._namespaces = namespaces
        self._connection_string = connection_string
        self._consoles = consoles
        self._verbs: Mapping[tuple[str, str], Callable[[ControlRequest], Awaitable[Any]]] = {
            ("GET", "namespaces"): self._list,
            ("PUT", "namespaces"): self._make,
            ("DELETE", "namespaces"): lambda request: namespaces.close(request.rest),
            ("POST", "reset"): lambda request: namespaces.reset(request.name),
            ("POST", "clear"): self._clear,
            ("GET", "clock"): self._tell_time,
            ("POST", "clock/advance"): self._advance,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        seen: Callable[[str], bool] = lambda path: False  # noqa: E731
        try:
            namespace, name = self._asked_for(scope, headers)
            door = namespace.door
            grants = Grants(door.keys, door.guard, seat_of(scope))
            seen = grants.sees
            door.check_page(headers)
            if self._consoles is not None and f"{scope['path']}/".startswith(f"{CONSOLE}/"):
                grants.know()
                pages = self._consoles.of(namespace, host_name(headers.get("host", "")))
                # The pages know no such field.
                fields = scope["query_string"].split(b"&")
                others = b"&".join(one for one in fields if not one.startswith(b"namespace="))
                await pages({**scope, "query_string": others}, receive, _remembering(send, name))
                return
            await admit(grants, CONTROL.strip("/"), Right.MANAGE, headers.get("authorization", ""))
            status, body = await self._answer(scope, name, receive)
        except Exception as error:
            refusal = refusal_of(error, seen)
            status, body = refusal.status, {"status": refusal.status, "detail": refusal.detail}
            if status == 500:
                _log.error("a request failed: %s", type(error).__name__, exc_info=error)
        await send_answer(send, status, b"" if body is None else msgspec.json.encode(body), _JSON)

    def _asked_for(self, scope: Scope, headers: Mapping[str, str]) -> tuple[OpenNamespace, str]:
        """Return the namespace that a request is for, and its name: by its query, cookie, host or key."""
        text = scope["query_string"].decode("latin-1")
        query = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
        if "namespace" in query:
            return self._namespaces.named(query["namespace"]), query["namespace"].lower()
        key_name = policy_of(headers.get("authorization", ""))
        cookie = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
        chosen = "" if cookie is None else cookie.value
        for name in (chosen, label_of(headers.get("host", "")), key_name.lower()):
            if name in self._namespaces.names():
                return self._namespaces.named(name), name
        return self._namespaces.named(FIRST), FIRST

    async def _answer(self, scope: Scope, name: str, receive: Receive) -> tuple[int, Any]:
        body = await body_of(receive, _LARGEST)
        path = scope["path"].removeprefix(CONTROL).strip("/")
        verb, rest = path, ""
        if path.startswith("namespaces/"):
            verb, _, rest = path.partition("/")
        act = self._verbs.get((scope["method"], verb))
        if act is None:
            names = ", ".join(f"{method} {CONTROL}/{verb}" for method, verb in self._verbs)
            raise Refusal(404, f"expected one of {names}")
        answer = await act(ControlRequest(name, unquote(rest), body))
        return (204 if answer is None else 200), answer

    async def _list(self, _: ControlRequest) -> list[dict[str, str]]:
        return [self._described(name) for name in (FIRST, *self._namespaces.names())]

    async def _make(self, request: ControlRequest) -> dict[str, str]:
        if not request.rest:
            raise Refusal(400, f"expected the name of a namespace, as in PUT {CONTROL}/namespaces/test-1")
        await self._namespaces.open(request.rest)
        return self._described(request.rest.lower())

    async def _clear(self, request: ControlRequest) -> None:
        await self._namespaces.named(request.name).clear(_decode(request.body, Clear).entity)

    async def _tell_time(self, request: ControlRequest) -> dict[str, str]:
        return {"now": iso(self._namespaces.named(request.name).door.now())}

    async def _advance(self, request: ControlRequest) -> dict[str, str]:
        seconds = _decode(request.body, ClockAdvance).seconds
        if not 0 <= seconds <= _LONGEST:
            raise Refusal(400, f"expected from 0 to {_LONGEST:.0f} seconds, got {seconds:g}")
        self._namespaces.named(request.name).clock.advance(seconds)
        return await self._tell_time(request)

    def _described(self, name: str) -> dict[str, str]:
        return {"name": name, "connection_string": self._connection_string(name)}


def _remembering(send: Send, name: str) -> Send:
    """Return what sends answers, and has a browser's later requests of the pages name the same namespace."""
    cookie = f"{_COOKIE}={name}; Path={CONSOLE}/; HttpOnly; SameSite=Strict".encode()

    async def answer(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"set-cookie", cookie)]
        await send(message)

    return answer


def _decode(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refusal(400, f"expected JSON such as this request takes: {error}") from None


class ConsoleDesk:
    """Makes the console of each namespace when somebody first looks at it. Nobody logs in."""

    def __init__(self, host: str, host_names: Sequence[str]) -> None:
        self._names = ("localhost", "127.0.0.1", "[::1]", host, *host_names)
        self._made: dict[OpenNamespace, Application] = {}

    def of(self, namespace: OpenNamespace, host: str) -> Application:
        """Return the pages of a namespace, for a host by which it was pages."""
        pages = self._made.get(namespace)
        if pages is None:
            pages = self._made[namespace] = self._make(namespace, host)
        return pages

    def _make(self, namespace: OpenNamespace, host: str) -> Application:
        somebody = Identity(user_name(), (Grant(Role.ADMIN),), makers=(actor_name(),))
        app = web_app(namespace.door.broker, Access([], somebody), host_names=(*self._names, host))
        namespace.at_end(lambda: self._made.pop(namespace, None))
        namespace.at_end(app.state.ending.begin)
        app.state.stores = []
        return Starlette(routes=[Mount(CONSOLE, app)], middleware=[Middleware(RelativeRedirects)])
