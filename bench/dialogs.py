"""Requests and replies by dialogs, beside plain queues that carry the same: python -m bench.dialogs"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

import lazaretto
from bench.payload import body
from bench.postgres import PostgresServer
from lazaretto import Broker, Message

_THREADS = 4
_MANY = 100


class _Poison(Exception):
    pass


class Dialogs:
    """Round trips on dialogs: a transaction sends the next request where it has received the reply."""

    def __init__(self, broker: Broker, count: int) -> None:
        self._dialogs = broker.dialogs
        self._dialogs.create_service("Front", "front")
        self._dialogs.create_service("Shop", "shop", ["DEFAULT"])
        for _ in range(count):
            with self._dialogs.transaction() as work:
                work.send(work.begin_dialog("Front", "Shop"), body=body(0))

    def reply(self) -> bool:
        with self._dialogs.transaction("shop") as work:
            messages = work.receive(max_wait=0.05)
            for message in messages:
                work.send(message.conversation, body=message.body)
        return bool(messages)

    def request(self) -> bool:
        with self._dialogs.transaction("front") as work:
            messages = work.receive(max_wait=0.05)
            for message in messages:
                work.send(message.conversation, body=message.body)
        return bool(messages)


class Plain:
    """The same on two plain queues."""

    def __init__(self, broker: Broker, count: int) -> None:
        self._broker = broker
        for path in ("requests", "replies"):
            broker.create_queue(path)
        broker.sender("requests").send([Message(body(0)) for _ in range(count)])

    def _pass(self, here: str, there: str) -> bool:
        with self._broker.transaction() as tx:
            messages = tx.receive(here, max_wait=0.05)
            for message in messages:
                tx.send(there, Message(message.body))
        return bool(messages)

    def reply(self) -> bool:
        return self._pass("requests", "replies")

    def request(self) -> bool:
        return self._pass("replies", "requests")


def in_turn(way: Dialogs | Plain, seconds: float) -> float:
    """Return round trips a second, one after the other, by one thread."""
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        done += way.reply() and way.request()
    return done / (time.perf_counter() - begun)


def at_once(way: Dialogs | Plain, seconds: float) -> float:
    """Return round trips a second, by four threads at each end."""
    counts = [0] * _THREADS
    end = time.perf_counter() + seconds

    def repeat(act: Callable[[], bool], place: int | None) -> None:
        while time.perf_counter() < end:
            done = act()
            if place is not None:
                counts[place] += done

    threads = [threading.Thread(target=repeat, args=(way.request, n)) for n in range(_THREADS)]
    threads += [threading.Thread(target=repeat, args=(way.reply, None)) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def drain(broker: Broker, conversations: int, poison: int) -> float:
    """Let readers finish conversations of two messages; return how many a second without the poison."""
    dialogs = broker.dialogs
    dialogs.create_service("Front", "front")
    dialogs.create_service("Shop", "shop", ["DEFAULT"], failures=1)
    for number in range(conversations):
        with dialogs.transaction() as work:
            handle = work.begin_dialog("Front", "Shop")
            work.send(handle, body=b"poison" if number < poison else b"first")
            work.send(handle, body=b"second")
    begun, done = time.perf_counter(), 0
    while True:
        try:
            with dialogs.transaction("shop") as work:
                messages = work.receive()
                if not messages:
                    break
                if messages[0].body == b"poison":
                    raise _Poison
                done += messages[0].body == b"second"
        except _Poison:
            continue
    assert done == conversations - poison
    return done / (time.perf_counter() - begun)


def begin_and_end(broker: Broker, count: int) -> tuple[float, int]:
    """Begin and end dialogs; return how many a second, and how many rows are left of them."""
    dialogs = broker.dialogs
    dialogs.create_service("Front", "front")
    dialogs.create_service("Shop", "shop", ["DEFAULT"])
    begun = time.perf_counter()
    for _ in track(range(count), "dialogs begun and ended", transient=True):
        with dialogs.transaction() as work:
            handle = work.begin_dialog("Front", "Shop")
            work.send(handle, body=b"hello")
        with dialogs.transaction("shop") as work:
            (message,) = work.receive()
            work.end(message.conversation)
        with dialogs.transaction("front") as work:
            work.receive()
    rate = count / (time.perf_counter() - begun)
    tables = ("conversations", "dialog_log", "messages", "sessions")
    with broker.transaction() as tx:
        left = [tx.execute(f"SELECT count(*) FROM lazaretto_{table}").fetchone()[0] for table in tables]
    return rate, sum(left)


@contextlib.contextmanager
def _stores(name: str, folder: Path) -> Iterator[Callable[[], Broker]]:
    """Yield a function that opens a new store each time."""
    numbers = iter(range(1_000_000))
    if name == "file":
        yield lambda: lazaretto.connect(folder / f"{next(numbers)}.db")
        return
    folder.chmod(0o755)
    server = PostgresServer(folder)
    try:
        separator = "&" if "?" in server.url else "?"
        yield lambda: lazaretto.connect(f"{server.url}{separator}schema=s{next(numbers)}", timeout=60.0)
    finally:
        server.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", default="file,server", help="file, server or both")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dialogs", type=int, default=10_000, help="how many are begun and ended")
    parser.add_argument("--dir", type=Path, default=Path())
    arguments = parser.parse_args()
    table = Table("", "dialogs", "plain queues", "ratio (least to most)")
    for name in arguments.stores.split(","):
        with tempfile.TemporaryDirectory(dir=arguments.dir) as here, _stores(name, Path(here)) as connect:
            for title, count, measure in (
                ("round trips, one dialog", 1, in_turn),
                (f"round trips, {_MANY} dialogs, 4 threads at each end", _MANY, at_once),
            ):
                rates: list[tuple[float, float]] = []
                for _ in range(arguments.rounds):
                    with connect() as one:
                        ours = measure(Dialogs(one, count), arguments.seconds)
                    with connect() as other:
                        rates.append((ours, measure(Plain(other, count), arguments.seconds)))
                ratios = sorted(ours / plain for ours, plain in rates)
                medians = [statistics.median(column) for column in zip(*rates, strict=True)]
                spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
                table.add_row(f"{name}: {title}", *(f"{rate:,.0f}/s" for rate in medians), spread)
            clean, mixed = [], []
            for _ in range(arguments.rounds):
                with connect() as one:
                    clean.append(drain(one, 1_000, 0))
                with connect() as other:
                    mixed.append(drain(other, 1_000, 10))
            ratios = sorted(b / a for a, b in zip(clean, mixed, strict=True))
            spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
            rate = f"{statistics.median(mixed):,.0f}/s"
            table.add_row(f"{name}: 1,000 conversations, 10 with poison; to none", rate, "", spread)
            with connect() as one:
                speed, left = begin_and_end(one, arguments.dialogs)
            table.add_row(
                f"{name}: {arguments.dialogs:,} begun and ended", f"{speed:,.0f}/s", "", f"{left} rows left"
            )
    Console().print(table)


if __name__ == "__main__":
    main()
