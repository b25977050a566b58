"""What stands beside messages in the store: bodies, sequence numbers, and ids that may come again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class StoredBodies(Protocol):
    """What an operation may do with bodies that stand by themselves within one commit."""

    def take_id(self) -> int:
        """Return an id for a body that is to stand by itself."""
        ...

    def insert(self, bodies: Mapping[int, bytes]) -> None:
        """Store bodies by themselves, under their ids."""
        ...

    def find(self, body_id: int) -> bytes | None:
        """Return a body that stands by itself; None: there is none."""
        ...

    def add_uses(self, uses: Mapping[int, int]) -> None:
        """Note that so many more messages have a body, by its id, than the one that has it anyway."""
        ...

    def delete(self, body_ids: Sequence[int]) -> None:
        """Remove bodies that stand by themselves."""
        ...


class StoredSequences(Protocol):
    """What an operation may do with sequence numbers within one commit."""

    def take_key(self, queue_id: int, count: int = 1) -> int:
        """Return the key for one further message at the queue's end, or for the first of several."""
        ...

    def keep(self, key: int) -> None:
        """Note that a sequence number is used, of a message that is not kept under it."""
        ...


class StoredMessageIds(Protocol):
    """What an operation may do with the message ids of a duplicate detection window within one commit."""

    def find(self, queue_id: int, message_id: str, partition_key: str) -> int | None:
        """Return the sequence number under which the id was sent within the window."""
        ...

    def remember(
        self, queue_id: int, message_id: str, partition_key: str, forget_after: int, sequence_number: int
    ) -> None:
        """Remember a message id."""
        ...

    def forget(self, queue_id: int, message_id: str, partition_key: str, sequence_number: int) -> None:
        """Forget a message id, if it was sent under this number."""
        ...
