"""Chains of queues that forward, and what the tests ask of them."""

from __future__ import annotations

from typing import Any

from lazaretto import (
    Broker,
)

from .actions import create, send, take


def chain(broker: Broker, *paths: str, **options: Any) -> None:
    """Create queues, each forwarding to the next one."""
    create(broker, paths[-1], **options)
    for path, following in zip(paths[-2::-1], paths[:0:-1], strict=True):
        create(broker, path, forward_to=following, **options)


def why(broker: Broker, path: str) -> tuple[str | None, str | None]:
    """Return reason and description of the only dead letter of a subqueue."""
    (letter,) = broker.dead_letters(path)
    return letter.reason, letter.description


def peek_time(broker: Broker) -> Any:
    """Return the store's time."""
    broker.create_queue("clock")
    send(broker, b"", path="clock")
    return take(broker, "clock").enqueued_time
