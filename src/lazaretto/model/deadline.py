"""Until when a query may go on: what takes long looks at it, in whatever thread it runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from lazaretto.errors import QueryTooLong

_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


class Deadline:
    """The end of a query's time. `seconds`: from now on. Threads can share it."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self._ended = False
        #: What ends the statement that is under way, if somebody else has to be told.
        self.cancel: Callable[[], object] | None = None

    @property
    def over(self) -> bool:
        """Whether the query must end."""
        return self._ended or time.monotonic() >= self.end

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return 0.0 if self._ended else max(0.0, self.end - time.monotonic())

    def end_now(self) -> None:
        """End the query: nobody waits for its answer."""
        self._ended = True
        cancel = self.cancel
        if cancel is not None:
            cancel()

    def check(self) -> None:
        """Raise QueryTooLong if the query must end."""
        if self.over:
            raise too_long()


def too_long() -> QueryTooLong:
    """Return the error of a query that was ended."""
    return QueryTooLong("expected a query that takes less time: ask for less, or with a simpler condition")


#: Returns the deadline of what runs here; None: it has none. Each commit asks.
current = _current.get


def check() -> None:
    """Raise QueryTooLong if what runs here must end."""
    deadline = _current.get()
    if deadline is not None:
        deadline.check()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[Deadline]:
    """Let what runs in the context, and in threads that it starts, take some seconds at most."""
    deadline = Deadline(seconds)
    token = _current.set(deadline)
    try:
        yield deadline
    finally:
        _current.reset(token)
        # What it has left in threads ends, too.
        deadline.end_now()


@contextlib.contextmanager
def undated() -> Iterator[None]:
    """Let nothing have a deadline within a block, such as a commit that is for others, too."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)
