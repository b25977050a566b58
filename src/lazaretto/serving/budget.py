"""A limit on bytes that a server's requests hold at once: over it they wait, and are refused at last."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from lazaretto.errors import ServerOverloaded

#: Seconds for which a request waits for others to let go.
_PATIENCE: Final = 10.0


class Budget:
    """Bytes that all requests together may hold. `patience`: seconds for which one waits for its part."""

    def __init__(self, most: int, patience: float = _PATIENCE) -> None:
        self.most = most
        self.held = 0
        self._patience = patience
        self._waiting: deque[tuple[Share, int, asyncio.Future[None]]] = deque()

    @property
    def waited_for(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._waiting)

    def has_room(self, share: Share, more: int) -> bool:
        """Whether a share may grow. One that is alone may always, or what is large could never be had."""
        return self.held + more <= self.most or self.held == share.held

    def move(self, share: Share, change: int) -> None:
        """Change what a share holds, and let those go on who have waited for room, in their order."""
        share.held += change
        self.held += change
        while self._waiting and (self._waiting[0][2].done() or self.has_room(*self._waiting[0][:2])):
            waiting, more, future = self._waiting.popleft()
            if not future.done():
                waiting.held += more
                self.held += more
                future.set_result(None)

    async def grow(self, share: Share, more: int) -> None:
        """Let a share grow once there is room. Raises ServerOverloaded if there is none in time."""
        if not self._waiting and self.has_room(share, more):
            self.move(share, more)
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((share, more, future))
        try:
            await asyncio.wait([future], timeout=self._patience)
        except asyncio.CancelledError:
            if future.done():
                self.move(share, -more)
            raise
        finally:
            had = future.done()
            future.cancel()
            # Whoever stands behind it may fit.
            self.move(share, 0)
        if not had:
            raise ServerOverloaded(
                "expected room for what this request needs, got none in time: ask again later, or for less"
            )


class Share:
    """One request's share of a budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.held = 0
        self._ends: list[Callable[[], object]] = []

    async def hold(self, size: int) -> None:
        """Hold so many bytes from now on; wait for room. Raises ServerOverloaded."""
        if size > self.held:
            await self._budget.grow(self, size - self.held)
        else:
            self.let_go(size)

    def at_end(self, call: Callable[[], object]) -> None:
        """Have something called when the request ends."""
        self._ends.append(call)

    def end(self) -> None:
        """End the request: it holds nothing any more."""
        self.let_go()
        while self._ends:
            self._ends.pop()()

    def let_go(self, size: int = 0) -> None:
        """Hold no more than so many bytes."""
        if size < self.held:
            self._budget.move(self, size - self.held)
