"""Shared by the tests of the service host: run handlers until a queue is worked off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patience import wait_until

from lazaretto import Broker, Message
from lazaretto.host import Handler, HandlerReport, ServiceHost


def worked_off(broker: Broker, *queues: str) -> Callable[[], bool]:
    """Return a function that tells whether nothing in the queues is left to be handed out."""

    def over() -> bool:
        counts = [broker.queue(path).counts for path in queues]
        return not any(c.active + c.locked + c.suspect + c.delayed for c in counts)

    return over


def serve(broker: Broker, *handlers: Handler, **options: Any) -> list[HandlerReport]:
    """Run handlers until their queues are worked off; return how each stood then."""
    host = ServiceHost(broker, handlers, on_output=lambda text: None, **options)
    over = worked_off(broker, *(str(h.path) for h in handlers))
    with host:
        wait_until(over)
    return host.reports()


def send(broker: Broker, queue: str, *bodies: bytes, **fields: Any) -> list[int]:
    """Send messages; return their sequence numbers."""
    return broker.sender(queue).send([Message(body, **fields) for body in bodies])
