"""Reads whole columns of a store, with Arrow's drivers where they are installed."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sqlite3
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from lazaretto.spark.store_access import is_open_here
from lazaretto.store.addresses import file_of, is_served, served_at
from lazaretto.store.sql.query_files import load_queries
from lazaretto.store.sql.words import words

#: Messages that are read at once.
BATCH_ROWS = 10_000
#: Seconds to wait for another process that closes a file just now: for a moment nobody may begin to read it.
_BUSY = 60

#: Queries of columns, the same for every database. Their parameters are `?`.
_QUERIES = load_queries(("lazaretto.store.sql", "columns.sql"), words=words({}))
SQL = {name: query.sql for name, query in _QUERIES.items()}


def select(
    url: str, sql: str, parameters: tuple[Any, ...], schema: pa.Schema, rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield what a query finds in the store at a URL, as batches of exactly this schema."""
    read = _select_served if is_served(url) else _select_file
    for batch in read(url, sql, parameters, schema, rows):
        if batch.num_rows:
            yield batch


def cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch in exactly this schema: Spark compares only the first."""
    arrays = []
    for column, field in zip(batch.columns, schema, strict=True):
        if pa.types.is_null(column.type):
            arrays.append(pa.nulls(len(column), field.type))
        elif column.type.equals(field.type):
            arrays.append(column)
        else:
            arrays.append(column.cast(_stored(field.type)).cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _stored(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _of_rows(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(column, _stored(field.type)).cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# -- a file ---------------------------------------------------------------------------------------


def _select_file(
    url: str, sql: str, parameters: tuple[Any, ...], schema: pa.Schema, rows: int
) -> Iterator[pa.RecordBatch]:
    path = str(file_of(url))
    # The driver takes a column's type from its first values, which may all be NULL: so it is told.
    types = ", ".join(_sample(field.type) for field in schema)
    sql = f"SELECT {types} UNION ALL SELECT * FROM ({sql} LIMIT -1)"  # noqa: S608 - made of constants
    first = True
    for batch in _batches(path, sql, parameters, schema, rows):
        yield batch.slice(1) if first else batch
        first = False


def _sample(kind: pa.DataType) -> str:
    if pa.types.is_binary(kind):
        return "x''"
    return "''" if pa.types.is_string(kind) else "0"


def _batches(
    path: str, sql: str, parameters: tuple[Any, ...], schema: pa.Schema, rows: int
) -> Iterator[pa.RecordBatch]:
    read_only = f"file:{quote(path)}?mode=ro"
    if importlib.util.find_spec("adbc_driver_sqlite") is None or is_open_here(path):
        with contextlib.closing(sqlite3.connect(read_only, _BUSY, uri=True)) as plain:
            rows_of = plain.execute(sql, parameters)
            while rows_read := rows_of.fetchmany(rows):
                yield _of_rows(rows_read, schema)
        return
    from adbc_driver_sqlite import dbapi

    with contextlib.closing(dbapi.connect(read_only)) as connection, connection.cursor() as cursor:
        cursor.execute(f"PRAGMA busy_timeout = {_BUSY * 1000}")
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        cursor.execute(sql, parameters)
        for batch in cursor.fetch_record_batch():
            yield cast(batch, schema)


# -- a server -------------------------------------------------------------------------------------


def _select_served(
    url: str, sql: str, parameters: tuple[Any, ...], schema: pa.Schema, rows: int
) -> Iterator[pa.RecordBatch]:
    from psycopg.sql import Literal

    from lazaretto.store.postgres.connection import PgConnection, translating
    from lazaretto.store.postgres.dialect import within
    from lazaretto.store.postgres.server_session import settings_of_commits

    address, name = served_at(url)
    values = iter(parameters)
    # Arrow's driver copies what a query finds as a stream of columns, unless it has parameters.
    sql = re.sub(r"\?", lambda _: Literal(next(values)).as_string(), within(name, sql))
    if importlib.util.find_spec("adbc_driver_postgresql") is None:
        with (
            translating(f"store {name}"),
            contextlib.closing(PgConnection(address, schema=name)) as plain,
            plain.raw.transaction(),
            # A cursor of the server's, so that what is read need not fit in memory.
            plain.raw.cursor("lazaretto", binary=True) as reader,
        ):
            reader.execute(sql.encode())
            while rows_read := reader.fetchmany(rows):
                yield _of_rows(rows_read, schema)
        return
    from adbc_driver_postgresql import dbapi

    with contextlib.closing(dbapi.connect(address)) as connection, connection.cursor() as cursor:
        version = int(connection.adbc_get_info()["vendor_version"])
        for setting, value in settings_of_commits(name, version).items():
            cursor.execute(f"SET {setting} = {value}")
        cursor.execute(sql)
        for batch in cursor.fetch_record_batch():
            # The driver's batches have a size in bytes, not in rows.
            for start in range(0, batch.num_rows, rows):
                yield cast(batch.slice(start, rows), schema)
