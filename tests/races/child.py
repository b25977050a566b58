"""Works a queue off with several threads, and writes down who held which message when."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import lazaretto
from lazaretto import Broker, MessageLockLost

QUEUE = "race"


class Span(NamedTuple):
    """One holder's time with a message: from hand-over until the settle began, or the lock's end."""

    sequence_number: int
    attempt: int
    start: float
    end: float
    outcome: str


def work(broker: Broker, note: Callable[[Span], object], seed: int) -> None:
    """Complete most messages, abandon, release and renew some, and lose a few locks, until none is left."""
    draw = random.Random(seed)
    idle = 0
    with broker.receiver(QUEUE) as receiver:
        while idle < 3:
            batch = receiver.receive(draw.randrange(1, 8), max_wait=0.6)
            idle = 0 if batch else idle + 1
            for message in batch:
                start = time.time()
                assert message.locked_until is not None
                lock_end = message.locked_until.timestamp()
                what = draw.random()
                settled_at, outcome = time.time(), "completed"
                try:
                    if what < 0.1:
                        outcome = "abandoned"
                        receiver.abandon(message, error="Now: and then")
                    elif what < 0.2:
                        outcome = "released"
                        receiver.release(message)
                    elif what < 0.22:
                        # Keep it too long: somebody else gets it, and this holder's settle must fail.
                        settled_at, outcome = lock_end, "kept"
                        time.sleep(max(0.0, lock_end - time.time()) + 0.05)
                        receiver.complete(message)
                        outcome = "stale"
                    else:
                        if what < 0.3:
                            receiver.renew_lock(message)
                        settled_at = time.time()
                        receiver.complete(message)
                except MessageLockLost:
                    settled_at, outcome = min(settled_at, lock_end), "lost"
                note(
                    Span(
                        message.sequence_number, message.attempt, min(start, settled_at), settled_at, outcome
                    )
                )


def read_spans(journal: Path) -> list[Span]:
    """Return what a process wrote down."""
    spans = []
    for line in journal.read_text().splitlines():
        number, attempt, start, end, outcome = line.split()
        spans.append(Span(int(number), int(attempt), float(start), float(end), outcome))
    return spans


def main(store: str, journal: str) -> None:
    lock = threading.Lock()
    with lazaretto.connect(Path(store)) as broker, Path(journal).open("w") as file:

        def note(span: Span) -> None:
            with lock:
                file.write(" ".join(map(str, span)) + "\n")

        threads = [threading.Thread(target=work, args=(broker, note, i)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
