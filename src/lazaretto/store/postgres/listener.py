"""Listens for other processes' commits, and for the server's time."""

from __future__ import annotations

import time

from lazaretto.model.clock import SystemClock
from lazaretto.store.postgres.connection import PgConnection

#: How often the server is asked whether there was a commit that nothing was heard of, in seconds.
_ASK_EVERY = 1.0


def channel(schema: str) -> str:
    """Return the name under which the commits of a store are told."""
    return f"lazaretto_{schema}"


class ServerClock:
    """The server's time, as far as it is known here: set right by each commit."""

    ticks = True

    def __init__(self) -> None:
        self.set(SystemClock().now())

    def set(self, now: int) -> None:
        """Note what the server's clock says now."""
        self._ahead = now - time.monotonic_ns() // 1000

    def now(self) -> int:
        return time.monotonic_ns() // 1000 + self._ahead


class Listener:
    """Hears of commits by the server's word, and asks now and then, should one have been missed."""

    def __init__(self, conninfo: str, schema: str, query: str, clock: ServerClock | None) -> None:
        self._clock = clock
        self._conninfo = conninfo
        self._channel = channel(schema)
        self._query = query
        self._connection: PgConnection | None = None
        self._known = 0
        self._heard = 0
        self._asked_at = 0.0

    def listen(self, own: int, version: int) -> int:
        """Return how often others have committed. `own` is not one of them; `version`: the last one known."""
        if self._connection is None or self._connection.broken:
            self._connection = PgConnection(self._conninfo)
            self._connection.script(f'LISTEN "{self._channel}"')
            self._asked_at = 0.0
        self._heard += sum(told.pid != own for told in self._connection.raw.notifies(timeout=0))
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

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
