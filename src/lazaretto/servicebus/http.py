"""HTTP on the door's port: messages, administration, and AMQP in web sockets."""

from __future__ import annotations

from typing import Final

from lazaretto.servicebus import web_socket
from lazaretto.servicebus.atom import Administration
from lazaretto.servicebus.grants import Unauthorized, policy_of
from lazaretto.servicebus.rest import Messages, wish_of
from lazaretto.servicebus.server import Door
from lazaretto.serving.http import Application, HttpServer, Receive, Scope, Send

#: Where an emulator is controlled: no queue can have such a name.
CONTROL: Final = "/$emulator"
#: Where its pages for people begin.
CONSOLE: Final = f"{CONTROL}/console"


def http_server(door: Door, control: Application | None = None) -> HttpServer:
    """Return what answers the door's clients over HTTP. `control`: what answers below `/$emulator/`."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await web_socket.serve(door, scope, receive, send)
        elif scope["type"] == "http":
            if control is not None and f"{scope['path']}/".startswith(f"{CONTROL}/"):
                await control(scope, receive, send)
                return
            meant, wish = await door_of(door, scope), wish_of(scope["method"], scope["path"])
            if wish is not None:
                await Messages(meant)(wish, scope, receive, send)
            else:
                await Administration(meant)(scope, receive, send)

    return HttpServer(answer, door.guard, web_sockets=True)


async def door_of(door: Door, scope: Scope) -> Door:
    """Return the door of the namespace that a request means."""
    if door.is_alone:
        return door
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    try:
        door.check_page(headers)
    except Unauthorized:
        # Any door refuses it, and for it none is made.
        return door
    return await door.of(headers.get("host", ""), policy_of(headers.get("authorization", "")))
