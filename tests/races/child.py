"""Works queues off with several threads, and writes down who held what when."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import lazaretto
from lazaretto import NEXT_SESSION, Broker, Message, MessageLockLost, SessionLockLost

QUEUE = "race"
SESSIONS = "sessions"
#: Threads of a process.
THREADS = 2


class Span(NamedTuple):
    """One holder's time with a message: from when it had it until its settle began, or the lock's end."""

    sequence_number: int
    attempt: int
    start: float
    end: float
    outcome: str


Note = Callable[[Span], object]


def work(broker: Broker, note: Note, seed: int, sent: threading.Event) -> None:
    """Complete most messages, abandon, release and renew some, and lose a few locks, until none is left.

    That is not before all is sent.
    """
    draw = random.Random(seed)
    idle = 0
    with broker.receiver(QUEUE) as receiver:
        while idle < 3 or not sent.is_set():
            batch = receiver.receive(draw.randrange(1, 8), max_wait=0.6)
            start = time.time()
            idle = 0 if batch else idle + 1
            for message in batch:
                assert message.locked_until is not None
                what = draw.random()
                settled_at, outcome = time.time(), "completed"
                try:
                    if what < 0.1:
                        outcome = "abandoned"
                        receiver.abandon(message, error="Now: and then")
                    elif what < 0.2:
                        outcome = "released"
                        receiver.release(message)
                    elif what < 0.21:
                        # Keep it too long: somebody else gets it, and this holder's settle must fail.
                        settled_at, outcome = message.locked_until.timestamp(), "kept"
                        time.sleep(max(0.0, settled_at - time.time()) + 0.05)
                        receiver.complete(message)
                        outcome = "stale"
                    else:
                        if what < 0.3:
                            receiver.renew_lock(message)
                        settled_at = time.time()
                        receiver.complete(message)
                except MessageLockLost:
                    outcome = "lost"
                end = min(settled_at, message.locked_until.timestamp())
                note(Span(message.sequence_number, message.attempt, min(start, end), end, outcome))


def send(broker: Broker, count: int, sent: threading.Event) -> None:
    """Send so many messages, one by one and in small lists; tell when that is done."""
    with broker.sender(QUEUE) as sender:
        while count > 0:
            size = min(count, 1 + count % 3)
            sender.send([Message(b"late")] * size)
            count -= size
    sent.set()


def work_sessions(broker: Broker, note: Note, seed: int, sent: threading.Event) -> None:
    """Go from session to session, and lose the lock of one now and then, until none is left.

    The spans' sequence number is the message's, the attempt is the session's name as a number.
    """
    draw = random.Random(seed)
    idle = 0
    while idle < 3 or not sent.is_set():
        with broker.receiver(SESSIONS, session=NEXT_SESSION) as receiver:
            batch = receiver.receive(draw.randrange(1, 5), max_wait=0.6)
            start = time.time()
            idle = 0 if batch else idle + 1
            if not batch:
                continue
            assert receiver.session_locked_until is not None
            lock_end = receiver.session_locked_until.timestamp()
            session = int(receiver.session_id or 0)
            if draw.random() < 0.03:
                time.sleep(max(0.0, lock_end - time.time()) + 0.05)
            for message in batch:
                end, outcome = time.time(), "completed"
                try:
                    receiver.complete(message)
                except SessionLockLost:
                    outcome = "lost"
                end = min(end, lock_end)
                note(Span(message.sequence_number, session, min(start, end), end, outcome))


def read_spans(journal: Path) -> list[Span]:
    """Return what a process wrote down."""
    spans = []
    for line in journal.read_text().splitlines():
        number, attempt, start, end, outcome = line.split()
        spans.append(Span(int(number), int(attempt), float(start), float(end), outcome))
    return spans


def main(store: str, journal: str, job: str, count: str) -> None:
    lock = threading.Lock()
    worker = work if job == "messages" else work_sessions
    with lazaretto.connect(store) as broker, Path(journal).open("w") as file:

        def note(span: Span) -> None:
            with lock:
                file.write(" ".join(map(str, span)) + "\n")

        sent = threading.Event()
        threads = [threading.Thread(target=worker, args=(broker, note, i, sent)) for i in range(THREADS)]
        threads.append(threading.Thread(target=send, args=(broker, int(count), sent)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
