"""Lazaretto on PostgreSQL beside a plain SKIP LOCKED queue with pgmq's statements: python -m bench.served"""

from __future__ import annotations

import argparse
import concurrent.futures
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

import lazaretto
from bench.measure import rate
from bench.payload import bodies
from bench.postgres import PostgresServer
from lazaretto import Message

_BATCH = 100
_THREADS = 16


class Plain:
    """A table, an UPDATE of the first visible rows with SKIP LOCKED, and a DELETE: what pgmq does."""

    name = "a plain table"

    def __init__(self, server: PostgresServer) -> None:
        self._address = server.address
        with self._connect() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS plain (msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
                "read_ct int NOT NULL DEFAULT 0, enqueued_at timestamptz NOT NULL DEFAULT now(), "
                "vt timestamptz NOT NULL, message bytea)"
            )
            connection.execute("CREATE INDEX IF NOT EXISTS plain_vt ON plain (vt)")

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._address, autocommit=True)

    def sender(self) -> Callable[[Sequence[bytes]], object]:
        connection = self._connect()
        send = "INSERT INTO plain (vt, message) SELECT now(), unnest(%s::bytea[]) RETURNING msg_id"
        return lambda messages: connection.execute(send, (list(messages),), binary=True).fetchall()

    def taker(self) -> Callable[[int], int]:
        connection = self._connect()
        read = (
            "WITH first AS (SELECT msg_id FROM plain WHERE vt <= clock_timestamp() ORDER BY msg_id "
            "LIMIT %s FOR UPDATE SKIP LOCKED) "
            "UPDATE plain p SET vt = clock_timestamp() + interval '60 s', read_ct = read_ct + 1 FROM first "
            "WHERE p.msg_id = first.msg_id RETURNING p.msg_id, p.message"
        )

        def take(limit: int) -> int:
            rows = connection.execute(read, (limit,), binary=True).fetchall()
            if rows:
                connection.execute("DELETE FROM plain WHERE msg_id = ANY(%s)", ([row[0] for row in rows],))
            return len(rows)

        return take


class Ours:
    """A broker, shared by all threads."""

    name = "lazaretto"

    def __init__(self, server: PostgresServer) -> None:
        parts = dict(part.split("=", 1) for part in server.address.split())
        url = f"postgresql://{parts['user']}@/{parts['dbname']}?host={parts['host']}"
        self._broker = lazaretto.connect(url, timeout=60.0)
        self._broker.create_queue("orders")

    def sender(self) -> Callable[[Sequence[bytes]], object]:
        sender = self._broker.sender("orders")
        return lambda messages: sender.send([Message(body) for body in messages])

    def taker(self) -> Callable[[int], int]:
        receiver = self._broker.receiver("orders")

        def take(limit: int) -> int:
            messages = receiver.receive(limit)
            receiver.complete(messages)
            return len(messages)

        return take

    def close(self) -> None:
        self._broker.close()


def _send(system: Plain | Ours, count: int, batch: int, threads: int) -> float:
    some = list(bodies(batch))
    senders = [system.sender() for _ in range(threads)]
    each = count // batch // threads

    def work(send: Callable[[Sequence[bytes]], object]) -> None:
        for _ in range(each):
            send(some)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return rate(each * batch * threads, lambda: list(pool.map(work, senders)))


def _drain(system: Plain | Ours, batch: int, threads: int) -> float:
    takers = [system.taker() for _ in range(threads)]
    taken: list[int] = []

    def work(take: Callable[[int], int]) -> None:
        while number := take(batch):
            taken.append(number)

    begun = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, takers))
    return sum(taken) / (time.perf_counter() - begun)


_WORK: dict[str, Callable[[Plain | Ours, int], float]] = {
    "send one at a time, 1 thread": lambda s, n: _send(s, n // 10, 1, 1),
    f"send one at a time, {_THREADS} threads": lambda s, n: _send(s, n // 4, 1, _THREADS),
    f"receive and complete one, {_THREADS} threads": lambda s, n: _drain(s, 1, _THREADS),
    f"send {_BATCH} at a time, 1 thread": lambda s, n: _send(s, n, _BATCH, 1),
    f"receive and complete {_BATCH}, 1 thread": lambda s, n: _drain(s, _BATCH, 1),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path())
    arguments = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.dir) as here:
        Path(here).chmod(0o755)
        server = PostgresServer(Path(here))
        try:
            plain, ours = Plain(server), Ours(server)
            for _ in range(arguments.rounds):
                for work, run in _WORK.items():
                    found.setdefault(work, []).append(
                        (run(plain, arguments.messages), run(ours, arguments.messages))
                    )
            ours.close()
        finally:
            server.stop()
    table = Table(
        "1 KiB, every commit synced", "a plain table, messages/s", "lazaretto", "to the plain table"
    )
    for work, rates in found.items():
        ratio = statistics.median(ours / plain for plain, ours in rates)
        medians = [f"{statistics.median(each):,.0f}" for each in zip(*rates, strict=True)]
        table.add_row(work, *medians, f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
