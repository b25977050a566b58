"""Limits the size of a hand-over by the handler's speed, so that it is settled soon."""

from __future__ import annotations

import threading

#: How long a hand-over is expected to take at most, unless it is a single message, in seconds. A slot
#: holds the one at work and the one behind it, so it is twice this until what it holds is settled.
EXPECTED = 0.125
#: By how much the next hand-over may be larger than the one before: one that was quick proves little.
_GROWTH = 4
#: What the latest hand-over counts in the mean.
_WEIGHT = 0.5


class Pace:
    """What the slots of one handler have measured together; threads share it.

    `at_once`: how many messages of a hand-over run at the same time.
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
            # A smaller one, as the last of a queue, takes nothing back.
            self._most = max(self._most, _GROWTH * rounds)

    @property
    def size(self) -> int:
        """Return the maximum number of messages of the next hand-over."""
        mean = self._mean
        rounds = self._most if not mean else min(self._most, int(EXPECTED / mean))
        return self._at_once * max(1, rounds)

    def is_quick(self, messages: int) -> bool:
        """Return whether so many are expected to take so little time that the next may wait behind them."""
        mean = self._mean
        return mean is not None and mean * -(-messages // self._at_once) <= EXPECTED
