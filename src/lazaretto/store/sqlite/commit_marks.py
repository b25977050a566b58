"""Tells whether anything was committed to a file since somebody looked."""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Callable
from typing import Final

from lazaretto.errors import BrokerClosed

#: Bytes of what tells one connection's numbers from another's.
_NAME: Final = 6


class CommitMarks:
    """Marks of what a file holds: between two that are equal nobody committed. Threads can share it.

    `opened`: returns a connection that only reads. `closed`: the store is closed.
    """

    def __init__(self, opened: Callable[[], sqlite3.Connection], closed: threading.Event) -> None:
        self._opened, self._closed = opened, closed
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._name = ""

    def mark(self) -> str:
        """Return the mark of what the file holds now. Raises BrokerClosed, sqlite3.Error."""
        with self._lock:
            if self._closed.is_set():
                raise BrokerClosed("the broker is closed")
            if self._connection is None:
                # The number counts what one connection has seen.
                self._connection, self._name = self._opened(), secrets.token_hex(_NAME)
            try:
                (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error:
                self._forget()
                raise
            return f"{self._name}-{version}"

    def close(self) -> None:
        """Close the connection, once the store is closed."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
