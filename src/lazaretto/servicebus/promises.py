"""Numbers of messages that are scheduled in a transaction, told before its commit gives them. Pure."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from typing import Final

from lazaretto.errors import MessageNotFound
from lazaretto.servicebus.numbers import read_number

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
