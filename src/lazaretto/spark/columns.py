"""The columns of a stream of messages, and how they are read: by Arrow where its driver is there."""

from __future__ import annotations

import contextlib
import importlib.util
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa

from lazaretto.keys import LAST_SEQUENCE
from lazaretto.spark.stores import is_open_here
from lazaretto.store.claims import ShardRecord
from lazaretto.store.queries import load_queries

SQL = load_queries("lazaretto.store.sqlite", "columns.sql")

#: Messages that are read at once.
BATCH_ROWS = 10_000


class Column(NamedTuple):
    """A column: its type, and the SQL that finds it, of a message called m. Times there are microseconds."""

    kind: pa.DataType
    sql: str


LONG, INT, TEXT, BYTES = pa.int64(), pa.int32(), pa.string(), pa.binary()
TIME = pa.timestamp("us", tz="UTC")
NUMBER = f"m.key & {LAST_SEQUENCE}"
#: What a stream of messages has, after what tells its claim. Whatever users made is bytes.
MESSAGE = {
    "sequence_number": Column(LONG, NUMBER),
    "message_id": Column(TEXT, "CAST(m.message_id AS TEXT)"),
    "session_id": Column(TEXT, "m.session_id"),
    "enqueued_time": Column(TIME, "m.enqueued"),
    "expires_at": Column(TIME, "m.expires"),
    "attempt": Column(INT, "m.deliveries"),
    "delivery_count": Column(INT, "m.delivery_count"),
    "cycle": Column(INT, "m.cycle"),
    "generation": Column(INT, "m.generation"),
    "enqueued_sequence_number": Column(LONG, "m.enqueued_sequence_number"),
    "headers": Column(BYTES, "m.headers"),
    "body": Column(
        BYTES, "coalesce(m.body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id))"
    ),
}
CLAIM = {"claim": LONG, "shard": LONG, "epoch": LONG, "careful": pa.bool_()}
#: A stream of shards alone: whoever gets them reads the messages.
SHARDS = pa.schema([(name, CLAIM[name]) for name in ("claim", "shard", "epoch")])
STREAM = pa.schema([*CLAIM.items(), *((name, column.kind) for name, column in MESSAGE.items())])


def selected(columns: Mapping[str, Column], names: Iterable[str]) -> str:
    """Return what a query selects to find these columns."""
    return ", ".join(f"{columns[name].sql} AS {name}" for name in names)


def schema_of(columns: Mapping[str, Column], names: Iterable[str]) -> pa.Schema:
    """Return the schema of these columns."""
    return pa.schema([(name, columns[name].kind) for name in names])


def read_shard(path: str, shard: ShardRecord, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield what a shard holds, in order, with these columns of a message. `path`: of the SQLite file."""
    sql = SQL["shard_messages"].replace("[columns]", selected(MESSAGE, names))
    yield from select(path, sql, (shard.first, shard.last, shard.token), schema_of(MESSAGE, names))


def select(
    path: str, sql: str, parameters: tuple[Any, ...], schema: pa.Schema, rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield what a query of a SQLite file finds, as batches of exactly this schema."""
    # The driver takes a column's type from its first values, which may all be NULL: so it is told.
    told = ", ".join(_sample(field.type) for field in schema)
    sql = f"SELECT {told} UNION ALL SELECT * FROM ({sql} LIMIT -1)"  # noqa: S608 - made of constants
    first = True
    for batch in _batches(path, sql, parameters, schema, rows):
        whole, first = batch.slice(1) if first else batch, False
        if whole.num_rows:
            yield whole


def _sample(kind: pa.DataType) -> str:
    if pa.types.is_binary(kind):
        return "x''"
    return "''" if pa.types.is_string(kind) else "0"


def _batches(
    path: str, sql: str, parameters: tuple[Any, ...], schema: pa.Schema, rows: int
) -> Iterator[pa.RecordBatch]:
    if importlib.util.find_spec("adbc_driver_sqlite") is None or is_open_here(path):
        yield from _select_plainly(path, sql, parameters, schema, rows)
        return
    from adbc_driver_sqlite import dbapi

    with contextlib.closing(dbapi.connect(_read_only(path))) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        cursor.execute(sql, parameters)
        for batch in cursor.fetch_record_batch():
            yield cast(batch, schema)


def _select_plainly(
    path: str, sql: str, parameters: tuple[Any, ...], schema: pa.Schema, rows: int
) -> Iterator[pa.RecordBatch]:
    with contextlib.closing(sqlite3.connect(_read_only(path), uri=True)) as connection:
        cursor = connection.execute(sql, parameters)
        while found := cursor.fetchmany(rows):
            columns = list(zip(*found, strict=True))
            arrays = [
                pa.array(column, _stored(field.type)).cast(field.type)
                for column, field in zip(columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


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


def _read_only(path: str) -> str:
    return f"file:{quote(path)}?mode=ro"
