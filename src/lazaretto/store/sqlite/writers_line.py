"""The queue of processes that want to write to a store, so that each has its turn.

SQLite's own lock says who writes. Whoever has written wakes who has waited longest, and stands behind the
others if it wants to write again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lazaretto.store.sqlite.wake_file import WRITER_BELL, WRITERS, WakeFile

#: How long one process may go on writing while others wait, in nanoseconds.
_TURN = 2_000_000
#: Who lives and waits has looked up by itself since then, in nanoseconds.
_LOOKS_UP = 100_000_000


class WritersLine:
    """One process's place in the line."""

    def __init__(self, file: WakeFile) -> None:
        self._file = file
        #: When this process's turn ends; None while nobody waits.
        self.turn_ends: int | None = None

    def is_others_turn(self) -> bool:
        """Return whether this process has had its turn, and others wait."""
        ends = self.turn_ends
        return ends is not None and time.monotonic_ns() >= ends and self._first() is not None

    def _first(self) -> int | None:
        """Return the slot that has waited longest, None if none waits."""
        slots = self._file.waiting(WRITERS)
        if not slots:
            return None
        now, first, longest = time.monotonic_ns(), None, 1 << 64
        for slot in slots:
            since, latest = self._file.times(slot)
            if since < longest and now - latest < _LOOKS_UP:
                first, longest = slot, since
        return first

    @contextmanager
    def standing(self) -> Iterator[Callable[[float], None]]:
        """Wait in line within a `with` block; gives a function that sleeps until one's turn or a timeout."""
        file, since = self._file, time.monotonic_ns()

        def sleep(seconds: float) -> None:
            file.set_times(since, time.monotonic_ns())
            file.sleep(WRITER_BELL, seconds)
            file.silence(WRITER_BELL)

        file.silence(WRITER_BELL)
        file.set_times(since, since)
        file.set_waiting(WRITERS, True)
        try:
            yield sleep
        finally:
            file.set_waiting(WRITERS, False)
            self.turn_ends = time.monotonic_ns() + _TURN

    def pass_on(self) -> None:
        """Wake whoever is next. To be called after each write."""
        first = self._first() if self._file.find_writer() >= 0 else None
        if first is None:
            self.turn_ends = None
            return
        if self.turn_ends is None:
            self.turn_ends = time.monotonic_ns() + _TURN
        self._file.ring(first, WRITER_BELL)
