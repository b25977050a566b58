"""`python -m bench.spark`: the pipeline on Spark beside a plain one, and what its parts can do.

Messages of 1 KiB of JSON; the handler parses the body. A plain pipeline is the same stream through
`mapInArrow` with a loop and try/except around the handler, into Spark's sink that throws everything
away: it settles nothing. Every measurement has a fresh copy of the store, and they take turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from adbc_driver_sqlite import dbapi
from rich.console import Console
from rich.table import Table

import lazaretto
from lazaretto import Message, PoisonPolicy, QueueOptions
from lazaretto.claims import ClaimConsumer
from lazaretto.engine.claims.settle_claims import staged_rows
from lazaretto.spark import process, spark_session
from lazaretto.spark.columns import MESSAGE, read_shard
from lazaretto.spark.reading import BATCH_ROWS

_SIZE = 1_024
_CLAIM = 100_000
_SMALL = 200_000

Progress = list[dict[str, Any]]
Run = Callable[[Path], object]


def parse(message: Any) -> None:
    """Be the handler."""
    import json

    json.loads(message.body)


def make(path: Path, rows: int, poison: int) -> None:
    """Make a store with so many messages, one in `poison` of which is no JSON (0: none)."""
    with lazaretto.connect(path) as broker:
        broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
        sender = broker.sender("work")
        for start in range(0, rows, 5_000):
            sender.send([Message(_body(n, poison)) for n in range(start, min(rows, start + 5_000))])


def _body(number: int, poison: int) -> bytes:
    if poison and number % poison == poison // 2:
        return b"{" * _SIZE
    text = json.dumps({"id": number, "kind": "order", "lines": [{"sku": "A-1", "n": 2}], "note": ""})
    return f'{text[:-2]}{"x" * (_SIZE - len(text))}"}}'.encode()


class Stores:
    """Fresh copies of prepared stores, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = 0

    def home(self) -> Path:
        """Return a new folder."""
        self._number += 1
        home = self.folder / str(self._number)
        home.mkdir()
        return home

    def copy(self, prepared: Path) -> Path:
        """Return a copy of a store."""
        return Path(shutil.copy(prepared, self.home() / "store.db"))


def _stream(spark: Any, store: Path, rows: int) -> Any:
    reader = spark.readStream.format("lazaretto").option("store", str(store)).option("queue", "work")
    return reader.option("maxRows", str(rows)).load()


def _run(writer: Any, store: Path) -> Progress:
    query = writer.option("checkpointLocation", str(store.parent / "checkpoint"))
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    return list(query.recentProgress)


def plain(spark: Any, store: Path, rows: int) -> Progress:
    """Run a loop around the handler in each task; return the query's progress."""

    def loop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json

        for batch in batches:
            good = 0
            for body in batch.column("body").to_pylist():
                try:
                    json.loads(body)
                    good += 1
                except Exception:
                    continue
            yield pa.RecordBatch.from_pydict({"good": pa.array([good], pa.int64())})

    frame = _stream(spark, store, rows).mapInArrow(loop, "good bigint")
    return _run(frame.writeStream.format("noop"), store)


def pool(spark: Any, store: Path, rows: int) -> Progress:
    """Run the handler in a process beside each task, a row at a time, as Beam's use_subprocess does."""

    def loop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import concurrent.futures
        import json
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
            for batch in batches:
                good = 0
                for body in batch.column("body").to_pylist():
                    try:
                        executor.submit(json.loads, body).result(5)
                        good += 1
                    except Exception:
                        continue
                yield pa.RecordBatch.from_pydict({"good": pa.array([good], pa.int64())})

    frame = _stream(spark, store, rows).mapInArrow(loop, "good bigint")
    return _run(frame.writeStream.format("noop"), store)


def each_batch(spark: Any, store: Path, rows: int) -> Progress:
    """Run the handler in the driver, on every row of a micro-batch."""

    def handle(frame: Any, _number: int) -> None:
        bad = []
        for row in frame.select("sequence_number", "body").toLocalIterator():
            try:
                json.loads(row.body)
            except Exception as error:
                bad.append((row.sequence_number, str(error)))

    return _run(_stream(spark, store, rows).writeStream.foreachBatch(handle), store)


def pipeline(spark: Any, store: Path, rows: int, isolation: str, *, direct: bool = True) -> Progress:
    """Run the pipeline; return the query's progress."""
    size: dict[str, Any] = {"max_rows": rows} if direct else {}
    query = process(
        spark if direct else _stream(spark, store, rows), parse, store=str(store), queue="work",
        checkpoint=str(store.parent / "checkpoint"), isolation=isolation, breaker=None, **size,
    )  # fmt: skip
    query.awaitTermination()
    return list(query.recentProgress)


