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
from lazaretto.store.contract.transaction_contract import Store


@dataclasses.dataclass(slots=True)
class Shared:
    """The state that the slots of one handler share."""

    handler: Handler
    store: Store
    stats: HandlerStats
    gate: Gate
    window: BreakerWindow | None
    pace: Pace
    #: Whether no policy ends the attempts on these messages, as in a dead-letter subqueue without one.
    retries_for_ever: bool = False
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    #: How many slots have nothing to do, and ask for something.
    _idle: int = 0

    @property
    def idle(self) -> int:
        """How many slots have nothing to do."""
        return self._idle

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Have a slot count as one that has nothing to do."""
        with self.lock:
            self._idle += 1
        try:
            yield
        finally:
            with self.lock:
                self._idle -= 1
