"""Clocks that count whole microseconds since the Unix epoch; tests can replace them."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

MICROSECONDS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


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
