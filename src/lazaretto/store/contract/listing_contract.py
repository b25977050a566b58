"""Listings in the store: pages of dead letters in some order, and how their messages begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lazaretto.store.contract.records import DeadLetterCriteria, DeadLetterRecord

#: A place in an order: number or time, and the key of the dead letter there; 0: before all that are there.
Position = tuple[int, int]


class Preview(NamedTuple):
    """How a message begins, and the bytes of its whole body."""

    size: int
    start: bytes


class StoredListings(Protocol):
    """Reads parts of listings. Positions are exclusive; `down`: the last ones first."""

    def by_number(
        self, criteria: DeadLetterCriteria, after: Position, before: Position, limit: int, *, down: bool
    ) -> list[DeadLetterRecord]:
        """Return waiting dead letters between two positions, of (key, key), by number."""
        ...

    def by_time(
        self, criteria: DeadLetterCriteria, after: Position, before: Position, limit: int, *, down: bool
    ) -> list[DeadLetterRecord]:
        """Return waiting dead letters between two positions, of (time, key), by time."""
        ...

    def alike(
        self, criteria: DeadLetterCriteria, after: Position, before: Position, limit: int, *, down: bool
    ) -> list[DeadLetterRecord]:
        """Return waiting dead letters with the criteria's fingerprints alone, by number."""
        ...

    def ends_by_number(self, criteria: DeadLetterCriteria) -> tuple[int, int] | None:
        """Return the keys of the first and the last waiting dead letter of a subqueue."""
        ...

    def ends_by_time(self, criteria: DeadLetterCriteria) -> tuple[int, int] | None:
        """Return when the first and the last waiting dead letter of a subqueue came."""
        ...

    def with_id(self, criteria: DeadLetterCriteria, message_id: str, limit: int) -> list[int]:
        """Return the keys of waiting dead letters with a message id."""
        ...

    def previews(self, keys: Sequence[int], longest: int) -> dict[int, Preview]:
        """Return how messages begin, by key."""
        ...
