"""The notable results of commits, logged, and those who take messages in this process."""

from __future__ import annotations

import contextlib
import logging
import textwrap
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lazaretto.model.actors import Taker, TakerRecord
from lazaretto.model.clock import MICROSECONDS, Clock
from lazaretto.model.shown_text import safe, safe_lines
from lazaretto.store.records.messages import Notice

_log = logging.getLogger("lazaretto.messages")

#: Maximum log records of one level about one queue in a period, and the period in seconds.
MOST, WHILE = 100, 10.0

#: How long one is still told of that takes no more, in microseconds: clients come again with each request.
_LINGER: Final = 60 * MICROSECONDS
#: How long a new one is not written, in seconds: most programs that receive once are gone by then.
_DELAY: Final = 1.0
#: The most that are written of a process, and characters of their names.
_MOST: Final = 500
_LONGEST: Final = 120


class NoticeLog:
    """Collects notices while a commit is written, and logs them afterwards; threads share it.

    More than MOST of one level about one queue within WHILE are counted, and only their number is logged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: What is to be written.
        self.new: deque[Notice] = deque()
        self._lock = threading.Lock()
        self._spans: dict[tuple[str, int], _Span] = {}

    def add(self, notices: Sequence[Notice]) -> None:
        """Keep notices for `write`."""
        self.new.extend(notices)

    def write(self) -> None:
        """Log the added notices. Errors of log handlers are suppressed."""
        while True:
            try:
                notice = self.new.popleft()
            except IndexError:
                return
            if not _log.isEnabledFor(notice.level):
                continue
            for text, fields in self._lines(notice):
                with contextlib.suppress(Exception):
                    _log.log(notice.level, "%s", text, extra={"queue": notice.queue, **fields})

    def _lines(self, notice: Notice) -> list[tuple[str, Mapping[str, Any]]]:
        now, key = self._clock(), (notice.queue, notice.level)
        lines: list[tuple[str, Mapping[str, Any]]] = []
        with self._lock:
            if (span := self._spans.get(key)) is None:
                span = self._spans[key] = _Span(now)
            if now - span.since >= WHILE:
                if span.count > MOST:
                    lines.append((f"{notice.queue!r}: {span.count - MOST} more were not logged", {}))
                span.since, span.count = now, 0
            span.count += 1
            if span.count == MOST + 1:
                lines.append(
                    (f"{notice.queue!r}: too many failures; for {WHILE:g} s they are not logged", {})
                )
            elif span.count <= MOST:
                # A reason is one line, and a stack stands apart: nothing looks like a line of the log.
                text = safe(notice.text)
                if notice.stack:
                    text = f"{text}\n{textwrap.indent(safe_lines(notice.stack.rstrip()), '  ')}"
                lines.append((text, {**notice.fields, "text": notice.text, "stack": notice.stack}))
        return lines


class _Span:
    """Notices of one kind: how many came, and since when."""

    __slots__ = ("count", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0


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
