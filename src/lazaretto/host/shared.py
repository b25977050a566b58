"""What the slots of one handler share."""

from __future__ import annotations

import dataclasses
import threading

from lazaretto.host.gate import Gate
from lazaretto.host.handler_stats import HandlerStats
from lazaretto.host.handlers import Handler
from lazaretto.model.breaker import BreakerWindow
from lazaretto.store.contract.transaction_contract import Store


@dataclasses.dataclass(slots=True)
class Shared:
    """What the slots of one handler have in common."""

    handler: Handler
    store: Store
    stats: HandlerStats
    gate: Gate
    window: BreakerWindow | None
    #: Whether no policy ends the attempts on these messages, as in a dead-letter subqueue without one.
    retries_for_ever: bool = False
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
