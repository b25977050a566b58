"""Ports on which clients of a door connect."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import ssl
from collections.abc import AsyncIterator, Collection, Iterable
from typing import TYPE_CHECKING, Final, cast

from lazaretto.aio import AsyncBroker
from lazaretto.errors import InvalidOption
from lazaretto.model.loopback import is_loopback
from lazaretto.servicebus.grants import AccessPolicy
from lazaretto.servicebus.limits import DoorLimits
from lazaretto.servicebus.peer import Peer
from lazaretto.servicebus.server import Door
from lazaretto.serving.guard import Guard, Seat
from lazaretto.serving.listener import TLS, Listener

if TYPE_CHECKING:
    from lazaretto.serving.http import Application, HttpServer


#: The first byte of clients that speak AMQP; anything else is HTTP.
_AMQP: Final = b"A"
#: Seconds that requests over HTTP have to end when the server does.
_GRACE: Final = 10.0


class Newcomer(asyncio.Protocol):
    """A client that has not said yet what it speaks. `http`: what speaks HTTP; None: nothing does."""

    def __init__(self, door: Door, http: HttpServer | None, seat: Seat) -> None:
        self._door = door
        self._http = http
        self._seat = seat
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other event loops than asyncio's own do not derive theirs from its class.
        self._transport = cast("asyncio.Transport", transport)
        self._seat.end = self._transport.abort
        self._door.newcomers.add(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._door.newcomers.discard(self._transport)
        self._seat.leave()

    def data_received(self, data: bytes) -> None:
        transport, http = self._transport, self._http
        assert transport is not None
        self._door.newcomers.discard(transport)
        if data[:1] == _AMQP:
            chosen: asyncio.Protocol = Peer(self._door, self._seat)
        elif http is not None and data[:1] != TLS:
            chosen = http.connection(self._seat)
        else:
            self._seat.end()
            return
        transport.set_protocol(chosen)
        chosen.connection_made(transport)
        if not transport.is_closing():
            chosen.data_received(data)


@contextlib.asynccontextmanager
async def open_door(
    broker: AsyncBroker,
    *,
    host: str = "127.0.0.1",
    port: int = 5672,
    policies: Iterable[AccessPolicy] = (),
    tls: ssl.SSLContext | None = None,
    insecure: bool = False,
    limits: DoorLimits | None = None,
    tls_only: bool = True,
    more_ports: Iterable[int] = (),
    host_names: Iterable[str] = (),
    guard: Guard | None = None,
) -> AsyncIterator[Door]:
    """Serve clients of Service Bus and of AMQP 1.0 while the context lasts.

    One port serves AMQP, AMQP in web sockets, and administration over HTTP; the last two need the packages
    of `lazaretto[serve]`. `port`: 0 for a free one, which is in `Door.port` then. `policies`: whose keys
    clients sign their tokens with, or log in with; without any, everybody may do everything. `tls`: with
    the server's certificate; None: nothing is encrypted. `tls_only`: with a certificate, who does not
    encrypt is hung up on. `more_ports`: where the same is served. `host_names`: further names of the server
    that requests over HTTP may give in `Host` if there are no policies. `guard`: that of a server with other
    doors, whose limits hold for all of them; None: one of its own. Raises InvalidOption for an address
    beyond this machine, unless there are policies and TLS, or `insecure` is said.
    """
    policies = list(policies)
    check_address(host, tls if tls_only else None, policies, insecure=insecure)
    door = Door(broker, policies, limits, insecure=insecure, host_names=host_names, guard=guard)
    async with (
        door.at_work(),
        listen(door, host=host, ports=[port, *more_ports], tls=tls, tls_only=tls_only),
    ):
        yield door


@contextlib.asynccontextmanager
async def listen(
    door: Door,
    *,
    host: str,
    ports: Iterable[int],
    tls: ssl.SSLContext | None = None,
    tls_only: bool = True,
    control: Application | None = None,
) -> AsyncIterator[None]:
    """Let clients connect to a door, and to those of its namespaces, while the context lasts.

    `control`: what answers requests over HTTP below `/$emulator/`; None: nothing does.
    """
    http = _http(door, control)
    listener = Listener(door.guard, functools.partial(Newcomer, door, http), tls, tls_only=tls_only)
    door.port = listener.listen(host, ports)
    async with door.guard.watching():
        try:
            yield
        finally:
            for one in door.doors():
                one.close_clients()
            await listener.close()
            for transport in list(door.newcomers):
                transport.abort()
            if http is not None:
                await http.close(_GRACE)


def _http(door: Door, control: Application | None) -> HttpServer | None:
    """Return what speaks HTTP; None: its packages are not installed."""
    if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("websockets") is None:
        return None
    from lazaretto.servicebus.http import http_server

    return http_server(door, control)


def check_address(
    host: str, tls: ssl.SSLContext | None, policies: Collection[AccessPolicy], *, insecure: bool = False
) -> None:
    """Raise InvalidOption if others than this machine would be served without TLS or without keys."""
    if insecure or is_loopback(host) or (tls is not None and policies):
        return
    raise InvalidOption(
        f"expected an address of this machine, such as 127.0.0.1, got {host!r}: "
        "beyond it clients need TLS and a key"
    )
