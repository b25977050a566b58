"""Data stored beside messages: separate bodies, sequence numbers, and ids for duplicate detection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from lazaretto.model.messages import ReceivedMessage
from lazaretto.store.contract.records import QueueRecord


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

    def take_key(self, queue: QueueRecord, partition_key: str | None = None, count: int = 1) -> int:
        """Return the key for a new message at the end of a queue, or of its partition of that key.

        With `count`, it is the first of several.
        """
        ...

    def take_key_beside(self, key: int) -> int:
        """Return the key for a message at the end of the queue, or the partition, of another message."""
        ...

    def last(self, lane: int) -> int:
        """Return the highest key that a lane has given to a message so far."""
        ...

    def keep(self, key: int) -> None:
        """Mark a sequence number as used by a message that is not stored under it."""
        ...

    def keep_highest(self, keys: Sequence[int]) -> None:
        """Keep the highest sequence numbers of queues known, before these messages of theirs go."""
        ...


class StoredPartitions(Protocol):
    """Chooses partitions within one commit. A queue without partitions is one lane."""

    def lane(self, queue: QueueRecord, partition_key: str | None) -> int:
        """Return the lane of a message, whose session's id is its partition key."""
        ...

    def waiting(self, queue: QueueRecord) -> Iterator[int]:
        """Yield the lanes to look at for messages, in order; in the end all in which something waits."""
        ...

    def note_taken(self, lane: int, taken: Sequence[ReceivedMessage], limit: int) -> None:
        """Note which messages were taken from a lane, at most `limit`."""
        ...

    def next_to_take(self, queue: QueueRecord) -> tuple[int, bool]:
        """Return the lane to take from next, and whether nothing waits anywhere if it is empty."""
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
