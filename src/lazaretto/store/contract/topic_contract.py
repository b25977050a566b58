"""Topics in the store: subscriptions, and the copies of messages that they get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lazaretto.store.contract.records import QueueRecord, RoutedMessage


class StoredTopics(Protocol):
    """Operations on topics within one commit."""

    def subscriptions(self, topic_id: int) -> tuple[QueueRecord, ...]:
        """Return a topic's subscriptions by path; the same object until something changes."""
        ...

    def insert_routed(self, queue: QueueRecord, routed_messages: Sequence[RoutedMessage]) -> list[int]:
        """Add routed messages at a queue's end; return their keys."""
        ...

    def repeat_routed(self, queue: QueueRecord, first: int, count: int) -> None:
        """Repeat, at another queue's end, the messages that `insert_routed` added after a key."""
        ...
