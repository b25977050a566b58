"""The order in which a client's requests on one session take effect, though many run at a time. Pure."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Final


class Kind(enum.IntFlag):
    """A kind of request, by what must not overtake it."""

    #: Messages are completed: nothing comes back by it.
    COMPLETE = 1
    #: Messages are sent, or settled in another way.
    CHANGE = 2
    #: A node is asked something, or a transaction ends.
    REQUEST = 4


#: What must be done before: sends and settlements need not wait for each other, because the store keeps their
#: order, and who receives need not wait until messages are gone for good that it cannot get anyway.
_BEFORE: Final = {
    Kind.COMPLETE: Kind.REQUEST,
    Kind.CHANGE: Kind.REQUEST,
    Kind.REQUEST: Kind.COMPLETE | Kind.CHANGE | Kind.REQUEST,
}
BEFORE_RECEIVING: Final = Kind.CHANGE | Kind.REQUEST
ALL: Final = Kind.COMPLETE | BEFORE_RECEIVING


class Order:
    """Requests on one session that are not done yet, numbered in their order."""

    def __init__(self) -> None:
        self._next = 0
        self._open: dict[int, Kind] = {}
        #: How much of each kind is not done.
        self._counts = dict.fromkeys(_BEFORE, 0)
        #: What waits for its turn: its number, what it waits for, and what to do then.
        self._waiting: list[tuple[int, Kind, Callable[[], object]]] = []

    def begin(self, kind: Kind) -> int:
        """Note that something was said, and return its number, for `end`."""
        number = self._next
        self._next += 1
        self._open[number] = kind
        self._counts[kind] += 1
        return number

    def end(self, number: int) -> None:
        """Note that it is done, or given up, and do what waits only for it."""
        self._counts[self._open.pop(number)] -= 1
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                self._when(*one)

    def when_due(self, number: int, do: Callable[[], object]) -> None:
        """Do what was said under a number once all is done that must be done before it, maybe now."""
        self._when(number, _BEFORE[self._open[number]], do)

    async def turn(self, before: Kind) -> None:
        """Wait until all of some kinds is done that was said so far."""
        if self.blocks(before):
            due = asyncio.get_running_loop().create_future()
            self._when(self._next, before, lambda: None if due.done() else due.set_result(None))
            await due

    def blocks(self, before: Kind) -> bool:
        """Whether something of some kinds is not done."""
        return any(count and kind & before for kind, count in self._counts.items())

    def _when(self, number: int, before: Kind, do: Callable[[], object]) -> None:
        if self.blocks(before) and self._is_behind(number, before):
            self._waiting.append((number, before, do))
        else:
            do()

    def _is_behind(self, number: int, before: Kind) -> bool:
        for other, kind in self._open.items():
            if other >= number:
                break
            if kind & before:
                return True
        return False
