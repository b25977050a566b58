"""Ports where clients connect: each connection gets a place, encrypts if it must, and speaks its protocol."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Final

from lazaretto.serving.guard import Guard, Seat

_log = logging.getLogger("lazaretto.serving")
#: Connections that wait to be accepted.
_BACKLOG: Final = 1024
#: Seconds to wait when no more connections can be accepted, as when the process has no more files.
_PAUSE: Final = 1.0
#: The first byte of clients that encrypt.
TLS: Final = b"\x16"
_SOME: Final = 65_536

Protocol = Callable[[Seat], asyncio.Protocol]


class Listener:
    """Accepts connections on some ports.

    `protocol`: returns what speaks on a connection, given its place. `tls`: with the server's certificate;
    None: nothing is encrypted. `tls_only`: those that are not encrypted are hung up on.
    """

    def __init__(
        self, guard: Guard, protocol: Protocol, tls: ssl.SSLContext | None = None, *, tls_only: bool = True
    ) -> None:
        self._guard = guard
        self._protocol = protocol
        self._tls = tls
        self._tls_only = tls_only
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._arriving: dict[asyncio.Task[None], Seat] = {}

    def listen(self, host: str, ports: Iterable[int]) -> int:
        """Listen on ports, 0 being a free one; return the first. Raises OSError."""
        for port in ports:
            self._listening.append(_listen(host, port))
        self._accepting = [asyncio.ensure_future(self._accept(one)) for one in self._listening]
        return int(self._listening[0].getsockname()[1])

    async def close(self) -> None:
        """Listen no longer, and hang up on those whose connection has not begun."""
        tasks = [*self._accepting, *self._arriving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._listening:
            one.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                _log.error("no connection can be accepted: %s", error)
                await asyncio.sleep(_PAUSE)
                continue
            seat = self._guard.admit(str(address[0]), lambda: None)
            if seat is None:
                accepted.close()
                continue
            task = asyncio.ensure_future(self._begin(accepted, seat))
            # Until its protocol knows how to hang up.
            seat.end = task.cancel
            self._arriving[task] = seat
            task.add_done_callback(self._arriving.pop)

    async def _begin(self, accepted: socket.socket, seat: Seat) -> None:
        """Begin to encrypt if the client does, and hand the connection to what speaks on it."""
        handed_over = begun = False
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls = self._tls
            if tls is not None:
                encrypts = await _first_byte(accepted) == TLS
                if not encrypts and self._tls_only:
                    # What lies unread would make the end look like a failure.
                    accepted.recv(_SOME)
                    return
                tls = tls if encrypts else None
            waits = None if tls is None else self._guard.limits.opening_seconds
            loop = asyncio.get_running_loop()
            handed_over = True
            await loop.connect_accepted_socket(
                lambda: self._protocol(seat), accepted, ssl=tls, ssl_handshake_timeout=waits
            )
            begun = True
        except (OSError, TimeoutError) as error:
            # Clients hang up, and those who do not trust the certificate too.
            _log.debug("a connection ended before it began: %s", error)
        finally:
            if not begun:
                seat.leave()
            if not handed_over:
                accepted.close()


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
        more = (
            " by another program: end that, or give another port" if error.errno == errno.EADDRINUSE else ""
        )
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}{more}") from None
    return listening
