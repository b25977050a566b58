"""`python -m bench.claims`: what a message costs that is claimed, read and settled, in a file, on a server.

Messages of 1 KiB; one claim holds them all, in two shards. Reading is of all columns, to Arrow. Nothing else
uses the store. Each round has a fresh one. Time and CPU are in microseconds a message, CPU of this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import lazaretto
from bench.figures import Figure
from bench.payload import bodies
from bench.processor import Spent, spend
from bench.rounds import options, private, run
from bench.servers import PostgresServer
from bench.systems.contract import chunks
from lazaretto import Message
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.claims.settle_claims import staged_rows
from lazaretto.spark.columns import MESSAGE, read_shard
from lazaretto.spark.reading import BATCH_ROWS


def spent(url: str, rows: int) -> Iterator[tuple[str, Spent]]:
    """Fill a queue, take all of it as a claim, read it and settle it."""
    with lazaretto.connect(url) as broker:
        broker.create_queue("work")
        sender = broker.sender("work")
        for chunk in chunks(bodies(rows), 5_000):
            sender.send([Message(body) for body in chunk])
    with lazaretto.connect(url) as broker:
        consumer = ClaimConsumer(broker._store, "work", "bench")
        consumer.attach()
        yield "taking", spend(lambda: consumer.take(0, max_rows=rows, max_bytes=1 << 40, shards=2))
        shards = [shard for _, shard in consumer.shards(0, 1)]
        base = consumer.base_key()
    keys: dict[int, list[int]] = {}

    def read() -> None:
        for shard in shards:
            mine = keys[shard.token] = []
            for batch in read_shard(url, shard, list(MESSAGE), BATCH_ROWS):
                mine += (base + number for number in batch.column("sequence_number").to_pylist())

    yield "reading", spend(read)
    with lazaretto.connect(url) as broker:
        consumer = ClaimConsumer(broker._store, "work", "bench", epoch=1)
        for shard in shards:
            consumer.stage("done", staged_rows(shard.token, keys[shard.token], [], {}))
        yield "settling", spend(lambda: consumer.settle([1], ["done"]))
        assert broker.queue("work").counts.total == 0


def measure(folder: Path, stores: Sequence[str], rows: int) -> Iterator[Figure]:
    """Measure a round on each kind of store."""
    for store in stores:
        with private(folder) as home:
            server = PostgresServer(home) if store == "postgres" else None
            try:
                for name, (seconds, cpu) in spent(
                    str(home / "store.db") if server is None else server.url, rows
                ):
                    yield Figure(name, store, seconds / rows * 1e6, "µs", less=True, cost=cpu / rows * 1e6)
            finally:
                if server is not None:
                    server.stop()


def main() -> int:
    """Measure and print."""
    parser = options("bench.claims", __doc__, 3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--stores", nargs="+", choices=["sqlite", "postgres"], default=["sqlite", "postgres"])
    given = parser.parse_args()
    rows = min(given.rows, 10_000) if given.quick else given.rows
    return run(given, lambda folder, _: measure(folder, given.stores, rows))


if __name__ == "__main__":
    raise SystemExit(main())
