"""Topics in the store: subscriptions, and the copies of messages that they get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lazaretto.store.records import QueueRecord, Transit


class TopicTransaction(Protocol):
    """What an operation may do with topics within one commit."""

    def subscriptions(self, topic_id: int) -> tuple[QueueRecord, ...]:
        """Return the subscriptions of a topic by path; the same object as long as nothing has changed."""
        ...

    def new_message_id(self) -> str:
        """Return an id for a message whose sender gave none."""
        ...

    def insert_body(self, body: bytes) -> int:
        """Store a body by itself, for one message or for several; return its id."""
        ...

    def insert_transits(self, queue: QueueRecord, transits: Sequence[Transit]) -> list[int]:
        """Add messages that come to rest at a queue's end; return their keys."""
        ...

    def repeat_transits(self, queue: QueueRecord, first: int, count: int) -> None:
        """Add the same at another queue's end that `insert_transits` has put behind a key."""
        ...

    def keep_sequence(self, key: int) -> None:
        """Note that a sequence number is used, of a message that is not kept under it."""
        ...
