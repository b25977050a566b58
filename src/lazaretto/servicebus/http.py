"""HTTP on the door's port: messages, administration, and AMQP in web sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Final
from urllib.parse import urlsplit

from lazaretto.servicebus.atom import Administration
from lazaretto.servicebus.grants import Unauthorized, policy_of
from lazaretto.servicebus.peer import Peer
from lazaretto.servicebus.rest import Messages, wish_of
from lazaretto.servicebus.server import Door
from lazaretto.serving.http import Application, HttpServer, Receive, Scope, Send, seat_of

#: Where clients of Service Bus connect, and what they may want to speak there: the standard's name of AMQP,
#: and the one before it.
PATH: Final = "/$servicebus/websocket"
SUBPROTOCOLS: Final = ("amqp", "AMQPWSB10")
#: Bytes that wait to be sent, above which the peer is asked to pause.
_HIGH_WATER: Final = 1 << 16
#: Why the server closes a socket: it came with text.
_UNSUPPORTED: Final = 1003


class WebSocketTransport(asyncio.Transport):
    """A transport to a client: what a peer writes waits here until the client takes it."""

    def __init__(self, peer: Peer, address: tuple[str, int] | None = None) -> None:
        super().__init__({"peername": address})
        self._peer = peer
        self._high = _HIGH_WATER
        self._reading = asyncio.Event()
        self._reading.set()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._closing = False
        self._paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes when the client takes them; none once it closes."""
        if self._closing or not data:
            return
        self._waiting.append(bytes(data))
        self._size += len(data)
        self._news.set()
        if self._size > self._high and not self._paused:
            self._paused = True
            self._peer.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set how many bytes may wait before the peer is asked to pause. `low` does not matter."""
        self._high = _HIGH_WATER if high is None else high

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait."""
        return self._size

    def pause_reading(self) -> None:
        """Take nothing from the client for a time."""
        self._reading.clear()

    def resume_reading(self) -> None:
        """Take from the client again."""
        self._reading.set()

    def is_reading(self) -> bool:
        """Whether what the client says is taken."""
        return self._reading.is_set()

    async def until_reading(self) -> None:
        """Wait until what the client says is taken."""
        await self._reading.wait()

    def close(self) -> None:
        """Close the socket once all is sent."""
        self._closing = True
        self._reading.set()
        self._news.set()

    def abort(self) -> None:
        """Close the socket at once."""
        self._waiting.clear()
        self.close()

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._closing

    async def send_all(self, send: Send) -> None:
        """Send what is written until it is closed, and close the socket."""
        while self._waiting or not self._closing:
            if not self._waiting:
                self._news.clear()
                await self._news.wait()
                continue
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._size = 0
            await send({"type": "websocket.send", "bytes": data})
            if self._paused and not self._waiting:
                self._paused = False
                self._peer.resume_writing()
        await send({"type": "websocket.close", "code": 1000})


async def serve(door: Door, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a client in a web socket, as ASGI has it, until either closes it."""
    await receive()
    subprotocol = next((one for one in scope["subprotocols"] if one in SUBPROTOCOLS), None)
    if subprotocol is None or not _welcome(door, scope):
        await send({"type": "websocket.close"})
        return
    await send({"type": "websocket.accept", "subprotocol": subprotocol})
    seat = seat_of(scope)
    assert seat is not None
    peer = Peer(door, seat)
    client = scope.get("client")
    transport = WebSocketTransport(peer, None if client is None else (client[0], client[1]))
    peer.connection_made(transport)
    sending = asyncio.ensure_future(transport.send_all(send))
    try:
        while not sending.done():
            await transport.until_reading()
            message = await receive()
            if message["type"] == "websocket.disconnect":
                break
            data = message.get("bytes")
            if data is None:
                await send({"type": "websocket.close", "code": _UNSUPPORTED})
                break
            peer.data_received(data)
    finally:
        transport.abort()
        peer.connection_lost(None)
        # The client may have gone, and what was still to be sent with it.
        with contextlib.suppress(Exception):
            await sending


def _welcome(door: Door, scope: Scope) -> bool:
    # Java's SDK names the host there, too, as the standard of HTTP allows.
    if urlsplit(scope["path"]).path.rstrip("/") != PATH:
        return False
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    try:
        door.check_page(headers)
    except Unauthorized:
        return False
    return True


#: Where an emulator is controlled: no queue can have such a name.
CONTROL: Final = "/$emulator"
#: Where its pages for people begin.
CONSOLE: Final = f"{CONTROL}/console"


def http_server(door: Door, control: Application | None = None) -> HttpServer:
    """Return what answers the door's clients over HTTP. `control`: what answers below `/$emulator/`."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await serve(door, scope, receive, send)
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
