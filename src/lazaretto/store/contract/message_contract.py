"""Data stored beside messages: separate bodies, sequence numbers, and ids for duplicate detection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class StoredBodies(Protocol):
    """Operations on separately stored bodies within one commit."""

    def take_id(self) -> int:
        """Return a new id for a separately stored body."""
        ...

    def insert(self, bodies: Mapping[int, bytes]) -> None:
        """Store bodies separately, under their ids."""
        ...

    def find(self, body_id: int) -> bytes | None:
        """Return a separately stored body, or None."""
        ...

    def add_uses(self, uses: Mapping[int, int]) -> None:
        """Add to the number of further messages that share each body, by its id."""
        ...

    def delete(self, body_ids: Sequence[int]) -> None:
        """Remove separately stored bodies."""
        ...


class StoredSequences(Protocol):
    """Assigns sequence numbers within one commit."""

    def take_key(self, queue_id: int, count: int = 1) -> int:
        """Return the key for a new message at the queue's end, or for the first of several."""
        ...

    def keep(self, key: int) -> None:
        """Mark a sequence number as used by a message that is not stored under it."""
        ...


class StoredMessageIds(Protocol):
    """Remembers and finds message ids of the duplicate detection window within one commit."""

    def find(self, queue_id: int, message_id: str, partition_key: str) -> int | None:
        """Return the sequence number under which the id was sent within the window."""
        ...

    def remember(
        self, queue_id: int, message_id: str, partition_key: str, forget_after: int, sequence_number: int
    ) -> None:
        """Remember a message id."""
        ...

    def forget(self, queue_id: int, message_id: str, partition_key: str, sequence_number: int) -> None:
        """Delete a message id if it was sent under this number."""
        ...
