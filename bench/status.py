"""Status: `python -m bench.status` measures its first page, pages of dead letters and searches.

The letters are written into a SQLite store at once, as copies of 200 that were set aside through the
broker, one for each cause.
"""

from __future__ import annotations

import argparse
import logging
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lazaretto
from lazaretto import DeadLetterFilter, Message

CAUSES = 200


def fill(path: Path, letters: int, queues: int) -> None:
    """Make a store with so many letters in one queue, and so many queues."""
    with lazaretto.connect(path) as broker:
        broker.create_queues([f"shop/q{n:05}" for n in range(queues)])
        broker.create_queue("orders")
        broker.sender("orders").send([Message(b'{"n": %d}' % n + b" " * 290) for n in range(CAUSES)])
        receiver = broker.receiver("orders")
        for n, message in enumerate(receiver.receive(CAUSES)):
            receiver.dead_letter(message, reason=f"reason {chr(97 + n % 26)}{chr(97 + n // 26)}")
        broker.triage("orders")
    with sqlite3.connect(path) as connection:
        for table in ("lazaretto_messages", "lazaretto_dead_letters"):
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            others = ", ".join(name for name in names if name != "key")
            step = CAUSES
            while step < letters:
                more = min(step, letters - step)
                connection.execute(
                    f"INSERT INTO {table} (key, {others}) SELECT key + {step}, {others} FROM {table} "
                    f"WHERE (key & 0x3ffffffffff) <= {more}"
                )
                step += more
        connection.execute(
            "UPDATE lazaretto_fingerprints SET waiting = ?, total = ?", 2 * (letters // CAUSES,)
        )
    connection.close()


def measure(name: str, call: Callable[[], object], times: int = 40) -> None:
    """Print what a call takes."""
    call()
    wall, cpu = [], []
    for _ in range(times):
        began, busy = time.perf_counter(), time.process_time()
        call()
        wall.append(1e3 * (time.perf_counter() - began))
        cpu.append(1e3 * (time.process_time() - busy))
    wall.sort()
    print(
        f"{name:44} wall p50 {statistics.median(wall):8.2f} ms  p95 {wall[int(0.95 * times)]:8.2f} ms  "
        f"CPU p50 {statistics.median(cpu):8.2f} ms",
        flush=True,
    )


def main() -> None:
    """Fill a store, and measure."""
    parser = argparse.ArgumentParser(description="Measure how long looks at a large store take.")
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--store", type=Path, default=None)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    folder = given.store or Path(tempfile.mkdtemp())
    path = folder / "status.db"
    if not path.exists():
        fill(path, given.letters, given.queues)
    with lazaretto.connect(path) as broker:
        measure("status, first page", broker.status)
        measure("status, doctor's: all queues", lambda: broker.status(limit=None), 5)
        measure("triage, 200 causes", lambda: broker.triage("orders", explain_for=0))
        measure("page 1, newest first", lambda: broker.dead_letter_page("orders"))
        middle = _cursor_at(broker, given.letters // 2)
        measure("page in the middle", lambda: broker.dead_letter_page("orders", cursor=middle))
        measure("page 1 by time", lambda: broker.dead_letter_page("orders", order="-time"))
        cause = DeadLetterFilter(cause=7)
        measure("page 1 of a cause", lambda: broker.dead_letter_page("orders", cause))
        rare = DeadLetterFilter(text="nowhere to be found")
        measure("a slice of a search", lambda: broker.dead_letter_page("orders", rare), 5)
        measure("a whole search", lambda: list(broker.dead_letters("orders", rare, messages=False)), 1)
        measure("one page of 10,000 queues", lambda: broker.queues(limit=50))


def _cursor_at(broker: lazaretto.Broker, number: int) -> str | None:
    """Return the cursor behind a number: a page that is far from both ends."""
    which = DeadLetterFilter()
    page = broker.dead_letter_page("orders", which, limit=1_000)
    while page.next is not None and page.letters[-1].sequence_number > number:
        page = broker.dead_letter_page("orders", which, limit=1_000, cursor=page.next)
    return page.next


if __name__ == "__main__":
    main()
