"""Answers as JSON."""

from __future__ import annotations

import functools
import typing
from typing import Any

import msgspec

from lazaretto.model.records.plain import plain

_encode = msgspec.json.Encoder().encode
#: What JSON spells as the broker's values mean it, so that nothing has to be made of it first.
_AS_IT_IS = (int, str, bool, type(None), list[int], list[str])


def json_of(value: Any) -> bytes:
    """Return a value of the broker as JSON."""
    kind: Any = type(value)
    return _encode(value if _is_plain(kind) else plain(value))


@functools.cache
def _is_plain(kind: Any) -> bool:
    if not issubclass(kind, msgspec.Struct):
        return False
    try:
        hints = typing.get_type_hints(kind)
    except NameError:
        # A type that only checkers of types know.
        return False
    return all(hint in _AS_IT_IS for hint in hints.values())
