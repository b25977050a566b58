"""The columns of a stream of messages, and how they are read: by Arrow where its driver is there."""

from __future__ import annotations

import contextlib
import importlib.util
import sqlite3
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from lazaretto.spark.stores import is_open_here
from lazaretto.store.claims import ShardRecord
from lazaretto.store.queries import load_queries

SQL = load_queries("lazaretto.store.sqlite", "columns.sql")

#: Messages that are read at once, and bytes of them.
BATCH_ROWS = 10_000

_TIME = pa.timestamp("us", tz="UTC")
#: What a stream of messages has, after what tells its claim. Whatever users made is bytes.
MESSAGE = {
    "sequence_number": pa.int64(),
    "message_id": pa.string(),
    "session_id": pa.string(),
    "enqueued_time": _TIME,
    "expires_at": _TIME,
    "attempt": pa.int32(),
    "delivery_count": pa.int32(),
    "cycle": pa.int32(),
    "generation": pa.int32(),
    "enqueued_sequence_number": pa.int64(),
    "headers": pa.binary(),
    "body": pa.binary(),
}
CLAIM = {"claim": pa.int64(), "shard": pa.int64(), "epoch": pa.int64(), "careful": pa.bool_()}
STREAM = pa.schema([*CLAIM.items(), *MESSAGE.items()])

#: In Spark's words.
STREAM_DDL = (
    "claim bigint, shard bigint, epoch bigint, careful boolean, sequence_number bigint, message_id string, "
    "session_id string, enqueued_time timestamp, expires_at timestamp, attempt int, delivery_count int, "
    "cycle int, generation int, enqueued_sequence_number bigint, headers binary, body binary"
)


def read_shard(path: str, shard: ShardRecord, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield what a shard holds, in order, with these columns of a message. `path`: of the SQLite file."""
    sql = SQL["shard_messages"].replace("[columns]", ", ".join(_EXPRESSIONS[name] for name in columns))
    schema = pa.schema([(name, MESSAGE[name]) for name in columns])
    yield from select(path, sql, (shard.first, shard.last, shard.token), schema)


#: How each column stands in the store. Times there are microseconds.
_EXPRESSIONS = {
    "sequence_number": "m.key & 4398046511103 AS sequence_number",
    "message_id": "CAST(m.message_id AS TEXT) AS message_id",
    "session_id": "m.session_id AS session_id",
    "enqueued_time": "m.enqueued AS enqueued_time",
    "expires_at": "m.expires AS expires_at",
    "attempt": "m.deliveries AS attempt",
    "delivery_count": "m.delivery_count AS delivery_count",
    "cycle": "m.cycle AS cycle",
    "generation": "m.generation AS generation",
    "enqueued_sequence_number": "m.enqueued_sequence_number AS enqueued_sequence_number",
    "headers": "m.headers AS headers",
    "body": ("coalesce(m.body, (SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id)) AS body"),
}


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