def _timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def reading(store: Path, rows: int) -> tuple[float, float, float]:
    """Return rows a second of a claim read to Arrow, of Arrow's driver alone, and of settling."""
    with lazaretto.connect(store) as broker:
        consumer = ClaimConsumer(broker._store, "work", "bench")
        consumer.attach()
        consumer.take(0, max_rows=rows, shards=2)
        shards = [shard for _, shard in consumer.shards(0, 1)]
    columns = list(MESSAGE)

    def ours() -> None:
        for shard in shards:
            for _ in read_shard(str(store), shard, columns, BATCH_ROWS):
                pass

    def theirs() -> None:
        sql = (
            "SELECT key, message_id, session_id, enqueued, expires, deliveries, delivery_count, cycle, "
            "generation, enqueued_sequence_number, headers, body FROM lazaretto_messages"
        )
        with dbapi.connect(f"file:{store}?mode=ro") as connection, connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": "10000"})
            cursor.execute(sql)
            for _ in cursor.fetch_record_batch():
                pass

    pairs = [(_timed(ours), _timed(theirs)) for _ in range(5)]
    with lazaretto.connect(store) as broker:
        consumer = ClaimConsumer(broker._store, "work", "bench")
        consumer.attach()
        for shard in shards:
            keys = broker._store.read(lambda tx, shard=shard: tx.claims.shard_keys(shard, rows))  # type: ignore[misc]
            consumer.stage("a", staged_rows(shard.token, keys, [], {}))
        settling = _timed(lambda: consumer.settle([1], ["a"]))
    mine, alone = (statistics.median(column) for column in zip(*pairs, strict=True))
    return rows / mine, rows / alone, rows / settling


def grow(spark: Any, stores: Stores, most: int, console: Console) -> None:
    """Print what a message costs in queues of different lengths."""
    table = Table("messages", "rows/s", "µs a message")
    rows = 10_000
    while rows <= most:
        prepared = stores.folder / f"{rows}.db"
        make(prepared, rows, 0)
        store = prepared.rename(stores.home() / "store.db")
        seconds = _timed(lambda store=store: pipeline(spark, store, _CLAIM, "process"))  # type: ignore[misc]
        table.add_row(f"{rows:,}", f"{rows / seconds:,.0f}", f"{seconds / rows * 1e6:.1f}")
        shutil.rmtree(store.parent)
        rows = {10_000: 100_000, 100_000: 1_000_000, 1_000_000: 5_000_000}.get(rows, most + 1)
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--grow", type=int, default=0, metavar="N", help="queues of up to N messages too")
    parser.add_argument("--dir", type=Path, default=Path())
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as here:
        folder, rows = Path(here).absolute(), arguments.rows
        clean, spoilt, small = (folder / name for name in ("clean.db", "spoilt.db", "small.db"))
        make(clean, rows, 0)
        make(spoilt, rows, 1_000)
        make(small, _SMALL, 0)
        stores = Stores(folder)
        mine, alone, settling = reading(stores.copy(clean), rows)
        console.print(f"a claim to Arrow: {mine:,.0f} rows/s, {mine / alone:.2f} of Arrow's driver alone")
        console.print(f"settling: {settling:,.0f} rows/s")

        spark = spark_session({"spark.driver.memory": "2g"})
        # Those that take long get fewer messages; a rate is what is compared.
        runs: dict[str, tuple[Path, int, Run]] = {
            "plain mapInArrow": (clean, rows, lambda store: plain(spark, store, _CLAIM)),
            "pipeline, isolated": (clean, rows, lambda store: pipeline(spark, store, _CLAIM, "process")),
            "the same, 0.1 % poison": (spoilt, rows, lambda store: pipeline(spark, store, _CLAIM, "process")),
            "pipeline, inline": (clean, rows, lambda store: pipeline(spark, store, _CLAIM, "inline")),
            "pipeline on a stream, isolated": (
                clean, rows, lambda store: pipeline(spark, store, _CLAIM, "process", direct=False),
            ),
            "foreachBatch, try/except": (small, _SMALL, lambda store: each_batch(spark, store, _CLAIM)),
            "a process pool, row by row": (small, _SMALL, lambda store: pool(spark, store, _CLAIM)),
        }  # fmt: skip
        pipeline(spark, stores.copy(small), 5_000, "process")
        each: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(arguments.rounds):
            for name, (prepared, count, run) in runs.items():
                store = stores.copy(prepared)
                each[name].append(_timed(lambda run=run, store=store: run(store)) / count)  # type: ignore[misc]
                shutil.rmtree(store.parent)
        table = Table("on Spark", "rows/s", "time to plain")
        for name, found in each.items():
            ratios = [a / b for a, b in zip(found, each["plain mapInArrow"], strict=True)]
            table.add_row(name, f"{1 / statistics.median(found):,.0f}", f"{statistics.median(ratios):.2f}")
        console.print(table)
        progress = pipeline(spark, stores.copy(small), 1_000, "process")[3:]
        batches = [one["durationMs"]["triggerExecution"] for one in progress if one["numInputRows"]]
        console.print(f"a warm micro-batch of 1,000 rows: {statistics.median(batches):.0f} ms")
        if arguments.grow:
            grow(spark, stores, arguments.grow, console)
        spark.stop()


if __name__ == "__main__":
    main()
