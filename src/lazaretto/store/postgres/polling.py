"""Waits for sockets by poll, or by select where a system has nothing else."""

from __future__ import annotations

import select
from typing import Final, Protocol

READ: Final[int] = getattr(select, "POLLIN", 1)
WRITE: Final[int] = getattr(select, "POLLOUT", 4)


class HasFileno(Protocol):
    """An object that can be polled."""

    def fileno(self) -> int: ...


class Poll(Protocol):
    """The part of `select.poll` objects that the store uses."""

    def register(self, socket: int | HasFileno, events: int, /) -> None:
        """Wait for a socket, too."""

    def modify(self, socket: int | HasFileno, events: int, /) -> None:
        """Wait for something else of a socket."""

    def poll(self, milliseconds: float, /) -> object:
        """Wait; return something that is true unless the time was over."""


class _Select:
    """The same by select, as on Windows."""

    def __init__(self) -> None:
        self._events: dict[int | HasFileno, int] = {}

    def register(self, socket: int | HasFileno, events: int, /) -> None:
        self._events[socket] = events

    def modify(self, socket: int | HasFileno, events: int, /) -> None:
        self._events[socket] = events

    def poll(self, milliseconds: float, /) -> bool:
        read, write = (
            [one for one, events in self._events.items() if events & what] for what in (READ, WRITE)
        )
        return any(select.select(read, write, [], milliseconds / 1000))


def new_poll() -> Poll:
    """Return an object that waits for no socket yet."""
    make: type[Poll] = getattr(select, "poll", _Select)
    return make()
