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

    def insert_routed(
        self, queues: Sequence[QueueRecord], routed_messages: Sequence[RoutedMessage]
    ) -> list[int]:
        """Add routed messages at the end of each of some queues; return their keys in the first one.

        Within a commit, a first queue always comes with the same others.
        """
        ...
