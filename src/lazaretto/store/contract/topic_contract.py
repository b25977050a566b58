"""Topics in the store: subscriptions, and the copies of messages that they get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lazaretto.store.contract.records import QueueRecord, RoutedMessage


class TopicTransaction(Protocol):
    """What an operation may do with topics within one commit."""

    def subscriptions(self, topic_id: int) -> tuple[QueueRecord, ...]:
        """Return the subscriptions of a topic by path; the same object as long as nothing has changed."""
        ...

    def new_message_id(self) -> str:
        """Return an id for a message whose sender gave none."""
        ...

    def take_body_id(self) -> int:
        """Return an id for a body that is to stand by itself."""
        ...

    def insert_bodies(self, bodies: Mapping[int, bytes]) -> None:
        """Store bodies by themselves, under their ids."""
        ...

    def add_uses(self, uses: Mapping[int, int]) -> None:
        """Note that so many more messages have a body, by its id, than the one that has it anyway."""
        ...

    def insert_routed(self, queue: QueueRecord, routed_messages: Sequence[RoutedMessage]) -> list[int]:
        """Add messages that come to rest at a queue's end; return their keys."""
        ...

    def repeat_routed(self, queue: QueueRecord, first: int, count: int) -> None:
        """Add the same at another queue's end that `insert_routed` has put behind a key."""
        ...

    def keep_sequence(self, key: int) -> None:
        """Note that a sequence number is used, of a message that is not kept under it."""
        ...
