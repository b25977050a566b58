"""Details of events and of the audit log as people read them: no JSON, no microseconds. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

#: What programs take an action back with, or compare; people have no use for it.
_FOR_PROGRAMS: Final = frozenset({"kind", "origin", "digest", "fingerprints", "parts"})
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?(\.\d+)?Z\Z")
_RUN: Final = re.compile(r"(\d+)-(\d+)\Z")


def told_detail(detail: Mapping[str, Any]) -> str:
    """Return a detail in words: "reason: out of stock, error type: ValueError"."""
    before = detail.get("before")
    parts = [
        f"{_words(name)}: {_told(value)}"
        for name, value in detail.items()
        if name not in _FOR_PROGRAMS and name != "before" and value not in (None, [], {})
    ]
    if isinstance(before, Mapping):
        earlier = {name: value for name, value in before.items() if not isinstance(value, Mapping)}
        if earlier:
            parts.append("before: " + ", ".join(f"{_words(n)} {_told(v)}" for n, v in earlier.items()))
    elif before is not None:
        parts.append(f"before: {_told(before)}")
    return ", ".join(parts)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _told(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,g}" if abs(value) < 1e6 else f"{value:,.0f}"
        case str():
            return _text(value)
        case Mapping():
            parts = [f"{_words(str(name))} {_told(part)}" for name, part in value.items() if part is not None]
            return ", ".join(parts) or "none"
        case list() | tuple():
            return ", ".join(map(_told, value)) or "none"
    return str(value)


def _text(value: str) -> str:
    moment, run = _TIME.match(value), _RUN.match(value)
    if moment is not None:
        return f"{moment[1]} {moment[2]} UTC"
    return value if run is None else f"{int(run[1]):,} to {int(run[2]):,}"
