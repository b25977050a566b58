"""Who gave wrong keys lately: guessing takes long, and after some tries nothing is looked at. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

from lazaretto.door.limits import DoorLimits

_SPAN: Final = 60.0
#: Addresses that are remembered; beyond them, the first ones are forgotten.
_MOST_ADDRESSES: Final = 10_000


class Refusals:
    """When each address was refused. Times are on the monotonic clock."""

    def __init__(self, limits: DoorLimits) -> None:
        self._most = limits.refusals
        self._times: dict[str, deque[float]] = {}

    def note(self, address: str, now: float) -> None:
        """Note that an address gave a wrong key or token."""
        times = self._times.pop(address, None) or deque(maxlen=self._most)
        times.append(now)
        self._times[address] = times
        if len(self._times) > _MOST_ADDRESSES:
            del self._times[next(iter(self._times))]

    def too_many(self, address: str, now: float) -> bool:
        """Whether an address gave so many within a minute that it must wait."""
        times = self._times.get(address)
        return times is not None and len(times) == self._most and now - times[0] < _SPAN
