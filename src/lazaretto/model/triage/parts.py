"""Facts about parts of a cause's letters, and how parts become a whole, in any order."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

import msgspec

from lazaretto.model.triage.samples import hashed

#: Microseconds of an hour.
HOUR = 3_600_000_000


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
