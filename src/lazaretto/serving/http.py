"""HTTP on a connection: heads come in time and are not large, and clients read what they asked for."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from lazaretto.model.loopback import host_name
from lazaretto.serving.budget import Budget, Share
from lazaretto.serving.guard import Guard, Seat

#: Bytes that count as something read; a client that takes a few now and then holds all the rest.
_STEP: Final = 16_384
#: Clients that speak nonsense are no warning, or they could fill the log.
_log = logging.getLogger("lazaretto.serving.http")
#: For a year.
_STRICT: Final = (b"strict-transport-security", b"max-age=31536000")
#: Bytes of an answer that are written at once.
_PIECE: Final = 65_536
#: Bytes of a message in a web socket: clients send frame by frame.
_LARGEST_MESSAGE: Final = 4 << 20
#: Seconds in which a client must answer that a web socket is closed.
LONGEST_CLOSING: Final = 2.0
#: Requests of a connection that may wait for the answer to the one before.
_MOST_WAITING: Final = 16
#: Seconds for which a client that is known may say nothing between two requests.
_KEEP_ALIVE: Final = 65
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Stall:
    """Watches how many bytes wait for a client. `longest`: seconds for which it may read nothing."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._since: float | None = None
        self._waiting = 0

    def lasts(self, now: float, waiting: int) -> bool:
        """Note how many bytes wait; return whether the client has read nothing for too long."""
        # More than before was written, which is done only once the client has read.
        moved = waiting > self._waiting or waiting <= self._waiting - _STEP
        if not waiting:
            self._since, self._waiting = None, 0
        elif self._since is None or moved:
            self._since, self._waiting = now, waiting
        return self._since is not None and now - self._since > self._longest


_log.setLevel(logging.ERROR)


def seat_of(scope: MutableMapping[str, Any]) -> Seat | None:
    """Return the place of the connection that a request came on; None: another server has it."""
    seat = scope.get("state", {}).get("seat")
    return seat if isinstance(seat, Seat) else None


async def until_gone(receive: Receive) -> None:
    """Wait until the client of a request, whose body has been read, hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


def spelled_headers(scope: MutableMapping[str, Any]) -> list[tuple[str, str]]:
    """Return the headers of a request with their names as the client has spelled them."""
    headers = scope.get("spelled", scope["headers"])
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def share_of(scope: MutableMapping[str, Any]) -> Share:
    """Return what a request holds of its server's budget, which ends with the answer."""
    state = scope.setdefault("state", {})
    share = state.get("share")
    if not isinstance(share, Share):
        # Another server counts in its own way.
        share = state["share"] = Share(Budget(sys.maxsize))
    return share


def is_named(host: bytes) -> bool:
    """Return whether a request's host has a name that others may know: no address, and not localhost."""
    name = host_name(host.decode("latin-1").rstrip(".")).rstrip(".")
    if name == "localhost" or name.endswith(".localhost") or name.startswith("[") or "." not in name:
        return False
    # The last part of a name is no number.
    return not name.rpartition(".")[2].isdigit()


