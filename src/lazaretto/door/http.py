"""HTTP on the door's port: administration, and AMQP in web sockets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from lazaretto.door import web_socket
from lazaretto.door.atom import Administration

if TYPE_CHECKING:
    from lazaretto.door.server import Door

#: Clients that speak nonsense are no warning, or they could fill the log.
_log = logging.getLogger("lazaretto.door.http")
_log.setLevel(logging.ERROR)
#: Bytes of the line and the headers of a request.
_LARGEST_HEAD: Final = 65_536
#: Bytes of a message in a web socket: clients send frame by frame.
_LARGEST_MESSAGE: Final = 4 << 20
#: Seconds in which a client must answer that a web socket is closed.
LONGEST_CLOSING: Final = 2.0
#: Seconds that requests have to end when the server does.
_GRACE: Final = 10.0


def application(door: Door) -> Callable[..., Awaitable[None]]:
    """Return what answers the door's clients over HTTP, as an ASGI application."""
    administration = Administration(door)

    async def answer(
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] == "websocket":
            await web_socket.serve(door, scope, receive, send)
        elif scope["type"] == "http":
            await administration(scope, receive, send)

    return answer


class HttpServer:
    """Makes connections that speak HTTP, and ends them."""

    def __init__(self, door: Door) -> None:
        self._config = Config(
            cast("Any", application(door)), http="httptools", ws=_WebSocket, lifespan="off",
            log_config=None, access_log=False, proxy_headers=False, server_header=False,
            timeout_keep_alive=65, ws_max_size=_LARGEST_MESSAGE, ws_per_message_deflate=False,
            # The SDK answers pings only while it reads, which it may not do for minutes.
            ws_ping_interval=cast("Any", None),
        )  # fmt: skip
        self._config.load()
        self._state = ServerState()
        self.connections: set[HttpConnection] = set()

    def connection(self) -> HttpConnection:
        """Return the protocol of a new connection."""
        return HttpConnection(self, self._config, self._state)

    def drop_slow(self, longest: float) -> None:
        """Hang up on whoever has sent a part of a request's head for longer than some seconds."""
        now = time.monotonic()
        for connection in list(self.connections):
            if connection.began is not None and now - connection.began > longest:
                connection.transport.abort()

    async def close(self) -> None:
        """Hang up on all, once what is under way has ended."""
        for connection in list(self.connections):
            connection.transport.close()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=_GRACE)
        for left in list(self._state.connections):
            left.transport.abort()


class _WebSocket(WebSocketsSansIOProtocol):
    """A web socket that does not wait long for clients which do not close it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.close_timeout = LONGEST_CLOSING
        self.logger = self.conn.logger = _log


class HttpConnection(HttpToolsProtocol):
    """A connection that speaks HTTP, whose requests have heads of a bounded size."""

    def __init__(self, server: HttpServer, config: Config, state: ServerState) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self.logger = _log
        self._server = server
        self._head = 0
        #: When the head began that is not complete yet; None: there is none.
        self.began: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._server.connections.discard(self)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the protocol of web sockets."""
        self._server.connections.discard(self)
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        if self._awaits_head():
            self._head += len(data)
            if self.began is None:
                self.began = time.monotonic()
        super().data_received(data)
        if not self._awaits_head():
            self._head, self.began = 0, None
        elif self._head > _LARGEST_HEAD:
            self.transport.abort()

    def _awaits_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete
