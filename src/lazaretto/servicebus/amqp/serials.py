"""Serial numbers of 32 bits, which begin again behind the last (RFC 1982)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_MODULUS = 1 << 32
_MASK = _MODULUS - 1
_HALF = 1 << 31


def add(number: int, count: int) -> int:
    """Return the number `count` places on."""
    return number + count & _MASK


def forward(first: int, second: int) -> int:
    """Return how far the second lies behind the first, if it never lies before it."""
    return second - first & _MASK


def distance(first: int, second: int) -> int:
    """Return how far the second lies behind the first: negative if it lies before it."""
    difference = (second - first) % _MODULUS
    return difference if difference < _HALF else difference - _MODULUS


def ranges(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of each run of numbers that follow each other. No number may come twice."""
    if ids and max(ids) - min(ids) == len(ids) - 1:
        yield min(ids), max(ids)
        return
    first = last = None
    for id_ in ids:
        if last is None or first is None:
            first = id_
        elif id_ != add(last, 1):
            yield first, last
            first = id_
        last = id_
    if first is not None and last is not None:
        yield first, last
