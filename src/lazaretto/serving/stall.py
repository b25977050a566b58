"""Whether a client reads what waits for it. Pure."""

from __future__ import annotations

from typing import Final

#: Bytes that count as something read; a client that takes a few now and then holds all the rest.
_STEP: Final = 16_384


class Stall:
    """Watches how many bytes wait for a client. `longest`: seconds for which it may read nothing."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._since: float | None = None
        self._waiting = 0

    def lasts(self, now: float, waiting: int) -> bool:
        """Note how many bytes wait; return whether the client has read nothing for too long."""
        # More than before was written, which is done only once the client has read.
        moved = waiting > self._waiting or waiting <= self._waiting - _STEP
        if not waiting:
            self._since, self._waiting = None, 0
        elif self._since is None or moved:
            self._since, self._waiting = now, waiting
        return self._since is not None and now - self._since > self._longest
