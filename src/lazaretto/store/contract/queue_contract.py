"""Queues in the store: as entities, with their options, counts and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lazaretto.model.entities import EntityKind, QueueOptions
from lazaretto.store.contract.records import QueueRecord, Standing


class StoredQueues(Protocol):
    """Operations on queues, topics and subscriptions within one commit."""

    def by_path(self, path_key: str) -> QueueRecord | None:
        """Return the queue at a path."""
        ...

    def by_id(self, queue_id: int) -> QueueRecord | None:
        """Return the queue with an id."""
        ...

    def near(self, path_key: str, limit: int) -> list[tuple[str, EntityKind]]:
        """Return what stands nearest to a path in order: up to `limit` before it, and as many behind it."""
        ...

    def all(self) -> list[QueueRecord]:
        """Return all queues by path."""
        ...

    def page(
        self, after: str, part: str, limit: int, skip: int = 0, kind: EntityKind = EntityKind.QUEUE
    ) -> list[QueueRecord]:
        """Return queues or topics by path behind one, those with a text in their path; both in lower case."""
        ...

    def insert(
        self,
        path: str,
        options: QueueOptions,
        kind: EntityKind = EntityKind.QUEUE,
        topic_id: int | None = None,
        rules: bytes | None = None,
    ) -> QueueRecord:
        """Add a queue, topic or subscription."""
        ...

    def insert_many(self, paths: Sequence[str], options: QueueOptions) -> list[QueueRecord]:
        """Add queues at the paths that are free, and return them."""
        ...

    def save(self, record: QueueRecord) -> QueueRecord:
        """Store a queue's options, status and culprits; return it with the time of the change."""
        ...

    def mark_redacted(self, queue_id: int, redacted: bool) -> None:
        """Store whether there are rules for fields of a queue's messages that people may not read."""
        ...

    def delete(self, record: QueueRecord) -> None:
        """Remove a queue; `remove_deleted` removes its messages in chunks."""
        ...

    def remove_deleted(self, limit: int) -> bool:
        """Remove up to `limit` messages of a deleted queue; return whether there may be more."""
        ...

    def standings(self, queue_ids: Sequence[int]) -> dict[int, Standing]:
        """Return the states of queues, with exact numbers of messages."""
        ...

    def count_discarded(self, queue_id: int, *, expired: int = 0, dropped: int = 0) -> None:
        """Add to the numbers of messages discarded."""
        ...

    def rollbacks(self, queue_id: int) -> int:
        """Return the number of consecutive rolled-back receives from the queue."""
        ...

    def set_rollbacks(self, queue_id: int, count: int) -> None:
        """Store the number of consecutive rolled-back receives from the queue."""
        ...

    def size(self, queue_id: int) -> int:
        """Return the bytes in an entity with a maximum size; for a topic, in all its subscriptions."""
        ...

    def has_room(self, queue_id: int, size: int, most: int) -> bool:
        """Return whether an entity holds at most `most` bytes after another `size` bytes are sent to it.

        A commit that is planned may find out later, and fail.
        """
        ...

    def count_size(self, queue_id: int) -> None:
        """Count the bytes in an entity, message by message, when it gets a maximum size."""
        ...

    def sized(self, queue_id: int) -> int | None:
        """Return the entity whose size includes a queue's messages: its topic, itself, or None."""
        ...

    def set_idle_at(self, queue_id: int, idle_at: int | None) -> None:
        """Store when an entity will be deleted if it is not used before."""
        ...

    def purged(self, queue_id: int) -> int:
        """Return how many purged dead letters of a queue can be restored."""
        ...

    def idle_at(self, queue_id: int) -> int:
        """Return when an idle entity will be deleted; a past time if it is not known here."""
        ...

    def idle(self, limit: int) -> list[QueueRecord]:
        """Return the entities that have been idle for longer than allowed."""
        ...
