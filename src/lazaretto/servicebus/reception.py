"""Hands each connection of the door to what speaks its protocol, which its first byte tells."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from lazaretto.servicebus.peer import Peer
from lazaretto.servicebus.server import Door
from lazaretto.serving.guard import Seat
from lazaretto.serving.listener import TLS

if TYPE_CHECKING:
    from lazaretto.serving.http import HttpServer

#: The first byte of clients that speak AMQP; anything else is HTTP.
_AMQP: Final = b"A"


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
