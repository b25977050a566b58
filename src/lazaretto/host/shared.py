"""State shared by the slots of one handler."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lazaretto.host.handler_stats import HandlerStats
from lazaretto.host.handlers import Handler
from lazaretto.model.breaker import BreakerWindow
from lazaretto.store.sql.store import Store

#: Maximum expected time of a hand-over, unless it is a single message, in seconds. A slot holds the current
#: hand-over and the next one, so it settles its messages within twice this time.
EXPECTED = 0.125
#: Maximum growth from one hand-over to the next: one that was quick proves little.
_GROWTH = 4
#: Weight of the latest hand-over in the mean.
_WEIGHT = 0.5


class Pace:
    """The combined measurements of one handler's slots, shared by threads.

    `at_once`: how many messages of a hand-over run concurrently.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = at_once
        self._lock = threading.Lock()
        self._most = 1
        self._mean: float | None = None

    def note(self, messages: int, seconds: float) -> None:
        """Record the duration of a hand-over."""
        rounds = -(-messages // self._at_once)
        each = seconds / rounds
        with self._lock:
            self._mean = each if self._mean is None else self._mean + _WEIGHT * (each - self._mean)
            # A small hand-over, such as the last of a queue, does not lower the limit.
            self._most = max(self._most, _GROWTH * rounds)

    @property
    def size(self) -> int:
        """Return the maximum number of messages of the next hand-over."""
        mean = self._mean
        rounds = self._most if not mean else min(self._most, int(EXPECTED / mean))
        return self._at_once * max(1, rounds)

    def is_quick(self, messages: int) -> bool:
        """Return whether so many messages should end soon enough for the next hand-over to wait."""
        mean = self._mean
        return mean is not None and mean * -(-messages // self._at_once) <= EXPECTED


class Gate:
    """A lock: many threads work at the same time, or one works alone."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._working = 0
        self._alone = 0

    @contextmanager
    def working(self, *, alone: bool) -> Iterator[None]:
        """Work with others, or wait for them to finish and work alone."""
        with self._condition:
            if alone:
                self._alone += 1
                # Announced first, so that later threads wait behind this one.
                self._condition.wait_for(lambda: self._working == 0)
            else:
                self._condition.wait_for(lambda: self._alone == 0)
            self._working += 1
        try:
            yield
        finally:
            with self._condition:
                self._working -= 1
                if alone:
                    self._alone -= 1
                self._condition.notify_all()


@dataclasses.dataclass(slots=True)
class Shared:
    """The state that the slots of one handler share."""

    handler: Handler
    store: Store
    stats: HandlerStats
    gate: Gate
    window: BreakerWindow | None
    pace: Pace
    #: Whether no policy limits attempts, as in a dead-letter subqueue without a policy.
    retries_for_ever: bool = False
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    #: Number of idle slots that are asking for messages.
    _idle: int = 0

    @property
    def idle(self) -> int:
        """Number of idle slots."""
        return self._idle

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Count a slot as idle."""
        with self.lock:
            self._idle += 1
        try:
            yield
        finally:
            with self.lock:
                self._idle -= 1


class BatchSize:
    """The size of the next batch: 1 after a commit that rolled back, full again later.

    The full size returns after twice as many messages were committed.
    """

    def __init__(self, full: int) -> None:
        self._full = full
        self._left = 0

    @property
    def size(self) -> int:
        return 1 if self._left else self._full

    def rolled_back(self) -> None:
        """Note that a commit of several messages failed."""
        self._left = 2 * self._full

    def committed(self, messages: int) -> None:
        """Note that a commit went through."""
        self._left = max(0, self._left - messages)
