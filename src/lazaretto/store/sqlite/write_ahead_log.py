"""The write-ahead log: its length, and its checkpoints.

SQLite 3.7.0 to 3.51.2 may damage a database if one connection begins a checkpoint in the moment in which
another one, in whatever process, begins the log anew. Only a writer does that. So SQLite's own checkpoints,
which come behind a commit when others may write already, are off; whoever holds the right to write makes one.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable

#: Pages in the log after which they are copied to the file: 4 MiB.
_PAGES = 1000
_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
#: Versions that were mended: from the first of each pair to below the second.
_MENDED = (((3, 44, 6), (3, 45, 0)), ((3, 50, 7), (3, 51, 0)), ((3, 51, 3), (4, 0, 0)))


def has_reset_bug(version: tuple[int, int, int]) -> bool:
    """Return whether a SQLite may damage a database when a checkpoint meets a log that is begun anew."""
    return version >= (3, 7, 0) and not any(low <= version < high for low, high in _MENDED)


class Log:
    """The log of one store, which a connection has open. `connect`: gives one more connection."""

    def __init__(self, path: str, connect: Callable[[], sqlite3.Connection]) -> None:
        # SQLite has no locks on this file that closing it could drop.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._due = _PAGES

    @property
    def is_long(self) -> bool:
        """Whether it is time to copy the log to the file."""
        header = os.pread(self._file, _HEADER_BYTES, 0)
        if len(header) < _HEADER_BYTES:
            return False
        size = int.from_bytes(header[8:12], "big") + _FRAME_HEADER_BYTES
        frame = os.pread(self._file, _FRAME_HEADER_BYTES, _HEADER_BYTES + (self._due - 1) * size)
        # What was written since the log was begun has the same salt as its header.
        return frame[8:16] == header[16:24]

    def copy(self) -> None:
        """Copy the log to the file. The caller holds the right to write, and has written nothing yet."""
        if self._connection is None:
            self._connection = self._connect()
        # It waits for nobody: what old readers still need is copied later.
        busy, pages, copied = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if not busy:
            self._due = _PAGES if copied == pages else pages + _PAGES

    def close(self) -> None:
        """Give up what is open."""
        os.close(self._file)
        if self._connection is not None:
            self._connection.close()
