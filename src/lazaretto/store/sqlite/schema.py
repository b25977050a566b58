"""The schema: created, recognised, and brought up to date by numbered migrations.

The store's queries stand here as SQLite has them.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from lazaretto.errors import StoreBusy, StoreForeign, StoreNotFound, StoreTooNew
from lazaretto.store.sql.copy_store import COPYING, unfinished
from lazaretto.store.sql.query_files import COMMON, PARAMETER, Migration, load_migrations, load_queries
from lazaretto.store.sql.statements import Dialect
from lazaretto.store.sql.words import words
from lazaretto.store.sqlite.connection import (
    connect,
    refuse_old_sqlite,
    refuse_without_json,
    translating,
)
from lazaretto.store.sqlite.store_file import make

#: Delay before a file is checked again that another process is creating as a store, in seconds.
_NAP = 0.01
_ENTRIES = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"


def migrations() -> list[Migration]:
    """Return all migrations, in order."""
    return load_migrations("lazaretto.store.sqlite.migrations")


def newest() -> int:
    """Return the schema version this code works with."""
    return migrations()[-1].number


def version(connection: sqlite3.Connection) -> int | None:
    """Return a store's schema version, 0 for an empty database, None for somebody else's."""
    names = {row[0] for row in connection.execute(_ENTRIES)}
    if "lazaretto_meta" in names:
        row = connection.execute("SELECT value FROM lazaretto_meta WHERE name = 'schema'").fetchone()
        return int(row[0]) if row else 0
    return None if names - {"sqlite_sequence"} else 0


def prepare(path: Path, *, create: bool, adopt: bool, copying: bool, busy: float, now: int) -> None:
    """Make sure the file at `path` is a store of this version.

    Creates it if `create`; adds the store to another application's database if `adopt`. `copying`: it may be
    an unfinished copy.
    A file that is not a store, is damaged, or is of a newer schema raises and stays as it is.
    """
    refuse_old_sqlite()
    end = time.monotonic() + busy
    while True:
        try:
            return _prepare(path, create=create, adopt=adopt, copying=copying, busy=busy, now=now)
        except StoreBusy:
            # SQLite does not wait for another process that is just changing the journal's mode.
            if time.monotonic() >= end:
                raise
            time.sleep(_NAP)


def _prepare(path: Path, *, create: bool, adopt: bool, copying: bool, busy: float, now: int) -> None:
    where = f"opening {path}"
    exists = path.exists() and path.stat().st_size > 0
    if exists:
        with translating(where):
            # Read only, so that a file that is not ours is not even touched.
            connection = connect(path, read_only=True, busy=busy)
            try:
                refuse_without_json(connection)
                number = version(connection)
                if number and not copying and _is_copying(connection):
                    raise unfinished(str(path))
                # A copy made by VACUUM INTO or a backup tool has lost the write-ahead log's setting.
                logged = connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            finally:
                connection.close()
        _refuse(path, number, adopt=adopt)
        if number == newest() and logged:
            return
        # A database that is empty, or another application's alone, holds no store yet.
        exists = bool(number)
    if not exists and not create:
        raise StoreNotFound(f"{path}: no store exists here; check its name, or make one by lazaretto.connect")
    make(path)
    with translating(where):
        connection = connect(path, busy=busy)
        try:
            refuse_without_json(connection)
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute("BEGIN IMMEDIATE")
            # Another process may have been here since the look above.
            number = version(connection)
            _refuse(path, number, adopt=adopt)
            _migrate(connection, number or 0, now)
            connection.execute("COMMIT")
        finally:
            connection.close()


def _is_copying(connection: sqlite3.Connection) -> bool:
    row = connection.execute("SELECT 1 FROM lazaretto_meta WHERE name = ?", (COPYING,)).fetchone()
    return row is not None


def _refuse(path: Path, number: int | None, *, adopt: bool) -> None:
    if number is None and not adopt:
        raise StoreForeign(
            f"{path}: this database belongs to another application and was not changed. "
            "Pass connect(adopt=True) to keep the store's tables (lazaretto_…) beside the application's"
        )
    if number is not None and number > newest():
        raise StoreTooNew(
            f"{path}: expected a store of schema {newest()} or older, got {number}. "
            "It was written by a newer version of Lazaretto and was not changed; upgrade Lazaretto here"
        )


def _migrate(connection: sqlite3.Connection, number: int, now: int) -> None:
    for migration in migrations():
        if migration.number > number:
            for statement in _statements(migration.sql):
                connection.execute(statement)
    if number == 0:
        connection.execute(
            "INSERT INTO lazaretto_meta (name, value) VALUES ('store_id', ?), ('created', ?)",
            (uuid.uuid4().hex, str(now)),
        )
    connection.execute(
        "INSERT INTO lazaretto_meta (name, value) VALUES ('schema', ?) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (str(newest()),),
    )


def _statements(sql: str) -> list[str]:
    """Split a migration into statements: sqlite3's executescript would commit between them."""
    statements, current = [], ""
    for line in sql.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return [s for s in statements if s.strip()]


_WORDS = words(
    {
        "among": "IN (SELECT value FROM json_each(:{0}))",
        "index": "INDEXED BY {0}",
        "rowid": "rowid",
        "as_type": ":{0}",
        # Only claims lock ranges here.
        "has_range": "0 = 1",
        "listed": "",
        "is_due": "{0} <= :now",
        "comes_due": "{0} IS NOT NULL",
    }
)


def ids(values: Iterable[int | str]) -> str:
    """Return numbers or texts as the one parameter that a query takes them in: JSON."""
    return msgspec.json.encode(list(values)).decode()


def place(sql: str) -> tuple[str, Sequence[str]]:
    """Return a query with SQLite's placeholders, and the names of the values they stand for, one by one."""
    return PARAMETER.sub("?", sql), PARAMETER.findall(sql)


QUERIES = {
    # Only claims lock ranges here.
    name: query._replace(locks_first=None)
    for name, query in load_queries(
        ("lazaretto.store.sqlite", "queries.sql"),
        *COMMON,
        words=_WORDS,
    ).items()
}
SQLITE = Dialect.of(QUERIES, place, ids)
