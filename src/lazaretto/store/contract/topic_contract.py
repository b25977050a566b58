"""Topics in the store: subscriptions, and the copies of messages that they get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lazaretto.store.contract.records import QueueRecord, RoutedMessage


class StoredTopics(Protocol):
    """What an operation may do with topics within one commit."""

    def subscriptions(self, topic_id: int) -> tuple[QueueRecord, ...]:
        """Return the subscriptions of a topic by path; the same object as long as nothing has changed."""
        ...

    def insert_routed(self, queue: QueueRecord, routed_messages: Sequence[RoutedMessage]) -> list[int]:
        """Add messages that come to rest at a queue's end; return their keys."""
        ...

    def repeat_routed(self, queue: QueueRecord, first: int, count: int) -> None:
        """Add the same at another queue's end that `insert_routed` has put behind a key."""
        ...
