"""Wakes threads and coroutines that wait for messages of a queue: only as many as needed.

Waiters that would take any message of a place are alike: any of them may be woken. Each message wakes one. A
woken waiter that found something, or failed, wakes one more. So a wake-up is lost only if nothing is left.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lazaretto.errors import BrokerClosed


class Elsewhere(Protocol):
    """News from other processes."""

    def number(self, place: int) -> int:
        """Return a number that changes when some process has news of a place."""
        ...

    def watch(self, place: int, alike: bool, threads: int) -> None:
        """Add to the number of threads that wait at a place. Calls must not overlap."""
        ...


class Caller:
    """A waiter without a thread: `wake` is called once when there is news."""

    def __init__(self, wake: Callable[[], object], place: int, alike: str | None) -> None:
        self._wake = wake
        self.place = place
        self.alike = alike
        self.woken = False

    def release(self) -> None:
        """Wake it, as a condition wakes the lock of a thread that waits."""
        self.woken = True
        # A RuntimeError, as of an event loop that is closed, makes the condition wake the next one.
        self._wake()


class Notifier:
    """Counts what may be news for each subqueue, and lets threads wait for the count to change."""

    def __init__(self, first_waiter: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._counts: dict[int, int] = {}
        #: By place: of those who are woken together, and of those who are alike, by what they wait for.
        self._conditions: dict[int, dict[str | None, threading.Condition]] = {}
        self._everywhere = 0
        self._closed = False
        self._first_waiter = first_waiter
        #: How many threads are waiting.
        self.waiting = 0
        self.elsewhere: Elsewhere | None = None

    def count(self, place: int) -> int:
        """Return a number that changes when there may be news."""
        here = self._counts.get(place, 0) + self._everywhere
        return here if self.elsewhere is None else here << 32 | self.elsewhere.number(place)

    def notify(self, places: Mapping[int, int]) -> None:
        """There may be news in these places: so many messages."""
        counts = self._counts
        for place in places:
            counts[place] = counts.get(place, 0) + 1
        # Whoever starts to wait says so before it compares its count, so it is seen here or sees.
        if self.waiting:
            with self._lock:
                for place, messages in places.items():
                    self._wake(place, messages)

    def notify_all(self) -> None:
        """There may be news anywhere: another process has written."""
        with self._lock:
            self._everywhere += 1
            for place in self._conditions:
                self._wake(place, 1)

    def notify_where(self, is_news: Callable[[int], bool]) -> None:
        """There may be news in some places, whose numbers have changed: another process has written."""
        with self._lock:
            for place in self._conditions:
                if is_news(place):
                    self._wake(place, 1)

    def _wake(self, place: int, messages: int) -> None:
        for alike, condition in self._conditions.get(place, {}).items():
            if alike is None:
                condition.notify_all()
            else:
                condition.notify(messages)

    def pass_on(self, place: int, alike: str | None) -> None:
        """Wake one more of those who are alike: there may be more where something was."""
        if alike is not None and self.waiting:
            with self._lock:
                condition = self._conditions.get(place, {}).get(alike)
                if condition is not None:
                    condition.notify(1)

    def wait(self, place: int, seen: int, seconds: float, alike: str | None = None) -> bool:
        """Wait until `count(place)` is no longer `seen`; return False on timeout.

        `alike`: identifies waiters for the same thing, of which any may be woken. A caller that passes it
        must call `pass_on` after it has found something, or failed.
        """
        end = time.monotonic() + seconds
        with self._lock:
            condition = self._condition(place, alike)
            self._start_waiting(place, alike)
            try:
                while self.count(place) == seen:
                    if self._closed:
                        raise BrokerClosed("the broker was closed while waiting")
                    left = end - time.monotonic()
                    if left <= 0 or not condition.wait(min(left, threading.TIMEOUT_MAX)):
                        return self.count(place) != seen
            except BaseException:
                # It may have been woken all the same, as where a signal raises an exception.
                if alike is not None:
                    condition.notify(1)
                raise
            finally:
                self._stop_waiting(place, alike)
        return True

    def enlist(
        self, place: int, seen: int, wake: Callable[[], object], alike: str | None = None
    ) -> Caller | None:
        """Have `wake` called once `count(place)` is no longer `seen`; None if it is not any more.

        Whoever gets a caller gives it to `leave`. `alike`: as for `wait`.
        """
        with self._lock:
            if self._closed:
                raise BrokerClosed("the broker was closed while waiting")
            caller = Caller(wake, place, alike)
            self._start_waiting(place, alike)
            if self.count(place) != seen:
                self._stop_waiting(place, alike)
                return None
            _callers(self._condition(place, alike)).append(caller)
            return caller

    def leave(self, caller: Caller) -> bool:
        """Let a caller wait no longer; return whether it was woken."""
        with self._lock:
            if not caller.woken:
                _callers(self._condition(caller.place, caller.alike)).remove(caller)
            self._stop_waiting(caller.place, caller.alike)
            return caller.woken

    def _condition(self, place: int, alike: str | None) -> threading.Condition:
        conditions = self._conditions.setdefault(place, {})
        condition = conditions.get(alike)
        if condition is None:
            condition = conditions[alike] = threading.Condition(self._lock)
        return condition

    def _start_waiting(self, place: int, alike: str | None) -> None:
        self.waiting += 1
        if self.elsewhere is not None:
            # Before it compares: who tells of news does so first, and then looks who waits.
            self.elsewhere.watch(place, alike is not None, 1)
        if self.waiting == 1:
            self._first_waiter()

    def _stop_waiting(self, place: int, alike: str | None) -> None:
        self.waiting -= 1
        if self.elsewhere is not None:
            self.elsewhere.watch(place, alike is not None, -1)

    def close(self) -> None:
        """Wake all waiters, permanently."""
        with self._lock:
            self._closed = True
            for conditions in self._conditions.values():
                for condition in conditions.values():
                    condition.notify_all()


def _callers(condition: threading.Condition) -> deque[Any]:
    """Return those who wait for a condition, in order: locks of threads, and callers."""
    waiters: deque[Any] = condition._waiters  # type: ignore[attr-defined]
    return waiters
