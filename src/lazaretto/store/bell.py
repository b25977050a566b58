"""Wakes the threads that wait for something to come into a queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from lazaretto.errors import BrokerClosed


class Bell:
    """Counts what may be news for each subqueue, and lets threads wait for the count to change."""

    def __init__(self, first_waiter: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._counts: dict[int, int] = {}
        self._conditions: dict[int, threading.Condition] = {}
        self._everywhere = 0
        self._closed = False
        self._first_waiter = first_waiter
        #: How many threads are waiting.
        self.waiting = 0

    def count(self, place: int) -> int:
        """Return a number that changes when there may be news."""
        return self._counts.get(place, 0) + self._everywhere

    def ring(self, places: Collection[int]) -> None:
        """There may be news in these places."""
        counts = self._counts
        for place in places:
            counts[place] = counts.get(place, 0) + 1
        # Whoever starts to wait says so before it compares its count, so it is seen here or sees.
        if self.waiting:
            with self._lock:
                for place in places:
                    condition = self._conditions.get(place)
                    if condition is not None:
                        condition.notify_all()

    def ring_all(self) -> None:
        """There may be news anywhere: another process has written."""
        with self._lock:
            self._everywhere += 1
            for condition in self._conditions.values():
                condition.notify_all()

    def wait(self, place: int, seen: int, seconds: float) -> bool:
        """Wait until `count(place)` is no longer `seen`; return False when the time is over."""
        end = time.monotonic() + seconds
        with self._lock:
            condition = self._conditions.get(place)
            if condition is None:
                condition = self._conditions[place] = threading.Condition(self._lock)
            self.waiting += 1
            if self.waiting == 1:
                self._first_waiter()
            try:
                while self.count(place) == seen:
                    if self._closed:
                        raise BrokerClosed("the broker was closed while waiting")
                    left = end - time.monotonic()
                    if left <= 0 or not condition.wait(min(left, threading.TIMEOUT_MAX)):
                        return self.count(place) != seen
            finally:
                self.waiting -= 1
        return True

    def close(self) -> None:
        """Wake everybody for good."""
        with self._lock:
            self._closed = True
            for condition in self._conditions.values():
                condition.notify_all()
