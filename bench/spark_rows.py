"""Rows of another source on Spark: `quarantine` beside a plain `mapInArrow` with the same handler.

The source is a folder of Kafka's columns as Parquet, which Spark reads at little cost; bodies are of 1 KiB.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.figures import Figure
from bench.processor import spend_with_children
from bench.rounds import private
from bench.spark_places import body, create
from bench.spark_runs import RESULT
from lazaretto.spark import quarantine

#: Rows that stand together in a file: Spark holds so many in memory, and no part of a file is less.
_GROUP = 16_384
#: Files of a source, which are read in one micro-batch, and of how many rows one is bad: none, then the rest.
_FILES, _POISON = 4, (0, 10_000, 100)
_SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
_RESULTS = pa.schema([("id", pa.int64()), ("kind", pa.string())])


def book(row: Any) -> None:
    """Be the handler."""
    import json

    json.loads(row.value)


def book_to_row(row: Any) -> dict[str, Any]:
    """Be the handler that has a result."""
    import json

    value = json.loads(row.value)
    return {"id": value["id"], "kind": value["kind"]}


class _Record:
    """A row as somebody writes it who needs no more: one of its columns."""

    __slots__ = ("value",)

    def __init__(self, value: bytes) -> None:
        self.value = value


def _loop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the handler on each row of a task."""
    for batch in batches:
        good = 0
        for value in batch.column("value").to_pylist():
            try:
                book(_Record(value))
                good += 1
            except Exception:
                continue
        yield pa.RecordBatch.from_pydict({"good": pa.array([good], pa.int64())})


def _loop_to_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the handler that has results on each row of a task."""
    for batch in batches:
        results = []
        for value in batch.column("value").to_pylist():
            try:
                results.append(book_to_row(_Record(value)))
            except Exception:
                continue
        yield pa.RecordBatch.from_pylist(results, schema=_RESULTS)


def _fill(folder: Path, rows: int, poison: int) -> None:
    """Write a topic's rows as files."""
    folder.mkdir()
    size = -(-rows // _FILES)
    for first in range(0, rows, size):
        numbers = range(first, min(rows, first + size))
        table = pa.table(
            {
                "key": pa.array([b"%d" % number for number in numbers], pa.binary()),
                "value": pa.array([body(number, poison) for number in numbers], pa.binary()),
                "topic": pa.array(["orders"] * len(numbers)),
                "partition": pa.array([0] * len(numbers), pa.int32()),
                "offset": pa.array(numbers, pa.int64()),
                "timestamp": pa.array([1_700_000_000_000_000] * len(numbers), pa.timestamp("us", "UTC")),
            }
        )
        pq.write_table(table, folder / f"{first}.parquet", compression="none", row_group_size=_GROUP)


def _stream(spark: Any, source: Path) -> Any:
    return spark.readStream.schema(_SCHEMA).parquet(str(source))


def _plain(spark: Any, source: Path, home: Path, *, results: bool) -> None:
    loop, schema = (_loop_to_rows, RESULT) if results else (_loop, "good bigint")
    writer = _stream(spark, source).mapInArrow(loop, schema).writeStream
    writer = writer.format("parquet").option("path", str(home / "out")) if results else writer.format("noop")
    writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start(
    ).awaitTermination()  # fmt: skip


def _ours(spark: Any, source: Path, home: Path, *, results: bool) -> None:
    url = str(home / "store.db")
    create(url)
    more: dict[str, Any] = {"results": str(home / "results"), "schema": RESULT} if results else {}
    query: Any = quarantine(
        _stream(spark, source), book_to_row if results else book, store=url, queue="work", body="value",
        checkpoint=str(home / "checkpoint"), trigger={"availableNow": True}, breaker=None, **more,
    )  # fmt: skip
    query.awaitTermination()


def prepare(folder: Path, count: int) -> None:
    """Write the sources."""
    for poison in _POISON:
        _fill(folder / f"topic-{poison}", count, poison)
    _fill(folder / "topic-warm", _FILES * 1_000, 1_000)


def compare_rows(spark: Any, folder: Path, count: int, *, warm: bool) -> Iterator[Figure]:
    """Compare quarantine with a plain loop, with and without results, by how many rows are bad.

    `warm`: on few rows.
    """
    for results in (False, True):
        for poison in _POISON:
            for name, work in (("quarantine", _ours), ("plain mapInArrow", _plain)):
                source = folder / f"topic-{'warm' if warm else poison}"
                with private(folder) as home:
                    run = functools.partial(work, spark, source, home, results=results)
                    seconds, cpu = spend_with_children(run)
                bad = f"one in {poison:,} bad" if poison else "none bad"
                row = f"{bad}, {'results as Parquet' if results else 'no results'}"
                yield Figure(row, name, seconds / count * 1e6, "µs", less=True, cost=cpu / count * 1e6)
