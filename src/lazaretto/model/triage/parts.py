"""Facts about parts of a cause's letters, samples of them, and how parts become a whole, in any order."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

import msgspec

_MASK = (1 << 64) - 1

#: Microseconds of an hour.
HOUR = 3_600_000_000


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


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Letters of one cause: how many, the lowest number, when the first and last came, how many by hour.

    `sample`: the numbers with the lowest hashes, in no order.
    """

    cause: int
    letters: int
    first: int
    began: int
    latest: int
    hours: dict[int, int]
    sample: list[int]

    def merged(self, other: Part, most: int) -> Part:
        """Return both parts as one, with a sample of `most` numbers."""
        sample = [*self.sample, *other.sample]
        return Part(
            cause=self.cause,
            letters=self.letters + other.letters,
            first=min(self.first, other.first),
            began=min(self.began, other.began),
            latest=max(self.latest, other.latest),
            hours=dict(Counter(self.hours) + Counter(other.hours)),
            sample=sample if len(sample) <= most else heapq.nsmallest(most, sample, key=hashed),
        )


def merge(parts: Iterable[Part], most: int) -> dict[int, Part]:
    """Return parts as one for each cause."""
    merged: dict[int, Part] = {}
    for part in parts:
        before = merged.get(part.cause)
        merged[part.cause] = part if before is None else before.merged(part, most)
    return merged
