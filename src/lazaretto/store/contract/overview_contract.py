"""How queues stand at a glance, in the store: what is kept in small tables and indexes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lazaretto.store.contract.records import QueueRecord


class Waiting(NamedTuple):
    """How many messages stand in a queue itself, whether that is exact, and when the oldest was sent."""

    messages: int = 0
    exact: bool = True
    oldest: int | None = None


class Dead(NamedTuple):
    """How many dead letters of a queue wait, since when, and how many fingerprints they have."""

    letters: int
    since: int | None
    fingerprints: int


NO_DEAD = Dead(0, None, 0)


class StoredOverview(Protocol):
    """Reads how many queues stand, without counting their messages. Times in microseconds."""

    def held_sessions(self) -> dict[int, int]:
        """Return how many sessions are held back, by queue."""
        ...

    def dead_letters(self) -> dict[int, Dead]:
        """Return what dead letters wait, by queue, those in transfer too."""
        ...

    def open_claims(self) -> int:
        """Return how many claims are open."""
        ...

    def concerned(self, queue_ids: Sequence[int]) -> list[QueueRecord]:
        """Return queues that are halted, disabled or have a breaker, and the given ones, but no topics."""
        ...

    def count(self, part: str) -> int:
        """Return how many queues and subscriptions have a text in their path, in lower case."""
        ...

    def holders(self, part: str, limit: int) -> list[QueueRecord]:
        """Return queues and subscriptions by path, those with a text in it, in lower case."""
        ...

    def waiting(self, queues: Sequence[QueueRecord]) -> dict[int, Waiting]:
        """Return how many messages stand in queues."""
        ...

    def died(self, queue_ids: Sequence[int], hour: int) -> dict[tuple[int, int], int]:
        """Return how many dead letters came, by queue and hour since 1970, from one on."""
        ...
