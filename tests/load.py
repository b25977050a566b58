"""Work that goes on whatever fails, and knows what it was told: for tests of what is lost or done twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable

import lazaretto
from lazaretto import ManualClock

QUEUE = "work"
#: How long a test waits for work to be done, in seconds.
PATIENCE = 120


class Load:
    """One thread that sends to a queue, and two that receive from it and complete.

    `send`, `receive`: what they do, until `stopped`; kinds of load say how.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.sending: set[str] = set()
        self.sent: set[str] = set()
        self.completing: set[str] = set()
        self.completed: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._threads = [threading.Thread(target=one) for one in (self.send, self.receive, self.receive)]

    def send(self) -> None:
        """Send until stopped."""
        raise NotImplementedError

    def receive(self) -> None:
        """Receive and complete until stopped."""
        raise NotImplementedError

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def wait_for(self, more: int) -> None:
        """Wait until so many more messages are completed."""
        wanted, end = len(self.completed) + more, time.monotonic() + PATIENCE
        while len(self.completed) < wanted:
            assert time.monotonic() < end, (len(self.completed), wanted, self.errors)
            time.sleep(0.005)

    def note(self, error: Exception) -> None:
        """Note an error that was met and borne."""
        with self._lock:
            self.errors[type(error).__name__] += 1

    def note_completed(self, names: Iterable[str]) -> None:
        """Note messages that the store says are completed."""
        names = list(names)
        with self._lock:
            self.completing.update(names)
            self.completed.update(names)

    def check(self, url: str) -> None:
        """What was sent is there, or was completed; what was completed is gone, and was so once."""
        with lazaretto.connect(url, clock=ManualClock(time.time() + 3600)) as broker:
            assert broker.check() == []
            left = {message.message_id for message in broker.peek(QUEUE, 100_000)}
            dead = {letter.message_id for letter in broker.dead_letters(QUEUE)}
        assert max(self.completed.values()) == 1
        assert not left & set(self.completed)
        assert left | dead <= self.sending
        assert self.sent - left - dead <= self.completing
