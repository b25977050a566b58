"""Which completed messages a queue keeps as examples of good ones: their sequence numbers decide."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lazaretto.model.keys import number_in_partition

#: One message of each block of 2^level sequence numbers is kept. The level is low for a queue's first
#: messages, so that there soon are some, and grows so that a busy queue pays next to nothing.
_LOWEST_LEVEL, _USUAL_LEVEL, _HIGHEST_LEVEL = 6, 8, 12
_FIRST_BITS, _BLOCKS_BITS = 13, 9
#: How many times rarer than what is kept is what looks whether too much is.
_LOOKS = 4
#: A longer body is not kept, in bytes; and how many bytes there are for each message.
LONGEST_BODY = 65_536
BYTES_EACH = 2_048
_LEFT = 0.75
#: Bits of the hash that orders numbers of one level.
_PLACE_BITS = 16
_DAY = 86_400_000_000
_MASK = (1 << 64) - 1


def _level_of(number: int) -> int:
    bits = number.bit_length()
    if bits <= _FIRST_BITS:
        return _LOWEST_LEVEL
    return min(_HIGHEST_LEVEL, max(_USUAL_LEVEL, bits - _BLOCKS_BITS))


@functools.lru_cache(4096)
def _chosen(block: int, level: int) -> int:
    """Return the number chosen of a block: one of those that are chosen of its halves, by a hash."""
    for step in range(level - 1, -1, -1):
        x = (block * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & _MASK
        x = ((x ^ (x >> 31)) * 0xD6E8FEB86659FD93) & _MASK
        block = block << 1 | (x >> 60 & 1)
    return block


def _is_chosen(number: int, level: int) -> bool:
    return _chosen(number >> level, level) == number


def choose(keys: Sequence[int]) -> list[int]:
    """Return those of the keys of one queue whose messages are kept."""
    if len(keys) == 1:
        number = number_in_partition(keys[0])
        level = _level_of(number)
        return [keys[0]] if _chosen(number >> level, level) == number else []
    lowest, highest = min(keys), max(keys)
    first, last = number_in_partition(lowest), number_in_partition(highest)
    level = _level_of(first)
    if highest - lowest != last - first or last - first >> level > len(keys):
        return [key for key in keys if _is_chosen(n := number_in_partition(key), _level_of(n))]
    base = lowest - first
    candidates: list[int] = []
    while first <= last:
        # Numbers of one length are of one level, and no block has some of two lengths above the first.
        end = min(last + 1, 1 << max(first.bit_length(), _FIRST_BITS))
        level = _level_of(first)
        candidates += [
            base + _chosen(block, level) for block in range(first >> level, (end - 1 >> level) + 1)
        ]
        first = end
    if len(candidates) < 4:
        return [key for key in candidates if key in keys]
    return sorted(set(candidates).intersection(keys))


def is_time_to_look(chosen: Iterable[int]) -> bool:
    """Return whether what a queue keeps is to be looked at, now that it keeps these too."""
    return any(_is_chosen(n := number_in_partition(key), _level_of(n) + _LOOKS) for key in chosen)


class Kept(NamedTuple):
    """A message that is kept: since when, in microseconds, and how many bytes it has."""

    key: int
    kept: int
    size: int


def superfluous(kept: Sequence[Kept], most: int, now: int) -> list[int]:
    """Return the keys of those that are too many: a quarter of all, once there are more than `most`.

    Those go that are chosen at the fewest levels, and each day of age counts as a level: so what is left is
    as if fewer had been chosen from the first, and half as many of each earlier day.
    """
    if len(kept) <= most and sum(one.size for one in kept) <= most * BYTES_EACH:
        return []
    return unfair(kept, most, now)


def unfair(kept: Sequence[Kept], most: int, now: int) -> list[int]:
    """Return the keys of those that would be gone by now if there had been no room for more.

    All that came since some went are there, while of earlier ones only the best are. Without these there are
    at most three quarters of `most`, and as many of each part of the latest work.
    """
    most_bytes = most * BYTES_EACH

    def worth(one: Kept) -> float:
        number = number_in_partition(one.key)
        level = _LOWEST_LEVEL
        while level < 40 and _is_chosen(number, level + 1):
            level += 1
        # Within a level a hash decides, not the age: half as many reach each further level, evenly between.
        place = (_chosen(number, _PLACE_BITS) & (1 << _PLACE_BITS) - 1) / (1 << _PLACE_BITS)
        return level - math.log2(1 - place / 2) - (now - one.kept) / _DAY

    ordered = sorted(kept, key=worth, reverse=True)
    number = size = 0
    for one in ordered:
        size += one.size
        if number >= _LEFT * most or size > _LEFT * most_bytes:
            break
        number += 1
    return [one.key for one in ordered[number:]]
