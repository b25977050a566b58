"""HTTP on the door's port: administration, and AMQP in web sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazaretto.door import web_socket
from lazaretto.door.atom import Administration
from lazaretto.serving.http import HttpServer, Receive, Scope, Send

if TYPE_CHECKING:
    from lazaretto.door.server import Door


def http_server(door: Door) -> HttpServer:
    """Return what answers the door's clients over HTTP."""
    administration = Administration(door)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await web_socket.serve(door, scope, receive, send)
        elif scope["type"] == "http":
            await administration(scope, receive, send)

    return HttpServer(answer, door.guard, web_sockets=True)
