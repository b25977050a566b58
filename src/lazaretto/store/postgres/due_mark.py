"""Remembers the time up to which a process has handled all timers."""

from __future__ import annotations

import copy

#: How far one process's time may be behind another's without that a timer is overlooked until the next full
#: look, in microseconds.
_SLACK = 250_000
#: Interval between full searches, in microseconds.
_FULL_LOOK = 60_000_000
#: Interval between looks while there are messages to take, in microseconds: it costs as much as taking one.
_LOOK_EVERY = 10_000


class DueMark:
    """The time up to which no timer is left, as far as this process knows.

    The entries of messages that are gone stay in the index of times as long as any open transaction of the
    database could still see them. To start behind them keeps the search short.
    """

    def __init__(self) -> None:
        self._since = 0
        self._looked = 0
        self._latest = 0
        self._next_look = 0

    def copied(self) -> DueMark:
        """Return another one that knows the same."""
        return copy.copy(self)

    def since(self, now: int) -> int:
        """Return the time from which to search for timers."""
        if now < self._latest - _SLACK or now > self._looked + _FULL_LOOK:
            self._since, self._looked = 0, now
        self._latest = now
        return self._since

    def nothing_due(self, since: int, now: int) -> None:
        """Record that there is no timer between two times."""
        if since <= self._since:
            self._since = max(self._since, now - _SLACK)
            self._next_look = now + _LOOK_EVERY

    def looks(self, now: int) -> bool:
        """Return whether to search for timers before more messages are taken."""
        return not self._next_look - _LOOK_EVERY <= now < self._next_look

    def look_next(self) -> None:
        """Have the next one search for timers who takes messages."""
        self._next_look = 0

    @property
    def latest(self) -> int:
        """The time up to which no timer is left."""
        return self._since

    def lower(self, due: int) -> None:
        """Record a possible timer at a time, also in the past."""
        self._since = min(self._since, due - 1)
        self._next_look = min(self._next_look, due)
