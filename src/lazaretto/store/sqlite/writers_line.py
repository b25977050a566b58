"""The queue of processes that want to write to a store, so that each has its turn.

SQLite's own lock says who writes. Whoever has had its turn hands it to the one that has waited longest, and
stands behind the others if it wants to write again. Nobody else in the line tries meanwhile; the first of it
does if whoever has the turn pauses for too long. A turn is several commits long: the first of each turn costs
about twice as much as the next ones: nothing of the file is in the processor's caches, or in SQLite's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lazaretto.store.sqlite.wake_file import WRITER_BELL, WRITERS, WakeFile

#: How long one process may go on writing while others wait, in nanoseconds.
_TURN = 2_000_000
#: Who writes again within this time does so often, in nanoseconds.
_OFTEN = 1_000_000
#: How soon whoever has its turn mostly writes again, in nanoseconds; beside other work on the processors.
_PAUSE = 500_000
_OVER = 0
#: Who lives and waits has looked up by itself since then, in nanoseconds.
_LOOKS_UP = 100_000_000


class WritersLine:
    """One process's place in the line."""

    def __init__(self, file: WakeFile) -> None:
        self._file = file
        #: When this process's turn ends; _OVER once it is another's; None while nobody waits.
        self.turn_ends: int | None = None
        self._wrote = 0

    def is_others_turn(self) -> bool:
        """Return whether this process has had its turn, and others wait; whoever is next is woken, once."""
        ends, file = self.turn_ends, self._file
        if ends is None:
            return False
        owns = file.owner == file.slot
        if owns and ends and time.monotonic_ns() < ends:
            return False
        if file.find_writer() < 0:
            self.turn_ends = None
            return False
        if not owns:
            # Whoever was next has not waited for this process, which was away for longer than a pause.
            self.turn_ends = _OVER
        elif ends:
            now = time.monotonic_ns()
            first, _ = self._first(now)
            if first is None:
                self.turn_ends = None
                return False
            # Once: a second one that is woken would take the first one's turn away.
            self.turn_ends = _OVER
            # All others sleep on meanwhile.
            file.owner, file.pause = first, now + _PAUSE
            file.ring(first, WRITER_BELL)
        return True

    def _first(self, now: int) -> tuple[int | None, int]:
        """Return the slot that has waited longest, None if none waits; and since when it does."""
        first, longest = None, 1 << 64
        for slot in self._file.waiting(WRITERS):
            since, latest = self._file.times(slot)
            if since < longest and now - latest < _LOOKS_UP:
                first, longest = slot, since
        return first, longest

    @contextmanager
    def standing(self) -> Iterator[Callable[[float], bool]]:
        """Wait in line within a `with` block.

        Gives a function that sleeps until one's turn or a timeout; it returns whether the file may be free.
        """
        file, since = self._file, time.monotonic_ns()

        def sleep(seconds: float) -> bool:
            file.set_times(since, time.monotonic_ns())
            file.sleep(WRITER_BELL, seconds)
            file.silence(WRITER_BELL)
            if file.owner == file.slot:
                return True
            now = time.monotonic_ns()
            if 0 < file.pause - now <= _PAUSE:
                # In a pause the file is free, but soon used again.
                return False
            # Whoever had its turn writes no more: who is first in the line is next.
            return self._first(now)[0] in (file.slot, None)

        file.silence(WRITER_BELL)
        file.set_times(since, since)
        file.set_waiting(WRITERS, True)
        try:
            yield sleep
        finally:
            file.set_waiting(WRITERS, False)
            now = time.monotonic_ns()
            if file.owner != file.slot or not self.turn_ends or self.turn_ends < now:
                file.owner, self.turn_ends = file.slot, now + _TURN

    def pass_on(self) -> None:
        """Wake whoever is next once this process has had its turn. To be called after each write."""
        file, now, wrote = self._file, time.monotonic_ns(), self._wrote
        self._wrote = now
        if file.find_writer() < 0:
            self.turn_ends = None
            return
        if self.turn_ends is None:
            if file.owner != file.slot and 0 < file.pause - now <= _PAUSE:
                # It came between two commits of another's turn.
                return
            first, since = self._first(now)
            if first is None:
                return
            # Who writes now and then has no turn.
            file.owner, self.turn_ends = file.slot, since + _TURN if now - wrote < _OFTEN else now
        if not self.is_others_turn():
            file.pause = now + _PAUSE
