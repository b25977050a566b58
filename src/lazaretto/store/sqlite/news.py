"""Exchanges news with other processes on a store: where there may be messages to receive."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping

from lazaretto.store.sqlite.wake_file import BUCKETS, FIRST_NEWS, READER_BELL, READERS, WakeFile

#: What readers wait for: any message, for which one of them is enough, or what only they may take.
_ANY, _OWN = 1, 2
#: Delay before a store is woken again because something comes due, in seconds.
_TIMERS_EVERY = 0.01


class News:
    """One process's part in the exchange. A process that does not wait costs the others nothing."""

    def __init__(self, file: WakeFile) -> None:
        self._file = file
        self._numbers = itertools.count(1)
        #: How many threads wait, by bucket: for anything, and for what only they may take.
        self._waiters: dict[int, list[int]] = {}
        self._waiting = 0
        self._known = file.all_news()
        self._awake = False
        self._told_at = 0.0

    def number(self, place: int) -> int:
        """Return a number that changes when some process has news of a place."""
        return self._file.news(place % BUCKETS)

    def watch(self, place: int, alike: bool, threads: int) -> None:
        """Add to the number of threads that wait at a place. Calls must not overlap."""
        bucket = place % BUCKETS
        waiters = self._waiters.setdefault(bucket, [0, 0])
        waiters[not alike] += threads
        self._file.set_wants(bucket, (_ANY if waiters[0] else 0) | (_OWN if waiters[1] else 0))
        self._waiting += threads
        self._file.set_waiting(READERS, self._waiting > 0)

    # -- telling --------------------------------------------------------------------------------

    def tell(self, places: Mapping[int, int]) -> None:
        """Record news of these places, which threads that start to wait now see, and wake other processes."""
        file = self._file
        for place in places:
            # By the slot's number no two processes take the same one.
            file.words[FIRST_NEWS + place % BUCKETS] = file.slot << 24 | next(self._numbers) & 0xFF_FFFF
        if file.find_reader() >= 0:
            self._ring(places)

    def _ring(self, places: Mapping[int, int]) -> None:
        """Wake other processes that wait for messages of these places, no more than needed."""
        file = self._file
        slots = file.waiting(READERS)
        if not slots or slots == [file.slot]:
            return
        for place, messages in places.items():
            bucket = place % BUCKETS
            # Takes turns, so that no process is woken for all.
            start = next(self._numbers) % len(slots)
            for slot in slots[start:] + slots[:start]:
                wants = 0 if slot == file.slot else file.wants(slot, bucket)
                # One that has been rung, and not heard it yet, will look behind this commit anyway.
                if wants & _OWN or (wants and messages > 0):
                    messages -= file.ring(slot, READER_BELL)

    def ring_for_timer(self) -> None:
        """Make the waiting processes, and this one, look for timers that are due soon."""
        file = self._file
        for slot in {file.slot, *file.waiting(READERS)}:
            file.set_timers(slot)
            file.ring(slot, READER_BELL)

    # -- hearing --------------------------------------------------------------------------------

    def wake(self) -> None:
        """End the current `listen`, or the next one if none is running."""
        self._awake = True
        self._file.ring(self._file.slot, READER_BELL)

    def listen(self, seconds: float, notify: Callable[[Callable[[int], bool]], None]) -> None:
        """Listen for some seconds, less if woken or if a timer is due soon.

        `notify` is called with a function that returns whether a place has news.
        """
        file, end = self._file, time.monotonic() + seconds
        while True:
            # First: what comes after this rings again.
            file.silence(READER_BELL)
            if self._awake:
                self._awake = False
                return
            if file.take_timers():
                end = min(end, self._told_at + _TIMERS_EVERY)
            known, self._known = self._known, file.all_news()
            if known != self._known:
                notify(_changed(known, self._known))
            left = end - time.monotonic()
            if left <= 0:
                self._told_at = time.monotonic()
                return
            file.sleep(READER_BELL, left)


def _changed(before: bytes, now: bytes) -> Callable[[int], bool]:
    old, new = memoryview(before).cast("I"), memoryview(now).cast("I")
    return lambda place: old[place % BUCKETS] != new[place % BUCKETS]
