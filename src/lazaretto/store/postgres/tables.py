"""A PostgreSQL store's tables, row by row, for copying it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psycopg import sql

from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.sql.copy_store import Row, Table

#: Columns that number themselves, by their tables.
_NUMBERED = {
    "lazaretto_queues": "queue_id",
    "lazaretto_attempts": "id",
    "lazaretto_events": "position",
    "lazaretto_audit": "position",
    "lazaretto_dialog_log": "position",
    "lazaretto_repairs": "repair",
}


class PgTables:
    """The tables, read and written by the only writer. `begin` takes the lock again after a commit."""

    def __init__(self, connection: PgConnection, schema: str, begin: Callable[[], object]) -> None:
        self._connection = connection
        self._schema = schema
        self._begin = begin

    def _execute(self, query: str, values: Sequence[Any] = (), **parts: sql.Composable) -> list[Row]:
        cursor = self._connection.raw.execute(sql.SQL(query).format(**parts), values, binary=True)
        return cursor.fetchall() if cursor.description is not None else []

    def _name(self, table: Table) -> sql.Identifier:
        return sql.Identifier(self._schema, table.name)

    def columns(self, table: Table) -> list[str]:
        columns_ = self._execute(
            "SELECT column_name::text FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s AND is_generated = 'NEVER' "
            "ORDER BY ordinal_position",
            (self._schema, table.name),
        )
        return [name for (name,) in columns_]

    def count(self, table: Table) -> int:
        ((count,),) = self._execute(
            "SELECT count(*) FROM {table} WHERE {only}", table=self._name(table), only=sql.SQL(table.only)
        )
        return int(count)

    def last(self, table: Table) -> Row | None:
        keys = [sql.Identifier(key) for key in table.key]
        rows = self._execute(
            "SELECT {keys} FROM {table} WHERE {only} ORDER BY {order} LIMIT 1",
            keys=sql.SQL(", ").join(keys),
            table=self._name(table),
            only=sql.SQL(table.only),
            order=sql.SQL(", ").join(sql.SQL("{} DESC").format(key) for key in keys),
        )
        return rows[0] if rows else None

    def rows(self, table: Table, columns: Sequence[str], after: Row | None, limit: int) -> list[Row]:
        keys = sql.SQL(", ").join(map(sql.Identifier, table.key))
        only: sql.Composable = sql.SQL(table.only)
        if after is not None:
            places = sql.SQL(", ").join(sql.Placeholder() * len(after))
            only = sql.SQL("{} AND ({}) > ({})").format(only, keys, places)
        return self._execute(
            "SELECT {columns} FROM {table} WHERE {only} ORDER BY {keys} LIMIT %s",
            (*(after or ()), limit),
            columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
            table=self._name(table),
            only=only,
            keys=keys,
        )

    def insert(self, table: Table, columns: Sequence[str], rows: Sequence[Row]) -> None:
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        query = sql.SQL("COPY {} ({}) FROM STDIN").format(self._name(table), names)
        with self._connection.raw.cursor() as cursor, cursor.copy(query) as copy:
            for row in rows:
                copy.write_row(row)
        self._commit()

    def clear(self, table: Table) -> None:
        self._execute("DELETE FROM {table}", table=self._name(table))
        self._commit()

    def meta(self) -> dict[str, str]:
        return dict(
            self._execute(
                "SELECT name, value FROM {table}", table=sql.Identifier(self._schema, "lazaretto_meta")
            )
        )

    def finish(self, meta: Mapping[str, str | None]) -> None:
        place = sql.Identifier(self._schema, "lazaretto_meta")
        for name, value in meta.items():
            self._execute("DELETE FROM {table} WHERE name = %s", (name,), table=place)
            if value is not None:
                self._execute("INSERT INTO {table} (name, value) VALUES (%s, %s)", (name, value), table=place)
        for table, column in _NUMBERED.items():
            self._execute(
                "SELECT setval(pg_get_serial_sequence(%s, %s), (SELECT max({column}) FROM {table}))",
                (f'"{self._schema}".{table}', column),
                column=sql.Identifier(column),
                table=sql.Identifier(self._schema, table),
            )
        # Blocks of body ids that are not used yet; and all who look see that there was a commit.
        self._execute(
            "SELECT setval(%s::regclass, 1 + (coalesce((SELECT max(body_id) FROM {table}), 0) >> 20)), "
            "nextval(%s::regclass)",
            (f'"{self._schema}".lazaretto_body_blocks', f'"{self._schema}".lazaretto_version'),
            table=sql.Identifier(self._schema, "lazaretto_bodies"),
        )
        self._commit()

    def _commit(self) -> None:
        self._connection.script("COMMIT")
        self._begin()
