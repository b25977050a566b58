"""The write-ahead log: its length, and its checkpoints.

SQLite 3.7.0 to 3.51.2 may damage a database if one connection begins a checkpoint in the moment in which
another one, in whatever process, begins the log anew. Only a writer does that. So SQLite's own checkpoints,
which come behind a commit when others may write already, are off; whoever holds the right to write makes one.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable

from lazaretto.store.sqlite.store_file import read_at

#: Pages in the log after which they are copied to the file: 4 MiB.
_PAGES = 1000
#: How many transactions begin for each look at the log: beside a small commit, a look is not free.
_LOOK_EVERY = 8
_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
#: Versions that were mended: from the first of each pair to below the second.
_MENDED = (((3, 44, 6), (3, 45, 0)), ((3, 50, 7), (3, 51, 0)), ((3, 51, 3), (4, 0, 0)))


def has_reset_bug(version: tuple[int, int, int]) -> bool:
    """Return whether a SQLite version may damage a database when a checkpoint meets a log restart."""
    return version >= (3, 7, 0) and not any(low <= version < high for low, high in _MENDED)


class Log:
    """The log of one store: `file`, open to read, with pages of `page_size` bytes.

    `connect`: gives one more connection.
    """

    def __init__(self, file: int, page_size: int, connect: Callable[[], sqlite3.Connection]) -> None:
        self._file = file
        self._frame_bytes = page_size + _FRAME_HEADER_BYTES
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        #: Whether it is a transaction's turn to ask, for each that begins.
        self.turns = itertools.cycle([True] + [False] * (_LOOK_EVERY - 1))
        self._set_due(_PAGES)

    def _set_due(self, pages: int) -> None:
        self._due_offset = _HEADER_BYTES + (pages - 1) * self._frame_bytes
        #: The salt of the page that stands there since before the log was begun anew; empty where none does.
        self._old_salt = b""

    def is_due(self) -> bool:
        """Return whether it is time to copy the log to the file. Called when a transaction begins."""
        frame_header = read_at(self._file, _FRAME_HEADER_BYTES, self._due_offset)
        salt = frame_header[8:16]
        if salt == self._old_salt:
            return False
        # What was written since the log was begun has the same salt as its header.
        header = read_at(self._file, _HEADER_BYTES, 0)
        if salt and salt == header[16:24]:
            return True
        self._old_salt = salt
        return False

    def copy(self) -> None:
        """Copy the log to the file. The caller holds the right to write, and has written nothing yet."""
        if self._connection is None:
            self._connection = self._connect()
        # It waits for nobody: what old readers still need is copied later.
        busy, pages, copied = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if not busy:
            self._set_due(_PAGES if copied == pages else pages + _PAGES)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
