"""The rates of a process between the commits that write them, one a second at most."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from lazaretto.model.rates import ALL_QUEUES, EVER, KINDS, MINUTE, SPANS

#: How long counts are collected before a commit writes them, in seconds.
_EVERY = 1.0
#: How many counts are kept one by one, before they are summed.
_MOST = 10_000


class RateLog:
    """Counts of committed operations that no commit has written. Whoever may write uses it.

    A commit only appends to a list, because it is part of every send; the rest is done once a second.
    """

    def __init__(self) -> None:
        #: What was counted in the minute that began at a time, with queue and kind in one number, and how
        #: much of it is committed.
        self.entries: list[tuple[int, int]] = []
        self.kept = 0
        self.began = self.until = 0
        #: Whether the next commit writes all.
        self.due = False
        self._sums: dict[int, Counter[tuple[int, int]]] = {}
        self._written = time.monotonic()

    def turn(self, now: int) -> None:
        """Start on another minute; what is not committed is gone."""
        self._fold()
        self.began = now - now % MINUTE
        self.until = self.began + MINUTE

    def keep(self) -> None:
        """Keep what a commit has counted."""
        self.kept = len(self.entries)
        if self.kept > _MOST:
            self._fold()

    def add(self, other: RateLog) -> None:
        """Add what another log's commit has counted."""
        del self.entries[self.kept :]
        self.turn(other.began)
        self.entries += other.entries
        self.keep()

    def _fold(self) -> None:
        if self.kept:
            # The same count comes again and again.
            self._sums.setdefault(self.began // MINUTE, Counter()).update(self.entries[: self.kept])
        self.entries.clear()
        self.kept = 0

    @property
    def any(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.kept or self._sums)

    def left(self) -> bool:
        """Have the next commit write, if it is time; return whether none has since that was said."""
        if not self.any:
            return False
        if not self.due:
            self.due = time.monotonic() >= self._written + _EVERY
            return False
        return True

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Give the rows to add, in one order in all processes: queue, span, start and counts."""
        rows: dict[tuple[int, int, int], list[int]] = {}
        latest = Counter(self.entries[: self.kept])
        for minute, sums in (*self._sums.items(), (self.began // MINUTE, latest)):
            for (key, amount), times in sums.items():
                for span in (*SPANS.values(), EVER):
                    start = minute - minute % span if span else 0
                    for queue in (key >> 3, ALL_QUEUES):
                        rows.setdefault((queue, span, start), [0] * KINDS)[key & 7] += amount * times
        return ((*start, *counts) for start, counts in sorted(rows.items()))

    def written(self) -> None:
        """Forget what a commit has written, which is all that was kept before it."""
        self._sums = {}
        del self.entries[: self.kept]
        self.kept = 0
        self._written = time.monotonic()
        self.due = False
