"""A message's body as filters see it: JSON, parsed once, of which a path names a part."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

#: A body above this many bytes is not parsed, so that no message costs a filter more than some milliseconds.
LONGEST_BODY = 1 << 20

#: A key of an object, or the place in an array, from 0.
Step = str | int

_decode = msgspec.json.Decoder().decode
_WHOLE = 1 << 63


class _Missing:
    """The value of a path that names nothing."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


def parse(body: bytes | memoryview | None) -> Any:
    """Return a JSON body decoded; MISSING if it is none, is nested too deep, or is too long."""
    if body is None or len(body) > LONGEST_BODY:
        return MISSING
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return MISSING


class LazyBody:
    """A body that is fetched and parsed when a filter first asks for a part of it.

    `decode`: what makes of a body what JSON could have been made of; its errors mean that it cannot.
    """

    __slots__ = ("_decode", "_fetch", "_parsed")

    def __init__(
        self, fetch: Callable[[], bytes | None] | None, decode: Callable[[bytes], Any] | None = None
    ) -> None:
        self._fetch = fetch
        self._decode = decode
        self._parsed: Any = MISSING

    def value(self) -> Any:
        """Return the body decoded; MISSING if it is no JSON."""
        if self._fetch is not None:
            fetch, self._fetch = self._fetch, None
            self.put(fetch())
        return self._parsed

    def put(self, body: bytes | None) -> None:
        """Take another body in the place of this one."""
        self._parsed = parse(body) if self._decode is None or body is None else self._decoded(body)

    def _decoded(self, body: bytes) -> Any:
        assert self._decode is not None
        try:
            return self._decode(body)
        except Exception:
            return MISSING


def part_of(value: Any, path: tuple[Step, ...]) -> Any:
    """Return the part of a decoded body that a path names; MISSING if there is none."""
    for step in path:
        kind = type(value)
        if kind is dict and type(step) is str:
            value = value.get(step, MISSING)
        elif kind is list and type(step) is int:
            value = value[step] if step < len(value) else MISSING
        else:
            return MISSING
    return value


def as_value(part: Any) -> Any:
    """Return a part of a body as the grammar computes with it: whole numbers have 64 bits, or are floats."""
    if part is MISSING:
        return None
    if type(part) is int and not -_WHOLE <= part < _WHOLE:
        try:
            return float(part)
        except OverflowError:
            return math.inf if part > 0 else -math.inf
    return part
