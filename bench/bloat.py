"""What PostgreSQL keeps of messages that are gone, and whether that slows a queue: python -m bench.bloat"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

import lazaretto
from bench.measure import percentile
from bench.payload import body
from bench.postgres import PostgresServer
from lazaretto import Broker, Message

_QUEUE = "orders"
_DEPTH = 1_000
_BATCH = 100
_THREADS = 4


class _Load:
    """Threads that send at a steady pace, and threads that receive and complete one by one."""

    def __init__(self, broker: Broker, pace: float) -> None:
        self._broker = broker
        self._pace = pace
        self._stop = threading.Event()
        self.waits: list[tuple[float, float]] = []

    def _send(self, start: float) -> None:
        sender, count = self._broker.sender(_QUEUE), 0
        while not self._stop.is_set():
            due = start + count * _THREADS / self._pace
            time.sleep(max(0.0, due - time.perf_counter()))
            sender.send(Message(body(0), properties={"sent": time.perf_counter()}))
            count += 1

    def _receive(self) -> None:
        receiver = self._broker.receiver(_QUEUE)
        while not self._stop.is_set():
            for message in receiver.receive(1, 0.05):
                receiver.complete(message)
                now = time.perf_counter()
                sent = message.properties["sent"]
                assert isinstance(sent, float)
                self.waits.append((now, now - sent))

    def run(self, seconds: float) -> tuple[float, float, float]:
        """Return messages a second, and the median and 99th percentile of the time to completion, in ms."""
        begun = time.perf_counter()
        works = [threading.Thread(target=self._send, args=(begun,)) for _ in range(_THREADS)]
        works += [threading.Thread(target=self._receive) for _ in range(_THREADS)]
        for work in works:
            work.start()
        time.sleep(seconds)
        self._stop.set()
        for work in works:
            work.join()
        # The last quarter: by then everything has piled up.
        since = begun + seconds * 0.75
        late = [wait for at, wait in self.waits if at >= since]
        waits = [percentile(late, share) * 1_000 for share in (0.5, 0.99)]
        return len(late) / (seconds * 0.25), waits[0], waits[1]


def _steady(broker: Broker, count: int) -> float:
    """Let messages through a queue that holds a thousand; return messages a second."""
    sender, receiver = broker.sender(_QUEUE), broker.receiver(_QUEUE)
    some = [Message(body(0))] * _BATCH
    for _ in range(_DEPTH // _BATCH):
        sender.send(some)
    begun = time.perf_counter()
    for _ in range(count // _BATCH):
        sender.send(some)
        receiver.complete(receiver.receive(_BATCH))
    rate = count / (time.perf_counter() - begun)
    while messages := receiver.receive(_BATCH):
        receiver.complete(messages)
    return rate


def _size(address: str) -> float:
    with psycopg.connect(address) as connection:
        (size,) = connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = 'lazaretto' AND c.relkind = 'r'"
        ).fetchone() or (0,)
    return float(size) / 1_048_576


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the transaction is held open")
    parser.add_argument("--pace", type=float, default=800.0, help="messages a second")
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="how many go through a queue of 1,000"
    )
    parser.add_argument("--dir", type=Path, default=Path())
    arguments = parser.parse_args()
    table = Table("", "messages/s", "p50, ms", "p99, ms", "tables, MiB")
    with tempfile.TemporaryDirectory(dir=arguments.dir) as here:
        Path(here).chmod(0o755)
        server = PostgresServer(Path(here))
        try:
            with lazaretto.connect(server.url, timeout=60.0) as broker:
                broker.create_queue(_QUEUE)
                figures = _Load(broker, arguments.pace).run(arguments.seconds)
                row = [f"{figure:,.1f}" for figure in figures]
                table.add_row("nothing held open", *row, f"{_size(server.address):,.1f}")
                with psycopg.connect(server.address) as holding:
                    holding.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                    holding.execute("SELECT count(*) FROM lazaretto.lazaretto_messages")
                    figures = _Load(broker, arguments.pace).run(arguments.seconds)
                    row = [f"{figure:,.1f}" for figure in figures]
                    size = f"{_size(server.address):,.1f}"
                    table.add_row(f"a transaction held open for {arguments.seconds:g} s", *row, size)
                before = _size(server.address)
                for count in (arguments.messages // 10, arguments.messages):
                    rate = f"{_steady(broker, count):,.0f}"
                    table.add_row(f"{count:,} through 1,000", rate, "", "", f"{_size(server.address):,.1f}")
                table.caption = f"before the last two: {before:,.1f} MiB"
        finally:
            server.stop()
    Console().print(table)


if __name__ == "__main__":
    main()
