"""Samples by hash: the same sample whatever the order of the items, or the parts they come in."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

_MASK = (1 << 64) - 1


def hashed(number: int) -> int:
    """Return a 64-bit hash, which is always the same for the same input."""
    x = (number + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Sample:
    """The added numbers with the lowest hashes, up to a limit."""

    __slots__ = ("_heap", "_most", "count")

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[int, int]] = []
        self.count = 0

    def add(self, number: int) -> None:
        self.count += 1
        entry = -hashed(number), number
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        elif entry > self._heap[0]:
            heapq.heapreplace(self._heap, entry)

    def merge(self, count: int, numbers: Iterable[int]) -> None:
        """Add what another sample, with the same limit or a higher one, chose out of `count` numbers."""
        before = self.count
        for number in numbers:
            self.add(number)
        self.count = before + count

    def numbers(self) -> list[int]:
        """Return the numbers, lowest hash first."""
        return [number for _, number in sorted(self._heap, reverse=True)]
