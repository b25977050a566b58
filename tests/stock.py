"""Stores on a server that go from one test to the next, emptied.

To make a store and drop it costs more than most tests do in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import errors, sql
from servers import address, drop

import lazaretto
from lazaretto import ManualClock
from lazaretto.store.postgres.schema import FUNCTIONS

#: What a test may not change of a store that goes on: tables with their columns, indexes, functions, rights.
_SHAPE = """
SELECT md5(string_agg(line, ';' ORDER BY line)) FROM (
    SELECT concat_ws(',', relname, relkind, relacl, reloptions, attname, atttypid, attnotnull) AS line
    FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    WHERE c.relnamespace = {schema}::regnamespace
    UNION ALL SELECT concat_ws(',', proname, proacl, md5(prosrc)) FROM pg_proc
    WHERE pronamespace = {schema}::regnamespace
    UNION ALL SELECT concat_ws(',', nspname, nspacl) FROM pg_namespace WHERE oid = {schema}::regnamespace
) AS lines
"""
#: The sessions of others: one that has been closed may take a moment to end.
_SESSIONS = """
SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
#: The columns of a table that take values: the server computes the others.
_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""
#: Whether something is in the schema for a test's own SQL.
_OWN = """
SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = {own}::regnamespace)
    OR EXISTS (SELECT FROM pg_proc WHERE pronamespace = {own}::regnamespace)
    OR EXISTS (SELECT FROM pg_type WHERE typnamespace = {own}::regnamespace)
"""


@dataclasses.dataclass
class _Stored:
    """A store as it was when it was made: its shape, the rows it began with, and its sequences."""

    schema: str
    shape: str
    tables: list[str]
    rows: dict[str, list[tuple[Any, ...]]]
    columns: dict[str, list[str]]
    sequences: list[tuple[str, int, bool]]


#: How often it is looked whether all others are gone, two milliseconds apart.
_LOOKS = 250
#: The emptied stores of each server, by its address.
_stock: dict[str, list[_Stored]] = defaultdict(list)


@contextlib.contextmanager
def used_store(server: str) -> Iterator[str]:
    """Give the URL of a store on a server that is there and as new, for a test that needs no newer one."""
    stored = _stock[server].pop() if _stock[server] else _make(server)
    yield address(server, stored.schema)
    with psycopg.connect(server, autocommit=True) as connection:
        if _empty(connection, stored):
            _stock[server].append(stored)
        else:
            drop(connection, stored.schema)


def _make(server: str) -> _Stored:
    with psycopg.connect(server, autocommit=True) as connection:
        return _create(connection, server)


def _create(connection: psycopg.Connection[Any], server: str) -> _Stored:
    schema = f"test_{secrets.token_hex(8)}"
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(f"{schema}_own")))
    # Most tests bring such a clock, and nothing in the store may be newer than what they do.
    lazaretto.connect(address(server, schema), clock=ManualClock()).close()
    if os.environ.get("LAZARETTO_TEST_FUNCTIONS") == "none":
        # As if workers were left that know nothing of functions: then all commits are made in other ways.
        oldest = sql.SQL("UPDATE {} SET value = %s WHERE name = 'oldest'")
        connection.execute(oldest.format(sql.Identifier(schema, "lazaretto_meta")), (str(FUNCTIONS - 1),))
    names = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY tablename"
    tables = [name for (name,) in connection.execute(names, (schema,))]
    rows, columns = {}, {}
    for table in tables:
        names_of = [name for (name,) in connection.execute(_COLUMNS, (f'"{schema}"."{table}"',))]
        select = sql.SQL("SELECT {} FROM {}").format(
            sql.SQL(", ").join(map(sql.Identifier, names_of)), sql.Identifier(schema, table)
        )
        if first := connection.execute(select).fetchall():
            rows[table], columns[table] = first, names_of
    return _Stored(schema, _shape(connection, schema), tables, rows, columns, _sequences(connection, schema))


def _shape(connection: psycopg.Connection[Any], schema: str) -> str:
    ((shape,),) = connection.execute(sql.SQL(_SHAPE).format(schema=sql.Literal(f'"{schema}"')))
    return str(shape)


def _sequences(connection: psycopg.Connection[Any], schema: str) -> list[tuple[str, int, bool]]:
    names = connection.execute("SELECT sequencename FROM pg_sequences WHERE schemaname = %s", (schema,))
    return [
        (name, *one)
        for (name,) in names.fetchall()
        for one in connection.execute(
            sql.SQL("SELECT last_value, is_called FROM {}").format(sql.Identifier(schema, name))
        )
    ]


def _empty(connection: psycopg.Connection[Any], stored: _Stored) -> bool:
    """Make a store as new; return False if it cannot go on: it was changed, or somebody still uses it."""
    connection.execute("SET lock_timeout = '2s'")
    try:
        for _ in range(_LOOKS):
            ((sessions,),) = connection.execute(_SESSIONS)
            if not sessions:
                break
            connection.execute("SELECT pg_sleep(0.002)")
        own = sql.SQL(_OWN).format(own=sql.Literal(f'"{stored.schema}_own"'))
        ((changed,),) = connection.execute(own)
        if sessions or changed or _shape(connection, stored.schema) != stored.shape:
            return False
        with connection.transaction():
            _clear(connection, stored)
    except (psycopg.OperationalError, errors.InvalidSchemaName):
        # It is locked, the server went away, or the test dropped it. All else is a fault of this module's.
        return False
    return True


def _clear(connection: psycopg.Connection[Any], stored: _Stored) -> None:
    at = {name: sql.Identifier(stored.schema, name) for name in stored.tables}
    look = [
        sql.SQL("SELECT {} WHERE EXISTS (SELECT FROM {})").format(sql.Literal(name), where)
        for name, where in at.items()
    ]
    full = [at[name] for (name,) in connection.execute(sql.SQL(" UNION ALL ").join(look)).fetchall()]
    if full:
        connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(full)))
    for table, rows in stored.rows.items():
        columns = sql.SQL(", ").join(map(sql.Identifier, stored.columns[table]))
        places = sql.SQL(", ").join(sql.Placeholder() * len(stored.columns[table]))
        insert = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})")
        with connection.cursor() as cursor:
            cursor.executemany(insert.format(at[table], columns, places), rows)
    for name, value, called in stored.sequences:
        # A sequence's own lock would wait for nobody: it is set as it was.
        which = f'"{stored.schema}"."{name}"'
        connection.execute("SELECT setval(%s::regclass, %s, %s)", (which, value, called))
