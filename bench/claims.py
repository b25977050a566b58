"""`python -m bench.claims`: what a message costs that is claimed, read and settled, in a file, on a server.

Messages of 1 KiB; one claim holds them all, in two shards. Reading is of all columns, to Arrow. Nothing else
uses the store. Each round has a fresh one.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

import lazaretto
from bench.postgres import PostgresServer
from lazaretto import Message
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.claims.settle_claims import staged_rows
from lazaretto.spark.columns import MESSAGE, read_shard
from lazaretto.spark.reading import BATCH_ROWS

_BODY = b"x" * 1_024
_AT_ONCE = 5_000

#: Seconds by the clock, and of this process's own time.
Spent = tuple[float, float]


def _timed(run: Callable[[], object]) -> Spent:
    used, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    own = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return time.perf_counter() - begun, own


def measure(url: str, rows: int) -> dict[str, Spent]:
    """Fill a queue, take all of it as a claim, read it and settle it."""
    with lazaretto.connect(url) as broker:
        broker.create_queue("work")
        sender = broker.sender("work")
        for start in range(0, rows, _AT_ONCE):
            sender.send([Message(_BODY) for _ in range(min(_AT_ONCE, rows - start))])
    found: dict[str, Spent] = {}
    with lazaretto.connect(url) as broker:
        consumer = ClaimConsumer(broker._store, "work", "bench")
        consumer.attach()
        found["taking"] = _timed(lambda: consumer.take(0, max_rows=rows, max_bytes=1 << 40, shards=2))
        shards = [shard for _, shard in consumer.shards(0, 1)]
        base = consumer.base_key()
    keys: dict[int, list[int]] = {}

    def read() -> None:
        for shard in shards:
            mine = keys[shard.token] = []
            for batch in read_shard(url, shard, list(MESSAGE), BATCH_ROWS):
                mine += (base + number for number in batch.column("sequence_number").to_pylist())

    found["reading"] = _timed(read)
    with lazaretto.connect(url) as broker:
        consumer = ClaimConsumer(broker._store, "work", "bench", epoch=1)
        for shard in shards:
            consumer.stage("done", staged_rows(shard.token, keys[shard.token], [], {}))
        found["settling"] = _timed(lambda: consumer.settle([1], ["done"]))
        assert broker.queue("work").counts.total == 0
    return found


def compare(stores: Sequence[str], rows: int, rounds: int, folder: Path, console: Console) -> None:
    """Measure stores in turn, and print what a message costs."""
    each: dict[str, dict[str, list[Spent]]] = {store: {} for store in stores}
    for _ in range(rounds):
        for store in stores:
            with tempfile.TemporaryDirectory(dir=folder) as here:
                home = Path(here).absolute()
                # The server may run as another user.
                home.chmod(0o711)
                server = PostgresServer(home) if store == "postgres" else None
                try:
                    url = str(home / "store.db") if server is None else server.url
                    for name, spent in measure(url, rows).items():
                        each[store].setdefault(name, []).append(spent)
                finally:
                    if server is not None:
                        server.stop()
    table = Table("µs a message", *(f"{store}: {what}" for store in each for what in ("clock", "own CPU")))
    for name in next(iter(each.values())):
        medians = [
            statistics.median(column) / rows * 1e6
            for store in each
            for column in zip(*each[store][name], strict=True)
        ]
        table.add_row(name, *(f"{median:.2f}" for median in medians))
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--dir", type=Path, default=Path())
    given = parser.parse_args()
    compare(given.stores, given.rows, given.rounds, given.dir, Console())


if __name__ == "__main__":
    main()
