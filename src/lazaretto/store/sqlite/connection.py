"""Opens SQLite files: settings, refusals, and SQLite's errors as ours."""

from __future__ import annotations

import ctypes
import re
import sqlite3
import weakref
from collections.abc import Iterator
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


class _Connection(sqlite3.Connection):
    """One that is known to the forked children of its process."""


_open: weakref.WeakSet[_Connection] = weakref.WeakSet()


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
