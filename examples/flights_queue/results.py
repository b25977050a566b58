"""The table that the handler writes to, in a database of its own."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.flights.rules import Result

_TABLE = """
CREATE TABLE IF NOT EXISTS results (
    message_id TEXT PRIMARY KEY,
    month INTEGER NOT NULL,
    flight TEXT NOT NULL,
    airline TEXT NOT NULL,
    destination TEXT NOT NULL,
    arr_delay INTEGER,
    sent_back INTEGER NOT NULL
) WITHOUT ROWID
"""
_LOG_PAGES = 10_000
_WRITE = """
INSERT OR REPLACE INTO results
VALUES (:message_id, :month, :flight, :airline, :destination, :arr_delay, :sent_back)
"""


class Results:
    """Flights by message id. A context manager.

    Every row is committed by itself, because a handler that returns says that its work is done:
    the broker completes the message then. A row so committed survives the death of this process.
    Against a power cut each would have to be synced to disk too (`synchronous = FULL`), at the
    price of one sync a flight.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: sqlite3.Connection | None = None

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            self._opened = sqlite3.connect(self._path, isolation_level=None)
            self._opened.execute("PRAGMA journal_mode = WAL")
            self._opened.execute("PRAGMA synchronous = NORMAL")
            # A commit writes whole pages, so the log is long before it is worth folding in.
            self._opened.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
            self._opened.execute(_TABLE)
        return self._opened

    def __getstate__(self) -> dict[str, object]:
        # The process that handlers run in opens the file for itself, when it first writes.
        return {"_path": self._path, "_opened": None}

    def write(self, row: Result) -> None:
        """Write one flight; replace what an earlier delivery of the same message wrote."""
        self._connection.execute(_WRITE, row)

    def count(self) -> int:
        """Return how many flights are in the table."""
        (rows,) = self._connection.execute("SELECT count(*) FROM results").fetchone()
        return int(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            self._opened.close()
