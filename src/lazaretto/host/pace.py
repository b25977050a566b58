"""Limits the size of a hand-over by the handler's speed, so that it is settled soon."""

from __future__ import annotations

import threading

#: Maximum expected time of a hand-over, unless it is a single message, in seconds. A slot holds the current
#: hand-over and the next one, so it settles its messages within twice this time.
EXPECTED = 0.125
#: Maximum growth from one hand-over to the next: one that was quick proves little.
_GROWTH = 4
#: Weight of the latest hand-over in the mean.
_WEIGHT = 0.5


class Pace:
    """The combined measurements of one handler's slots, shared by threads.

    `at_once`: how many messages of a hand-over run concurrently.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = at_once
        self._lock = threading.Lock()
        self._most = 1
        self._mean: float | None = None

    def note(self, messages: int, seconds: float) -> None:
        """Record the duration of a hand-over."""
        rounds = -(-messages // self._at_once)
        each = seconds / rounds
        with self._lock:
            self._mean = each if self._mean is None else self._mean + _WEIGHT * (each - self._mean)
            # A small hand-over, such as the last of a queue, does not lower the limit.
            self._most = max(self._most, _GROWTH * rounds)

    @property
    def size(self) -> int:
        """Return the maximum number of messages of the next hand-over."""
        mean = self._mean
        rounds = self._most if not mean else min(self._most, int(EXPECTED / mean))
        return self._at_once * max(1, rounds)

    def is_quick(self, messages: int) -> bool:
        """Return whether so many messages should end soon enough for the next hand-over to wait."""
        mean = self._mean
        return mean is not None and mean * -(-messages // self._at_once) <= EXPECTED
