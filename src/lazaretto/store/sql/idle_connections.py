"""The connections of a store that no query uses just now."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """A connection, or an object that has one."""

    def close(self) -> None:
        """Close it."""
        ...


C = TypeVar("C", bound=Closable)


class IdleConnections(Generic[C]):
    """Keeps connections for later queries, until the store is `closed`. Threads can share it."""

    def __init__(self, closed: threading.Event) -> None:
        self._closed = closed
        self._kept: list[C] = []

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, connection: C) -> None:
        """Keep a connection for the next query, unless the store is closed."""
        self._kept.append(connection)
        # Looked at last: whoever closes says so first, and then takes what is kept.
        if self._closed.is_set():
            for surplus in self.take_all():
                surplus.close()

    def take(self) -> C | None:
        """Take a connection; None if there is none."""
        # Other threads take some, too.
        with suppress(IndexError):
            return self._kept.pop()
        return None

    def take_all(self) -> list[C]:
        """Take all connections: nobody begins a query on what is closed next."""
        connections = []
        while (connection := self.take()) is not None:
            connections.append(connection)
        return connections
