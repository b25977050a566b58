"""Those who take messages in this process, as its heartbeat writes them into the store."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Final

from lazaretto.model.actors import Taker, TakerRecord
from lazaretto.model.clock import MICROSECONDS, Clock

#: How long one is still told of that takes no more, in microseconds: clients come again with each request.
_LINGER: Final = 60 * MICROSECONDS
#: How long a new one is not written, in seconds: most programs that receive once are gone by then.
_DELAY: Final = 1.0
#: The most that are written of a process, and characters of their names.
_MOST: Final = 500
_LONGEST: Final = 120


class Presence:
    """Takers, each for as long as the object lives that takes for it, and a moment longer. Thread-safe.

    Entering is all that a receiver does for it, once; what it receives costs nothing.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._at_work: weakref.WeakKeyDictionary[object, Taker] = weakref.WeakKeyDictionary()
        #: When each came, and was last seen.
        self._times: dict[Taker, tuple[int, int]] = {}
        self._due: float | None = None
        #: How many there are when those are looked for that are gone: that takes as long as there are many.
        self._many = 2 * _MOST

    def enter(self, holder: object, taker: Taker) -> None:
        """Note one that takes messages until `holder` leaves, or is gone."""
        taker = taker._replace(name=taker.name[:_LONGEST])
        now = self._clock.now()
        with self._lock:
            self._at_work[holder] = taker
            times = self._times.get(taker)
            if times is None:
                if len(self._times) >= self._many:
                    self._forget(now)
                    self._many = 2 * max(_MOST, len(self._times))
                self._due = self._due or time.monotonic() + _DELAY
            self._times[taker] = (now if times is None else times[0], now)

    def leave(self, holder: object) -> None:
        """Note that `holder` takes no more."""
        with self._lock:
            self._at_work.pop(holder, None)

    def is_due(self) -> bool:
        """Return whether there is a new one to write."""
        return self._due is not None and time.monotonic() >= self._due

    def records(self) -> list[TakerRecord]:
        """Return all that are to be written, by queue; those that were seen last if they are too many."""
        with self._lock:
            self._due = None
            self._forget(self._clock.now())
            last = sorted(self._times.items(), key=lambda item: -item[1][1])[:_MOST]
        return [TakerRecord(*taker, *times) for taker, times in sorted(last)]

    def _forget(self, now: int) -> None:
        """Forget those that have not been seen for a while."""
        for taker in set(self._at_work.values()):
            since, _ = self._times.get(taker, (now, now))
            self._times[taker] = (since, now)
        self._times = {t: times for t, times in self._times.items() if now - times[1] <= _LINGER}
