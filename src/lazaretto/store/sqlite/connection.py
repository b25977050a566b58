"""Opens SQLite files: settings, refusals, and SQLite's errors as ours.

SQLite 3.7.0 to 3.51.2 may damage a database if one connection begins a checkpoint in the moment in which
another one, in whatever process, begins the log anew. Only a writer does that. So SQLite's own checkpoints,
which come behind a commit when others may write already, are off; whoever holds the right to write makes one.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lazaretto.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
)
from lazaretto.store.runtime.forks import on_fork
from lazaretto.store.sqlite.store_file import read_at

#: The oldest SQLite that understands the store's queries.
OLDEST = (3, 35, 0)

#: Pages that a writer keeps, and a reader: there can be several, and the system keeps what they read.
_CACHE_KIB, _READER_CACHE_KIB = 65_536, 4_096
#: What the write-ahead log is cut back to after a burst, in bytes.
_LOG_LIMIT = 67_108_864

_PRIMARY_MASK = 0xFF
_KINDS: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_BUSY: (StoreBusy, "another process held the write lock for too long; try again"),
    sqlite3.SQLITE_LOCKED: (StoreBusy, "the store is locked; try again"),
    sqlite3.SQLITE_FULL: (StoreFull, "no room is left on the store's disk; make room and try again"),
    sqlite3.SQLITE_READONLY: (StoreReadOnly, "the store cannot be written to; check its permissions"),
    sqlite3.SQLITE_CORRUPT: (StoreCorrupt, "the file is damaged; restore it from a backup"),
    sqlite3.SQLITE_NOTADB: (
        StoreCorrupt,
        "the file is not a database and was not changed; name another",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StoreError,
        "the file cannot be opened; check that its folder exists and can be written to",
    ),
    sqlite3.SQLITE_PERM: (StoreReadOnly, "access to the store is not permitted; check its permissions"),
    sqlite3.SQLITE_IOERR: (StoreError, "reading or writing the store's file failed; check the disk"),
    sqlite3.SQLITE_INTERRUPT: (StoreError, "SQLite interrupted the operation; try again"),
    sqlite3.SQLITE_TOOBIG: (StoreError, "a value exceeds SQLite's size limit; send a smaller one"),
}

#: What no statement is to blame for, whatever it asks.
_OWN_FAULTS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}

#: How SQLite tells of a schema that it cannot read because it is newer, not because it is damaged.
_NOT_UNDERSTOOD = re.compile(
    r"malformed database schema \(.*\) - (near |unknown |unrecognized |no such |unsupported |wrong number)"
    "|unsupported file format"
)

_open: weakref.WeakSet[_Connection] = weakref.WeakSet()

#: Pages in the log after which they are copied to the file: 4 MiB.
_PAGES = 1000
#: How many transactions begin for each look at the log: beside a small commit, a look is not free.
_LOOK_EVERY = 8
_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
#: Versions that were mended: from the first of each pair to below the second.
_MENDED = (((3, 44, 6), (3, 45, 0)), ((3, 50, 7), (3, 51, 0)), ((3, 51, 3), (4, 0, 0)))


class _Connection(sqlite3.Connection):
    """One that is known to the forked children of its process."""


def refuse_old_sqlite() -> None:
    """Raise StoreError if this Python's SQLite is too old."""
    version = sqlite3.sqlite_version_info
    if version < OLDEST:
        raise StoreError(
            f"expected SQLite {OLDEST[0]}.{OLDEST[1]} or newer, got {'.'.join(map(str, version))}, which is "
            "the one of this Python: use a Python with a newer SQLite, or a store on PostgreSQL"
        )


def refuse_without_json(connection: sqlite3.Connection) -> None:
    """Raise StoreError if SQLite was built without JSON, which it may lack below 3.38."""
    try:
        connection.execute("SELECT value FROM json_each('[]')").fetchall()
    except sqlite3.OperationalError as error:
        if "json_each" not in str(error):
            raise
        raise StoreError(
            f"expected a SQLite with JSON functions, got {sqlite3.sqlite_version} that was built without "
            "(SQLITE_ENABLE_JSON1): use a Python with SQLite 3.38 or newer, or a store on PostgreSQL"
        ) from error


def translated(error: sqlite3.Error, where: str) -> StoreError:
    """Return SQLite's error as one of ours, with the store's name and advice."""
    if _NOT_UNDERSTOOD.search(str(error)):
        return StoreTooNew(
            f"{where}: SQLite {sqlite3.sqlite_version}, which is the one of this Python, does not understand "
            f"the file, which a newer one has written ({error}). The file was not changed; open it with a "
            "Python whose SQLite is newer (3.37 or newer for a store of an earlier Lazaretto)"
        )
    kind, advice = _KINDS.get(_code(error), (StoreError, "unexpected error from SQLite"))
    return kind(f"{where}: {advice} ({error})")


def own_fault(error: sqlite3.Error, where: str) -> StoreError | None:
    """Return SQLite's error as one of ours if the file or the disk is to blame; None if the statement is."""
    return translated(error, where) if _code(error) in _OWN_FAULTS else None


def _code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & _PRIMARY_MASK


@contextmanager
def translating(where: str) -> Iterator[None]:
    """Raise SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise translated(error, where) from error


def _keep_open() -> None:
    # Closing it, as its last reference does, would undo in the log's shared memory what the parent is about
    # to commit.
    for connection in tuple(_open):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


on_fork(after_in_child=_keep_open)


def connect(path: Path, *, read_only: bool = False, busy: float) -> sqlite3.Connection:
    """Return a connection with every setting that a file's safety and speed depend on.

    Explicit transactions only; `busy` is how many seconds SQLite waits for another process.
    """
    mode = "ro" if read_only else "rwc"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=busy,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=1024,
        factory=_Connection,
    )
    _open.add(connection)
    try:
        # What is removed need not be overwritten: pages that become free are then not written at all.
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB if read_only else _CACHE_KIB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA trusted_schema = OFF")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            connection.execute("PRAGMA synchronous = FULL")
            # See Log, which makes them.
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT}")
    except BaseException:
        connection.close()
        raise
    return connection


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
