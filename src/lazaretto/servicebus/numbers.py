"""Sequence numbers as Service Bus writes them: the highest 16 bits are the partition's. Pure."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from typing import Final

from lazaretto.errors import MessageNotFound
from lazaretto.model.keys import PARTITION_SEQUENCE_BITS

#: Promised numbers begin here, beyond all that a queue gives.
_FIRST: Final = 1 << 62
#: Promises that are remembered; beyond them, the first ones are forgotten.
_MOST: Final = 10_000


class Promises:
    """Stand-ins for numbers, which clients may give back to cancel what they scheduled."""

    def __init__(self) -> None:
        # Another server, or this one started again, must not take one of them for its own.
        self._next = itertools.count(_FIRST + secrets.randbits(60))
        self._kept: dict[int, int] = {}

    def make(self, count: int) -> list[int]:
        """Return numbers that stand for those that a commit will give."""
        return list(itertools.islice(self._next, count))

    def keep(self, promised: Sequence[int], numbers: Sequence[int]) -> None:
        """Remember which numbers a commit has given for those that were promised."""
        self._kept.update(zip(promised, numbers, strict=True))
        while len(self._kept) > _MOST:
            del self._kept[next(iter(self._kept))]

    def number_of(self, told: int) -> int:
        """Return the number that a client means. Raises MessageNotFound for a promise that was not kept."""
        if told < _FIRST:
            return read_number(told)
        if told not in self._kept:
            raise MessageNotFound("expected the number of a scheduled message, got one that was never given")
        return self._kept[told]


_PARTITION_BITS: Final = 48
_LAST: Final = (1 << PARTITION_SEQUENCE_BITS) - 1
_LAST_HERE: Final = (1 << _PARTITION_BITS) - 1


def written_number(number: int) -> int:
    """Return a number of this store as clients get it; it is the same in the first partition."""
    if number <= _LAST:
        return number
    return number >> PARTITION_SEQUENCE_BITS << _PARTITION_BITS | number & _LAST


def read_number(number: int) -> int:
    """Return the number in this store that a client means, or that of the place where it would be."""
    if number <= _LAST:
        return number
    return number >> _PARTITION_BITS << PARTITION_SEQUENCE_BITS | min(number & _LAST_HERE, _LAST)
