"""Addresses of recent wrong keys: each is answered later than the one before it. Pure.

A right key is never refused for the wrong ones of others at the same address: many share one, behind a
proxy, a router or the host of containers.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_SPAN: Final = 60.0
#: Addresses that are remembered; beyond them, the first ones are forgotten.
_MOST_ADDRESSES: Final = 10_000
#: Beyond so many within a minute, waiting grows no longer.
_SLOWEST: Final = 8


class Refusals:
    """When each address was refused. `step`: seconds of the first wait. Times are on the monotonic clock."""

    def __init__(self, step: float) -> None:
        self._step = step
        self._times: dict[str, deque[float]] = {}
        #: How many there were, of all addresses.
        self.count = 0

    def note(self, address: str, now: float) -> float:
        """Note that an address gave a wrong key or token; return for how long it waits for the answer."""
        self.count += 1
        times = self._times.pop(address, None) or deque(maxlen=_SLOWEST)
        times.append(now)
        while now - times[0] >= _SPAN:
            times.popleft()
        self._times[address] = times
        if len(self._times) > _MOST_ADDRESSES:
            del self._times[next(iter(self._times))]
        return self._step * len(times)
