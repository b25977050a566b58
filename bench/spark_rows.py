"""Rows of another source on Spark: `quarantine` beside a plain `mapInArrow` with the same handler.

The source is a folder of Kafka's columns as Parquet, which Spark reads at little cost; bodies are of 1 KiB.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import lazaretto
from bench.family import Measured
from bench.spark_places import body
from bench.spark_runs import RESULT
from lazaretto import PoisonPolicy, QueueOptions
from lazaretto.spark import quarantine

#: Rows that stand together in a file: Spark holds so many in memory, and no part of a file is less.
_GROUP = 16_384
#: Files of a source, which are read in one micro-batch, and of how many rows one is bad: none, then the rest.
_FILES, POISON = 4, (0, 10_000, 100)
SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
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


def fill(folder: Path, rows: int, poison: int) -> None:
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
    return spark.readStream.schema(SCHEMA).parquet(str(source))


def _plain(spark: Any, source: Path, home: Path, *, results: bool) -> None:
    loop, schema = (_loop_to_rows, RESULT) if results else (_loop, "good bigint")
    writer = _stream(spark, source).mapInArrow(loop, schema).writeStream
    writer = writer.format("parquet").option("path", str(home / "out")) if results else writer.format("noop")
    writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start(
    ).awaitTermination()  # fmt: skip


def _ours(spark: Any, source: Path, home: Path, *, results: bool) -> None:
    url = str(home / "store.db")
    with lazaretto.connect(url) as broker:
        broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
    more: dict[str, Any] = {"results": str(home / "results"), "schema": RESULT} if results else {}
    query: Any = quarantine(
        _stream(spark, source), book_to_row if results else book, store=url, queue="work", body="value",
        checkpoint=str(home / "checkpoint"), trigger={"availableNow": True}, breaker=None, **more,
    )  # fmt: skip
    query.awaitTermination()


def compare_rows(spark: Any, folder: Path, count: int, rounds: int, console: Console) -> None:
    """Compare quarantine with a plain loop, in turn, with and without results, by how many rows are bad."""
    for poison in POISON:
        fill(folder / f"topic-{poison}", count, poison)
    fill(folder / "warm", _FILES * 1_000, 1_000)
    cases = [(poison, results) for results in (False, True) for poison in POISON]
    measured: dict[tuple[int, bool, str], list[Measured]] = {}
    for number in range(rounds + 1):
        for poison, results in cases:
            for name, run in (("plain", _plain), ("ours", _ours)):
                home = folder / f"run-{number}-{poison}-{results}-{name}"
                home.mkdir()
                # The first round warms up.
                with Measured() as one:
                    run(spark, folder / (f"topic-{poison}" if number else "warm"), home, results=results)
                if number:
                    measured.setdefault((poison, results, name), []).append(one)
                    console.print(f"{home.name}: {one.seconds:.1f} s, {one.cpu:.1f} s of CPU", style="dim")
    table = Table("one bad in", "results", "plain, µs of CPU", "quarantine", "CPU to plain", "time to plain")
    for poison, results in cases:
        pairs = list(zip(measured[poison, results, "ours"], measured[poison, results, "plain"], strict=True))
        ours, plain = (statistics.median(pair[at].cpu for pair in pairs) / count * 1e6 for at in (0, 1))
        cpu = statistics.median(one.cpu / other.cpu for one, other in pairs)
        times = statistics.median(one.seconds / other.seconds for one, other in pairs)
        kind = "Parquet" if results else "none"
        bad = f"{poison:,}" if poison else "-"
        table.add_row(bad, kind, f"{plain:.1f}", f"{ours:.1f}", f"{cpu:.2f}", f"{times:.2f}")
    console.print(table)
