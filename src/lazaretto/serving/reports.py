"""Frequent happenings, as a log tells them: once a minute, by address and with a count. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

_SPAN: Final = 60.0
#: Addresses that are told in a minute; the others are counted together.
_MOST: Final = 100


class Report(NamedTuple):
    """Happenings at an address since the last report, and how often. `address`: "" for all others."""

    what: str
    address: str
    times: int


class Reports:
    """Counts what happens until it is told. Times are on the monotonic clock."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._told: float | None = None

    def note(self, what: str, address: str) -> None:
        """Count something that happened to an address."""
        key = what, address
        if key not in self._counts and len(self._counts) >= _MOST:
            key = what, ""
        self._counts[key] += 1

    def take(self, now: float) -> list[Report]:
        """Return what there is to tell, unless something was told less than a minute ago."""
        if not self._counts or (self._told is not None and now - self._told < _SPAN):
            return []
        self._told = now
        reports = [Report(what, address, times) for (what, address), times in self._counts.items()]
        self._counts.clear()
        return reports
