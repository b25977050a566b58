"""Notes taken once a minute for each, and at most so often in all. Pure."""

from __future__ import annotations

from collections.abc import Hashable

_MINUTE = 60.0


class Minutes:
    """Says what is noted, and counts the rest. `most`: notes in a minute in all; None: any number."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._began = float("-inf")
        self._noted: set[Hashable] = set()
        self._rest = 0

    def note(self, key: Hashable, now: float) -> int | None:
        """Return how many were not noted before this one; None: this one is not noted either.

        Times are in seconds.
        """
        if now >= self._began + _MINUTE:
            self._began = now
            self._noted.clear()
        if key in self._noted or (self._most is not None and len(self._noted) >= self._most):
            self._rest += 1
            return None
        self._noted.add(key)
        rest, self._rest = self._rest, 0
        return rest
