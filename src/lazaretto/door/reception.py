"""The door's port: each connection is handed to what speaks its protocol, which its first byte tells."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from lazaretto.door.peer import Peer

if TYPE_CHECKING:
    from lazaretto.door.http import HttpServer
    from lazaretto.door.server import Door

_log = logging.getLogger("lazaretto.door")
#: Connections that wait to be accepted.
_BACKLOG: Final = 1024
#: Seconds to wait when no more connections can be accepted, as when the process has no more files.
_PAUSE: Final = 1.0
#: The first bytes of what clients may speak; anything else is HTTP.
_AMQP, _TLS = b"A", b"\x16"
_SOME: Final = 65_536


class Reception:
    """Accepts connections on some ports. `tls_only`: those that are not encrypted are hung up on."""

    def __init__(
        self, door: Door, tls: ssl.SSLContext | None, http: HttpServer | None, *, tls_only: bool
    ) -> None:
        self._door = door
        self._tls = tls
        self._tls_only = tls_only
        self.http = http
        self.newcomers: set[asyncio.Transport] = set()
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._arriving: set[asyncio.Task[None]] = set()

    def listen(self, host: str, ports: Iterable[int]) -> int:
        """Listen on ports, 0 being a free one; return the first. Raises OSError."""
        for port in ports:
            self._listening.append(_listen(host, port))
        self._accepting = [asyncio.ensure_future(self._accept(one)) for one in self._listening]
        return int(self._listening[0].getsockname()[1])

    async def close(self) -> None:
        """Listen no longer, and hang up on those who have not said what they speak."""
        tasks = [*self._accepting, *self._arriving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._listening:
            one.close()
        for transport in list(self.newcomers):
            transport.abort()
        if self.http is not None:
            await self.http.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                _log.error("no connection can be accepted: %s", error)
                await asyncio.sleep(_PAUSE)
                continue
            if self._full():
                accepted.close()
                continue
            task = asyncio.ensure_future(self._admit(accepted))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    def _full(self) -> bool:
        others = 0 if self.http is None else len(self.http.connections)
        known = len(self._door.peers) + len(self._arriving) + len(self.newcomers) + others
        return known >= self._door.limits.connections

    async def _admit(self, accepted: socket.socket) -> None:
        """Begin to encrypt if the client does, and wait for what it says then."""
        handed_over = False
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls = self._tls
            if tls is not None:
                async with asyncio.timeout(self._door.limits.opening_seconds):
                    encrypts = await _first_byte(accepted) == _TLS
                if not encrypts and self._tls_only:
                    # What lies unread would make the end look like a failure.
                    accepted.recv(_SOME)
                    return
                tls = tls if encrypts else None
            waits = None if tls is None else self._door.limits.opening_seconds
            loop = asyncio.get_running_loop()
            handed_over = True
            await loop.connect_accepted_socket(
                lambda: _Newcomer(self, self._door), accepted, ssl=tls, ssl_handshake_timeout=waits
            )
        except (OSError, TimeoutError) as error:
            # Clients hang up, and those who do not trust the certificate too.
            _log.debug("a connection ended before it began: %s", error)
        finally:
            if not handed_over:
                accepted.close()


class _Newcomer(asyncio.Protocol):
    """A client that has not said yet what it speaks."""

    def __init__(self, reception: Reception, door: Door) -> None:
        self._reception = reception
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other event loops than asyncio's own do not derive theirs from its class.
        self._transport = cast("asyncio.Transport", transport)
        self._reception.newcomers.add(self._transport)
        longest = self._door.limits.opening_seconds
        self._waiting = asyncio.get_running_loop().call_later(longest, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()

    def data_received(self, data: bytes) -> None:
        transport, http = self._transport, self._reception.http
        assert transport is not None
        self._leave()
        if data[:1] == _AMQP:
            chosen: asyncio.Protocol = Peer(self._door)
        elif http is not None and data[:1] != _TLS:
            chosen = http.connection()
        else:
            transport.abort()
            return
        transport.set_protocol(chosen)
        chosen.connection_made(transport)
        if not transport.is_closing():
            chosen.data_received(data)

    def _leave(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        if self._transport is not None:
            self._reception.newcomers.discard(self._transport)


async def _first_byte(accepted: socket.socket) -> bytes:
    """Wait for the first byte, which stays where it is."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def tell() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(accepted.fileno(), tell)
    try:
        await readable
    finally:
        loop.remove_reader(accepted.fileno())
    return accepted.recv(1, socket.MSG_PEEK)


def _listen(host: str, port: int) -> socket.socket:
    listening: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        with contextlib.suppress(OSError):
            if listening is not None:
                listening.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listening
