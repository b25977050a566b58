"""The offer of an outage: messages at a steady pace, and a dependency that goes down and comes back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

from bench.drill.drills import Outage
from bench.drill.systems.contract import Drilled
from bench.drill.work import Message, dependency_path


class Offer:
    """Offers the messages of an outage at their pace, and takes the dependency down and up."""

    def __init__(self, outage: Outage, messages: Sequence[Message], system: Drilled) -> None:
        self.offered: list[Message] = []
        #: Monotonic times at which the dependency went down and came back, once it has.
        self.down: tuple[float, float] | None = None
        self._outage = outage
        self._system = system
        self._left: Iterator[Message] = iter(messages)
        self._total = len(messages)
        self._file = dependency_path(system.home)
        self._start: float | None = None
        self._began_at: float | None = None

    @property
    def over(self) -> bool:
        """Whether all is offered and the dependency is back."""
        return len(self.offered) == self._total and self.down is not None

    def tend(self, handled: bool) -> None:
        """Offer what is due and let the dependency be as it should be now.

        The first message is offered alone, at once; the clock starts when it is `handled`.
        """
        now = time.monotonic()
        if self._start is None:
            if not self.offered:
                self._send(1)
            elif handled:
                self._start = now
            return
        since = now - self._start
        outage = self._outage
        if self._began_at is None and since >= outage.before:
            self._file.touch()
            self._began_at = time.monotonic()
        if self._began_at is not None and self.down is None and now >= self._began_at + outage.seconds:
            self._file.unlink()
            self.down = (self._began_at, time.monotonic())
        self._send(min(self._total, int(since / outage.every)) - len(self.offered))

    def _send(self, count: int) -> None:
        batch = list(itertools.islice(self._left, max(0, count)))
        if batch:
            self._system.enqueue(batch)
            self.offered += batch
