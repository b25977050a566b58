"""The server connections beside the writer's: for queries, upkeep and the user's own SQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.sql.idle_connections import IdleConnections

T = TypeVar("T")

_MOST_IDLE = 8


class Readers:
    """Lends connections, opening new ones as needed, and keeps up to eight idle ones. Threads can share it.

    `schema`: the store's. `lock_timeout`: how long a statement waits for a lock, in milliseconds. `closed`:
    the store is closed.
    """

    def __init__(self, conninfo: str, schema: str, lock_timeout: int, closed: threading.Event) -> None:
        self._conninfo = conninfo
        self._schema = schema
        self._lock_timeout = lock_timeout
        self._idle: IdleConnections[PgConnection] = IdleConnections(closed)
        self._lent: set[PgConnection] = set()

    def __len__(self) -> int:
        return len(self._idle)

    def borrow(self, *, for_user: bool = False) -> PgConnection:
        """Return a connection with no open transaction. Give it back after use.

        `for_user`: a user's own SQL runs on it, so what an earlier one has set is left for its beginning.
        """
        reader = self._idle.take()
        while reader is not None and reader.broken:
            reader = self._idle.take()
        if reader is None:
            reader = PgConnection(self._conninfo, self._lock_timeout, schema=self._schema)
        self._lent.add(reader)
        if reader.set_by_user and not for_user:
            try:
                reader.set_again()
            except BaseException:
                self._discard(reader)
                raise
        return reader

    def borrow_with(
        self, begin: Callable[[PgConnection], T], *, for_user: bool = False
    ) -> tuple[PgConnection, T]:
        """Return a connection on which `begin` has begun a transaction, and what `begin` returned."""
        connection = self.borrow(for_user=for_user)
        try:
            return connection, begin(connection)
        except BaseException:
            self._discard(connection)
            raise

    def _discard(self, connection: PgConnection) -> None:
        self._lent.discard(connection)
        connection.close()

    def give_back(self, connection: PgConnection) -> None:
        """Keep a connection for the next query. One that is broken, busy or not needed is closed."""
        self._lent.discard(connection)
        full = len(self._idle) >= _MOST_IDLE
        if full or connection.broken or connection.in_transaction:
            connection.close()
        else:
            self._idle.keep(connection)

    def close_lent(self) -> None:
        """Have the server end the connections that are in use."""
        for lent in tuple(self._lent):
            lent.let_go()

    def take_idle(self) -> list[PgConnection]:
        """Take all idle connections: nobody begins a query on what is closed next."""
        return self._idle.take_all()
