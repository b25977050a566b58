"""Where the messages of a run on Spark stand: fresh copies of prepared stores, in a file or on a server.

Beside each store there is a plain table of the same messages, `work`, for those who read it by themselves.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import psycopg

import lazaretto
from bench.postgres import PostgresServer
from lazaretto import Message, PoisonPolicy, QueueOptions

SIZE = 1_024
_AT_ONCE = 5_000
_TABLE = "CREATE TABLE work (id {0} PRIMARY KEY, body {1} NOT NULL)"


@dataclasses.dataclass(frozen=True)
class Place:
    """A store with a table beside it, in a folder for whatever else a run writes."""

    url: str
    home: Path
    #: The table's: for JDBC, and for Python's drivers, whose placeholder is `mark`.
    jdbc: str
    table: str
    mark: str

    def connect(self) -> Any:
        """Return a connection to the table."""
        return sqlite3.connect(self.table) if self.mark == "?" else psycopg.connect(self.table)


class Places(Protocol):
    """Prepares stores, and makes copies of them."""

    def prepare(self, name: str, rows: int, poison: int = 0, *, table: bool = True) -> None:
        """Fill a store, and a table beside it, under a name.

        `poison`: one in so many messages is no JSON (0: none).
        """

    def copy(self, name: str) -> Place:
        """Return a fresh copy."""

    def remove(self, place: Place) -> None:
        """Remove a copy."""


def body(number: int, poison: int = 0) -> bytes:
    """Return a message's body: an order, or what is no JSON."""
    if poison and number % poison == poison // 2:
        return b"{" * SIZE
    text = json.dumps({"id": number, "kind": "order", "lines": [{"sku": "A-1", "n": 2}], "note": ""})
    return f'{text[:-2]}{"x" * (SIZE - len(text))}"}}'.encode()


def fill(url: str, rows: int, poison: int) -> None:
    """Make a store with so many messages."""
    with lazaretto.connect(url) as broker:
        broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
        sender = broker.sender("work")
        for some in _parts(rows):
            sender.send([Message(body(number, poison)) for number in some])


def _fill_table(connection: Any, mark: str, rows: int, poison: int) -> None:
    kinds = ("INTEGER", "BLOB") if mark == "?" else ("BIGINT", "BYTEA")
    cursor = connection.cursor()
    cursor.execute(_TABLE.format(*kinds))
    for some in _parts(rows):
        values = [(number + 1, body(number, poison)) for number in some]
        cursor.executemany(f"INSERT INTO work VALUES ({mark}, {mark})", values)
    connection.commit()


def _parts(rows: int) -> Iterator[range]:
    for start in range(0, rows, _AT_ONCE):
        yield range(start, min(rows, start + _AT_ONCE))


class Files:
    """SQLite files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def prepare(self, name: str, rows: int, poison: int = 0, *, table: bool = True) -> None:
        home = self._folder / name
        home.mkdir()
        fill(str(home / "store.db"), rows, poison)
        if not table:
            return
        connection = sqlite3.connect(home / "table.db")
        connection.execute("PRAGMA journal_mode = WAL")
        _fill_table(connection, "?", rows, poison)
        connection.close()

    def copy(self, name: str) -> Place:
        self._number += 1
        home = self._folder / f"run-{self._number}"
        shutil.copytree(self._folder / name, home)
        table = str(home / "table.db")
        return Place(str(home / "store.db"), home, f"jdbc:sqlite:{table}", table, "?")

    def remove(self, place: Place) -> None:
        shutil.rmtree(place.home)


class Databases:
    """Databases on a server."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._folder = folder
        self._server = server
        self._number = 0

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._server.address, autocommit=True) as connection:
            connection.execute(statement.encode())

    def _table(self, name: str) -> str:
        return self._server.address.replace("dbname=postgres", f"dbname={name}")

    def prepare(self, name: str, rows: int, poison: int = 0, *, table: bool = True) -> None:
        self._execute(f'CREATE DATABASE "{name}"')
        fill(self._server.url_of(name), rows, poison)
        if table:
            with psycopg.connect(self._table(name)) as connection:
                _fill_table(connection, "%s", rows, poison)
        with psycopg.connect(self._table(name), autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")

    def copy(self, name: str) -> Place:
        self._number += 1
        own = f"run_{self._number}"
        self._execute(f'CREATE DATABASE {own} TEMPLATE "{name}" STRATEGY file_copy')
        home = self._folder / own
        home.mkdir()
        jdbc = f"jdbc:postgresql://127.0.0.1:{self._server.port}/{own}?user=drill"
        return Place(self._server.url_of(own), home, jdbc, self._table(own), "%s")

    def remove(self, place: Place) -> None:
        self._execute(f"DROP DATABASE {place.home.name} WITH (FORCE)")
        shutil.rmtree(place.home)
