"""Listens for other processes' commits, and tracks the server's time."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from psycopg import errors

from lazaretto.model.clock import SystemClock
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.polling import READ, HasFileno, new_poll

#: How often the server is asked for commits without a notification, in seconds.
_ASK_EVERY = 1.0
#: How long it goes on to listen after nobody waits any more, in seconds.
_LINGER = 1.0
#: The lock that all hold together who listen to a store. Functions that send notify only if somebody does.
LISTENING = 0x4C5A0004
#: How long that lock is waited for at most, in milliseconds: a commit may hold it.
_LONGEST_COMMIT = 1_000
#: How long listening pauses after only this process's own commits were heard, in seconds.
_OWN_PAUSE = 0.01


def channel(schema: str) -> str:
    """Return the name of the notification channel for commits of a store."""
    return f"lazaretto_{schema}"


class ServerClock:
    """An estimate of the server's time, corrected by each commit."""

    ticks = True

    def __init__(self) -> None:
        self.set(SystemClock().now())

    def set(self, now: int) -> None:
        """Set the estimate to the server's time now."""
        self._ahead = now - time.monotonic_ns() // 1000

    def now(self) -> int:
        return time.monotonic_ns() // 1000 + self._ahead


class Bell:
    """Wakes another thread of this process from its sleep."""

    def __init__(self) -> None:
        self._hears, self._rings = socket.socketpair()
        for end in (self._hears, self._rings):
            end.setblocking(False)

    def ring(self) -> None:
        """End the current `sleep`, or the next one if none is running."""
        # Full, it has been rung; closed, nobody sleeps.
        with suppress(OSError):
            self._rings.send(b".")

    def sleep(self, seconds: float, other: HasFileno | None = None) -> None:
        """Sleep until it is rung, `other` has data, or the time is over."""
        if self._hears.fileno() < 0:
            return
        poll = new_poll()
        poll.register(self._hears, READ)
        if other is not None:
            poll.register(other, READ)
        poll.poll(max(0.0, seconds) * 1000)
        with suppress(OSError):
            self._hears.recv(4096)

    def close(self) -> None:
        self._hears.close()
        self._rings.close()


class Listener:
    """Listens for notifications of commits, and polls once in a while in case one was missed.

    It listens only while a caller waits: each listening process makes every commit more expensive.
    `number`: the schema's half of its locks.
    """

    def __init__(
        self, conninfo: str, schema: str, number: int, query: str, clock: ServerClock | None, bell: Bell
    ) -> None:
        self._clock = clock
        self._bell = bell
        self._only_own = False
        self._conninfo = conninfo
        self._schema = schema
        self._lock = f"{LISTENING}, {number}"
        self._channel = channel(schema)
        self._query = query
        self._connection: PgConnection | None = None
        self._known = 0
        self._heard = 0
        self._asked_at = 0.0
        self._listens = False
        self._listens_until = 0.0

    def listen(self, own: int, version: int, *, waiting: bool) -> int:
        """Return the number of commits by other processes.

        `own`: this process's connection; `version`: the last known one; `waiting`: whether a caller waits.
        """
        if self._connection is None or self._connection.broken:
            self._connection = PgConnection(self._conninfo, schema=self._schema)
            self._asked_at = 0.0
            self._listens = False
        self._listen_if(waiting, self._connection)
        others = [one.pid != own for one in self._connection.raw.notifies(timeout=0)]
        self._heard += sum(others)
        self._only_own = bool(others) and not any(others)
        now = time.monotonic()
        if now >= self._asked_at + _ASK_EVERY:
            self._asked_at = now
            known, server_time = self._connection.execute(self._query).fetchone()
            if self._clock is not None:
                self._clock.set(server_time)
            # Heard of or not: that it has moved on is what counts.
            self._heard += known > max(self._known, version)
            self._known = known
        return self._heard

    def _listen_if(self, waiting: bool, connection: PgConnection) -> None:
        """Listen while a caller waits, and for some time afterwards."""
        now = time.monotonic()
        if waiting:
            self._listens_until = now + _LINGER
        listens = now < self._listens_until
        if listens != self._listens:
            if listens:
                # A sender that takes the lock before does not notify: it has ended when this one is taken.
                try:
                    connection.script(
                        f"SET LOCAL lock_timeout = {_LONGEST_COMMIT}; "
                        f'SELECT pg_advisory_lock_shared({self._lock}); LISTEN "{self._channel}"'
                    )
                except errors.LockNotAvailable:
                    # Undone as a whole. Until it is had, what is not notified is asked for.
                    return
                # What was committed since somebody has looked was not heard.
                self._asked_at = 0.0
            else:
                connection.script(
                    f'UNLISTEN "{self._channel}"; SELECT pg_advisory_unlock_shared({self._lock})'
                )
            self._listens = listens

    def sleep(self, seconds: float) -> None:
        """Sleep until a notification arrives, the bell is rung, or the time is over."""
        if self._only_own:
            # Each own commit would wake this thread, which takes turns with those that commit.
            self._bell.sleep(min(seconds, _OWN_PAUSE))
        else:
            deaf = self._connection is None or self._connection.broken
            self._bell.sleep(seconds, None if deaf or self._connection is None else self._connection.raw)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