def bounded(application: Application, guard: Guard, *, strict: bool = False) -> Application:
    """Return an application whose answers go out in pieces, each once the client has read the one before.

    `strict`: with the header that has browsers come to a named host over TLS alone.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        share = scope["state"]["share"] = Share(guard.budget)

        hosts = [value for name, value in scope.get("headers", ()) if name == b"host"]
        strictly = strict and scope.get("scheme") == "https" and len(hosts) == 1 and is_named(hosts[0])

        async def send_pieces(message: MutableMapping[str, Any]) -> None:
            body = message.get("body", b"")
            if strictly and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], _STRICT]
            if message["type"] == "http.response.body" and len(body) > _PIECE:
                for start in range(0, len(body), _PIECE):
                    last = start + _PIECE >= len(body)
                    more = not last or message.get("more_body", False)
                    piece = body[start : start + _PIECE]
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
            else:
                await send(message)

        try:
            await application(scope, receive, send_pieces)
        finally:
            share.end()

    return answer


class HttpServer:
    """Makes connections that speak HTTP, and ends them. `web_sockets`: whether clients may use them."""

    def __init__(
        self, application: Application, guard: Guard, *, web_sockets: bool = False, strict: bool = False
    ) -> None:
        self.guard = guard
        self._config = Config(
            cast("Any", bounded(application, guard, strict=strict)),
            http="httptools", ws=_WebSocket if web_sockets else "none",
            lifespan="off", log_config=None, access_log=False, proxy_headers=False, server_header=False,
            timeout_keep_alive=_KEEP_ALIVE, ws_max_size=_LARGEST_MESSAGE, ws_per_message_deflate=False,
            # Clients of Service Bus answer pings only while they read, which they may not do for minutes.
            ws_ping_interval=cast("Any", None),
        )  # fmt: skip
        self._config.load()
        self._state = ServerState()
        self._dated = 0.0

    def connection(self, seat: Seat) -> HttpConnection:
        """Return the protocol of a new connection."""
        return HttpConnection(self, self._config, self._state, seat)

    def date(self) -> None:
        """Have answers say when they were made."""
        now = time.time()
        if int(now) != int(self._dated):
            self._dated = now
            text = email.utils.formatdate(now, usegmt=True).encode()
            self._state.default_headers = [(b"date", text)]

    async def close(self, grace: float) -> None:
        """Hang up on all, once what is under way has ended, or after some seconds."""
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=grace)
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        for one in list(self._state.connections):
            one.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)


class _WebSocket(WebSocketsSansIOProtocol):
    """A web socket that does not wait long for clients which do not close it, nor takes much of strangers."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.close_timeout = LONGEST_CLOSING
        self.logger = self.conn.logger = _log
        self._seat: Seat = self.app_state["seat"]
        self._came = 0

    def data_received(self, data: bytes) -> None:
        """Take bytes of messages."""
        if not self._seat.known:
            self._came += len(data)
            if self._came > self._seat.limits.opening_size + self._seat.limits.head_size:
                self.transport.abort()
                return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._seat.leave()
        super().connection_lost(exc)


class HttpConnection(HttpToolsProtocol):
    """A connection that speaks HTTP."""

    def __init__(self, server: HttpServer, config: Config, state: ServerState, seat: Seat) -> None:
        super().__init__(config=config, server_state=state, app_state={"seat": seat})
        self.logger = _log
        self._server = server
        self._seat = seat
        self._stall = Stall(seat.limits.stalled_seconds)
        #: Bytes that came since the last head, part of a body or end of a request: a head so far.
        self._head = 0
        #: When the head began that is not complete yet; None: there is none.
        self._began: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self._server.date()
        self._seat.end, self._seat.look = transport.abort, self._look

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._seat.leave()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the protocol of web sockets."""
        self._seat.look = None
        self._seat.wait(for_client=True)
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        """Take bytes of requests."""
        self._head += len(data)
        if self._began is None and self._awaits_head():
            self._began = time.monotonic()
        super().data_received(data)
        if not self._awaits_head():
            self._began = None
        if self._head > self._seat.limits.head_size and not self.transport.is_closing():
            if self._awaits_head():
                self.transport.write(_TOO_LARGE)
                self.transport.close()
            else:
                self.transport.abort()

    def _awaits_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. ASGI has its name in lower case alone."""
        self.scope.setdefault("spelled", []).append((name, value))  # type: ignore[typeddict-item]
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer a request."""
        if len(self.pipeline) >= _MOST_WAITING:
            raise httptools.HttpParserError("expected fewer requests before the first is answered")
        self._head = 0
        self._seat.wait(for_client=False)
        self._server.date()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a request's body."""
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        self._head, self._began = 0, None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.pipeline and self._awaits_head():
            self._seat.wait(for_client=True)

    def _look(self, now: float) -> str | None:
        if self._began is not None and now - self._began > self._seat.limits.opening_seconds:
            return "connections ended that sent no whole head in time"
        if self._stall.lasts(now, self.transport.get_write_buffer_size()):
            return "connections ended that read nothing of their answers"
        return None
