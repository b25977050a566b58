"""Serial numbers of 32 bits, which begin again behind the last (RFC 1982)."""

from __future__ import annotations

_MODULUS = 1 << 32
_HALF = 1 << 31


def add(number: int, count: int) -> int:
    """Return the number `count` places on."""
    return (number + count) % _MODULUS


def distance(first: int, second: int) -> int:
    """Return how far the second lies behind the first: negative if it lies before it."""
    found = (second - first) % _MODULUS
    return found if found < _HALF else found - _MODULUS
