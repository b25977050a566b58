"""A SQLite store's tables, row by row, for copying it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence

from lazaretto.model.keys import queue_of_lane
from lazaretto.store.sql.copy_store import Row, Table

#: Where a table's rows are kept elsewhere here than on a server: the table, and its columns.
_ELSEWHERE: dict[str, tuple[str, dict[str, str], str]] = {
    "lazaretto_high_water": (
        "lazaretto_queues",
        {"queue_id": "queue_id", "sequence_number": "high_water"},
        "high_water > 0",
    ),
    "lazaretto_attempts": ("lazaretto_attempts", {"id": "rowid"}, "true"),
}


class SqliteTables:
    """The tables as a connection sees them that holds off all other writers."""

    def __init__(self, connection: sqlite3.Connection, begin: Callable[[], None]) -> None:
        self._connection = connection
        self._begin = begin

    def _source(self, table: Table) -> tuple[str, dict[str, str], str]:
        return _ELSEWHERE.get(table.name, (table.name, {}, table.only))

    def columns(self, table: Table) -> list[str]:
        name, renamed, _ = self._source(table)
        if name != table.name:
            return list(renamed)
        names = [column for _, column, *_ in self._connection.execute(f"PRAGMA table_info({name})")]
        # What a server keeps in a table of its own is none of this one.
        return [*renamed, *(column for column in names if column != "high_water")]

    def count(self, table: Table) -> int:
        name, _, only = self._source(table)
        (count,) = self._connection.execute(f"SELECT count(*) FROM {name} WHERE {only}").fetchone()  # noqa: S608
        return int(count)

    def last(self, table: Table) -> Row | None:
        name, renamed, only = self._source(table)
        keys = [renamed.get(key, key) for key in table.key]
        order = ", ".join(f"{key} DESC" for key in keys)
        sql = f"SELECT {', '.join(keys)} FROM {name} WHERE {only} ORDER BY {order} LIMIT 1"  # noqa: S608
        row: Row | None = self._connection.execute(sql).fetchone()
        return row

    def rows(self, table: Table, columns: Sequence[str], after: Row | None, limit: int) -> list[Row]:
        name, renamed, only = self._source(table)
        keys = ", ".join(renamed.get(key, key) for key in table.key)
        listed = ", ".join(renamed.get(column, column) for column in columns)
        if after is not None:
            only += f" AND ({keys}) > ({', '.join('?' * len(after))})"
        sql = f"SELECT {listed} FROM {name} WHERE {only} ORDER BY {keys} LIMIT ?"  # noqa: S608
        return self._connection.execute(sql, (*(after or ()), limit)).fetchall()

    def insert(self, table: Table, columns: Sequence[str], rows: Sequence[Row]) -> None:
        name, renamed, _ = self._source(table)
        if name != table.name:
            sql = "UPDATE lazaretto_queues SET high_water = max(high_water, ?) WHERE queue_id = ?"
            number, lane = columns.index("sequence_number"), columns.index("queue_id")
            self._connection.executemany(sql, [(row[number], queue_of_lane(row[lane])) for row in rows])
        else:
            names = ", ".join(renamed.get(column, column) for column in columns)
            places = ", ".join("?" * len(columns))
            sql = f"INSERT INTO {name} ({names}) VALUES ({places})"  # noqa: S608
            self._connection.executemany(sql, rows)
        self._commit()

    def clear(self, table: Table) -> None:
        name, _, _ = self._source(table)
        if name != table.name:
            self._connection.execute("UPDATE lazaretto_queues SET high_water = 0")
        else:
            self._connection.execute(f"DELETE FROM {name}")  # noqa: S608
        self._commit()

    def meta(self) -> dict[str, str]:
        return dict(self._connection.execute("SELECT name, value FROM lazaretto_meta").fetchall())

    def finish(self, meta: Mapping[str, str | None]) -> None:
        for name, value in meta.items():
            self._connection.execute("DELETE FROM lazaretto_meta WHERE name = ?", (name,))
            if value is not None:
                self._connection.execute(
                    "INSERT INTO lazaretto_meta (name, value) VALUES (?, ?)", (name, value)
                )
        self._commit()

    def _commit(self) -> None:
        self._connection.execute("COMMIT")
        self._begin()
