"""State shared by the slots of one handler."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lazaretto.host.gate import Gate
from lazaretto.host.handler_stats import HandlerStats
from lazaretto.host.handlers import Handler
from lazaretto.host.pace import Pace
from lazaretto.model.breaker import BreakerWindow
from lazaretto.store.sql.store import Store


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
