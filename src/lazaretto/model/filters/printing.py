"""Prints properties and values so that the grammar reads them back as they are."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from lazaretto.model.filters.body import Step

_PLAIN = re.compile(r"[^\W\d]\w*\Z")
_LEAST = -(1 << 63)


def print_name(name: str) -> str:
    """Return a name as the grammar has it. Raises ValueError for an empty one, which it does not have."""
    if not name:
        raise ValueError("expected a name, got an empty text")
    return name if _PLAIN.match(name) else f"[{name.replace(']', ']]')}]"


def print_path(path: Sequence[Step]) -> str:
    """Return a path into the body, such as `body.items[0].sku`. Raises ValueError for an empty key."""
    return "body" + "".join(f"[{s}]" if isinstance(s, int) else f".{print_name(s)}" for s in path)


def print_value(value: str | float | bool) -> str:
    """Return a constant of the grammar. Raises ValueError for a number that it does not have."""
    if isinstance(value, str):
        return f"'{value.replace(chr(39), chr(39) * 2)}'"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value}")
    if isinstance(value, int) and not _LEAST <= value < -_LEAST:
        raise ValueError(f"expected a number of 64 bits, got {value}")
    # The sign is none of a constant's characters, so the least number has no text of its own.
    return f"({value + 1} - 1)" if value == _LEAST and isinstance(value, int) else repr(value)
