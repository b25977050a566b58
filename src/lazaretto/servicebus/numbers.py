"""Sequence numbers as Service Bus writes them: the highest 16 bits are the partition's. Pure."""

from __future__ import annotations

from typing import Final

from lazaretto.model.keys import PARTITION_SEQUENCE_BITS

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
