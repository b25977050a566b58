"""Times and durations as people and programs write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION = re.compile(r"\d+(?:\.\d+)?|(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")


def seconds_of(text: str) -> float | None:
    """Return a duration such as 30, 30s, 5m, 2h, 1d or 1h30m in seconds, None if it is not one."""
    word = text.strip().lower()
    if not _DURATION.fullmatch(word):
        return None
    parts = _PART.findall(word)
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float(word)


def iso_time(text: str) -> datetime | None:
    """Return a time in ISO 8601, in UTC where it names no zone; None if it is not one."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
