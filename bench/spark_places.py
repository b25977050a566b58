"""Where the messages of a run on Spark stand: fresh copies of prepared stores, in a file or on a server.

Beside each store there is a plain table of the same messages, `work`, for those who read it by themselves.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psycopg

import lazaretto
from bench.payload import order
from bench.servers import PostgresServer
from bench.systems.contract import chunks
from lazaretto import Message, PoisonPolicy, QueueOptions

SIZE = 1_024


class Place(NamedTuple):
    """A store with a table beside it, in a folder for whatever else a run writes."""

    url: str
    home: Path
    #: The table's: for JDBC, and for Python's drivers, whose placeholder is `mark`.
    jdbc: str
    table: str
    mark: str

    def connect(self) -> contextlib.AbstractContextManager[Any]:
        """Return a connection to the table, whose block is a transaction."""
        return sqlite3.connect(self.table) if self.mark == "?" else psycopg.connect(self.table)


class Places(Protocol):
    """Prepares stores, and makes copies of them."""

    def prepare(self, name: str, rows: int, poison: int = 0) -> None:
        """Fill a store and a table under a name. `poison`: one in so many messages is no JSON (0: none)."""

    def copy(self, name: str) -> Place:
        """Return a fresh copy."""

    def remove(self, place: Place) -> None:
        """Remove a copy."""


def body(number: int, poison: int = 0) -> bytes:
    """Return a message's body: an order, or what is no JSON."""
    return b"{" * SIZE if poison and number % poison == poison // 2 else order(number, SIZE)


def create(url: str) -> None:
    """Make a store with the queue, which sets aside at the first failure."""
    with lazaretto.connect(url) as broker:
        broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))


def _fill(url: str, rows: int, poison: int) -> None:
    create(url)
    with lazaretto.connect(url) as broker:
        sender = broker.sender("work")
        for some in chunks(range(rows), 5_000):
            sender.send([Message(body(number, poison)) for number in some])


def _fill_table(place: Place, rows: int, poison: int) -> None:
    key, content = ("INTEGER", "BLOB") if place.mark == "?" else ("BIGINT", "BYTEA")
    with place.connect() as connection:
        connection.execute(f"CREATE TABLE work (id {key} PRIMARY KEY, body {content} NOT NULL)")
        for some in chunks(range(rows), 5_000):
            values = [(number + 1, body(number, poison)) for number in some]
            insert = f"INSERT INTO work VALUES ({place.mark}, {place.mark})"
            connection.cursor().executemany(insert, values)


class Files:
    """SQLite files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def prepare(self, name: str, rows: int, poison: int = 0) -> None:
        place = self._place(self._folder / name)
        place.home.mkdir()
        _fill(place.url, rows, poison)
        _fill_table(place, rows, poison)

    def _place(self, home: Path) -> Place:
        table = str(home / "table.db")
        return Place(str(home / "store.db"), home, f"jdbc:sqlite:{table}", table, "?")

    def copy(self, name: str) -> Place:
        self._number += 1
        home = self._folder / f"run-{self._number}"
        shutil.copytree(self._folder / name, home)
        return self._place(home)

    def remove(self, place: Place) -> None:
        shutil.rmtree(place.home)


class Databases:
    """Databases on a server."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._folder = folder
        self._server = server
        self._number = 0

    def _place(self, name: str) -> Place:
        server = self._server
        jdbc = f"jdbc:postgresql://127.0.0.1:{server.port}/{name}?user=drill"
        table = server.address.replace("dbname=postgres", f"dbname={name}")
        return Place(server.url_of(name), self._folder / name, jdbc, table, "%s")

    def _execute(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(self._place(database).table, autocommit=True) as connection:
            connection.execute(statement.encode())

    def prepare(self, name: str, rows: int, poison: int = 0) -> None:
        self._execute(f'CREATE DATABASE "{name}"')
        place = self._place(name)
        _fill(place.url, rows, poison)
        _fill_table(place, rows, poison)
        self._execute("VACUUM (ANALYZE)", name)

    def copy(self, name: str) -> Place:
        self._number += 1
        own = f"run_{self._number}"
        self._execute(f'CREATE DATABASE {own} TEMPLATE "{name}" STRATEGY file_copy')
        place = self._place(own)
        place.home.mkdir()
        return place

    def remove(self, place: Place) -> None:
        self._execute(f"DROP DATABASE {place.home.name} WITH (FORCE)")
        shutil.rmtree(place.home)
