"""Connections that were lost: several of one process die with it, so none of them says whom to blame."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

#: Seconds within which the connections of a process that has died are lost.
_TOGETHER: Final = 0.5


class Losses:
    """Connections that were lost a moment ago while their clients worked, by the address of these."""

    def __init__(self) -> None:
        self._lost: deque[tuple[float, str, object]] = deque()

    def note(self, address: str, connection: object) -> None:
        """Note that a connection was lost while its client had messages."""
        now = time.monotonic()
        self._lost.append((now, address, connection))
        # Longer than needed: who asks waits first.
        while self._lost[0][0] < now - 4 * _TOGETHER:
            self._lost.popleft()

    async def others(self, address: str, connection: object) -> bool:
        """Return whether another connection of an address is lost at about the same time as one just now."""
        lost = time.monotonic()
        await asyncio.sleep(_TOGETHER)
        return any(
            where == address and one is not connection and at >= lost - _TOGETHER
            for at, where, one in self._lost
        )
