"""Queues in the store: as entities, with their options, counts and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lazaretto.model.entities import EntityKind, QueueOptions
from lazaretto.store.contract.records import QueueRecord, Standing


class StoredQueues(Protocol):
    """What an operation may do with queues, topics and subscriptions within one commit."""

    def by_path(self, path_key: str) -> QueueRecord | None:
        """Return the queue at a path."""
        ...

    def by_id(self, queue_id: int) -> QueueRecord | None:
        """Return the queue with an id."""
        ...

    def all(self) -> list[QueueRecord]:
        """Return all queues by path."""
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
        """Add queues at those of the paths at which nothing is, and return them."""
        ...

    def save(self, record: QueueRecord) -> QueueRecord:
        """Store a queue's options, status and culprits; return it with the time of the change."""
        ...

    def delete(self, record: QueueRecord) -> None:
        """Remove a queue; its messages go in chunks by `remove_deleted`."""
        ...

    def remove_deleted(self, limit: int) -> bool:
        """Remove up to `limit` messages of a deleted queue; return whether there may be more."""
        ...

    def standings(self, queue_ids: Sequence[int]) -> dict[int, Standing]:
        """Return how queues stand, with exact numbers of messages."""
        ...

    def count_discarded(self, queue_id: int, *, expired: int = 0, dropped: int = 0) -> None:
        """Add to the numbers of messages discarded."""
        ...

    def rollbacks(self, queue_id: int) -> int:
        """Return how many receives from the queue were rolled back in a row."""
        ...

    def set_rollbacks(self, queue_id: int, count: int) -> None:
        """Note how many receives from the queue were rolled back in a row."""
        ...

    def size(self, queue_id: int) -> int:
        """Return the bytes that an entity with a largest size holds; a topic, in all its subscriptions."""
        ...

    def count_size(self, queue_id: int) -> None:
        """Count the bytes that an entity holds, one by one, because it has a largest size from now on."""
        ...

    def sized(self, queue_id: int) -> int | None:
        """Return the entity whose size a queue's messages count to: its topic, itself, or none."""
        ...

    def set_idle_at(self, queue_id: int, idle_at: int | None) -> None:
        """Note when an entity is to be deleted unless it is used before."""
        ...

    def idle_at(self, queue_id: int) -> int:
        """Return when that is, or a time that is past if it is not known here."""
        ...

    def idle(self, limit: int) -> list[QueueRecord]:
        """Return the entities that were not used for as long as they may be."""
        ...
