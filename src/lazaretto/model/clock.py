"""Clocks that count whole microseconds since the Unix epoch, and deadlines of queries."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Protocol

from lazaretto.errors import QueryTooLong

MICROSECONDS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)

_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)

#: Returns the deadline of what runs here; None: it has none. Each commit asks.
current = _current.get


class Clock(Protocol):
    """Tells the store's time."""

    #: Whether time passes by itself, so that waiting for a moment makes sense.
    ticks: bool

    def now(self) -> int:
        """Return microseconds since the Unix epoch."""
        ...


class SystemClock:
    """The machine's clock."""

    ticks = True

    def now(self) -> int:
        return time.time_ns() // 1000


class ManualClock:
    """A clock that moves only when you advance it: hours pass in microseconds.

    Pass it to `connect(clock=...)` in tests. `start` is in seconds since the epoch.
    """

    ticks = False

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = int(start * MICROSECONDS)
        self._lock = threading.Lock()

    def now(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock by `seconds`, which may be negative: clocks do jump."""
        with self._lock:
            self._now += round(seconds * MICROSECONDS)


class MovableClock:
    """The machine's clock, moved ahead: it goes on, and whoever waits for a time is told of each move."""

    ticks = True

    def __init__(self) -> None:
        self._ahead = 0
        self._watchers: list[Callable[[], object]] = []

    def now(self) -> int:
        return time.time_ns() // 1000 + self._ahead

    def watch(self, moved: Callable[[], object]) -> None:
        """Have something called whenever the clock was moved."""
        self._watchers.append(moved)

    def advance(self, seconds: float) -> None:
        """Move the clock ahead by `seconds`."""
        self._ahead += round(seconds * MICROSECONDS)
        for moved in self._watchers:
            moved()


def to_micros(moment: datetime) -> int:
    """Return an aware datetime as microseconds since the epoch."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_datetime(micros: int) -> datetime:
    """Return microseconds since the epoch as an aware datetime in UTC; the nearest there is, beyond them."""
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return _LAST if micros > 0 else _FIRST


#: The last moment that a datetime can tell: the end of the year 9999.
LAST_MOMENT = to_micros(_LAST)


def to_ending(micros: int | None) -> datetime | None:
    """Return when something ends; None: never, which is what an end after the year 9999 means."""
    return None if micros is None or micros > LAST_MOMENT else to_datetime(micros)


def iso_of(micros: int) -> str:
    """Return microseconds since the epoch as `iso` tells the same time."""
    if not 0 <= micros <= LAST_MOMENT:
        return iso(to_datetime(micros))
    whole, rest = divmod(micros, MICROSECONDS)
    return f"{_second(whole)}.{rest:06d}Z"


# Messages that are told together mostly came in the same seconds.
@functools.lru_cache(256)
def _second(seconds: int) -> str:
    return to_datetime(seconds * MICROSECONDS).isoformat()[: -len("+00:00")]


def iso(moment: datetime) -> str:
    """Return a time as ISO 8601 in UTC, always with microseconds, so that texts sort as times do."""
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return in_utc.isoformat(timespec="microseconds")[: -len("+00:00")] + "Z"


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
