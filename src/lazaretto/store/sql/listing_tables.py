"""Listings in SQL: the part of a transaction that reads pages of dead letters."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from lazaretto.model.keys import SEQUENCE_BITS, queue_of
from lazaretto.store.records.messages import DeadLetterCriteria, DeadLetterRecord
from lazaretto.store.records.overview import Position, Preview
from lazaretto.store.sql.commit_context import CommitContext, Part
from lazaretto.store.sql.history_tables import HistoryTables


class ListingTables(Part):
    """Reads of listings within one transaction."""

    def __init__(self, context: CommitContext, history: HistoryTables) -> None:
        super().__init__(context)
        self._history = history

    def by_number(
        self, criteria: DeadLetterCriteria, after: Position, before: Position, limit: int, *, down: bool
    ) -> list[DeadLetterRecord]:
        """Return waiting dead letters between two positions, of (key, key), by number."""
        values = {
            **self._history.criteria_values(criteria, limit),
            "after": _last_of(after) | criteria.subqueue << SEQUENCE_BITS,
            "before": before[0] | criteria.subqueue << SEQUENCE_BITS,
        }
        return self._read("select_letters_down" if down else "select_letters_up", values)

    def by_time(
        self, criteria: DeadLetterCriteria, after: Position, before: Position, limit: int, *, down: bool
    ) -> list[DeadLetterRecord]:
        """Return waiting dead letters between two positions, of (time, key), by time."""
        values = {
            **self._history.criteria_values(criteria, limit),
            "queue_id": queue_of(criteria.first),
            "after_time": after[0],
            "after_key": after[1],
            "before_time": before[0],
            "before_key": before[1],
        }
        return self._read("select_times_down" if down else "select_times_up", values)

    def alike(
        self, criteria: DeadLetterCriteria, after: Position, before: Position, limit: int, *, down: bool
    ) -> list[DeadLetterRecord]:
        """Return waiting dead letters with the criteria's fingerprints alone, by number."""
        values = {
            "after": _last_of(after),
            "before": before[0],
            "limit": limit,
            "subqueue": criteria.subqueue,
        }
        name = "select_like_down" if down else "select_like_up"
        found: list[DeadLetterRecord] = []
        for fingerprint in criteria.fingerprints or ():
            found += self._read(name, {**values, "fingerprint": fingerprint})
        pick = heapq.nlargest if down else heapq.nsmallest
        return pick(limit, found, key=lambda record: record.key)

    def ends_by_number(self, criteria: DeadLetterCriteria) -> tuple[int, int] | None:
        """Return the keys of the first and the last waiting dead letter of a subqueue."""
        bits = criteria.subqueue << SEQUENCE_BITS
        values = {"after": criteria.first | bits, "before": (criteria.last | bits) + 1}
        first, last = self._context.run("select_letter_ends", values).fetchone()
        return None if first is None else (first & ~bits, last & ~bits)

    def ends_by_time(self, criteria: DeadLetterCriteria) -> tuple[int, int] | None:
        """Return when the first and the last waiting dead letter of a subqueue came."""
        values = {"queue_id": queue_of(criteria.first), "subqueue": criteria.subqueue}
        first, last = self._context.run("select_time_ends", values).fetchone()
        return None if first is None else (first, last)

    def with_id(self, criteria: DeadLetterCriteria, message_id: str, limit: int) -> list[int]:
        """Return the keys of waiting dead letters with a message id."""
        values = {
            "message_id": message_id,
            "first": criteria.first,
            "last": criteria.last,
            "subqueue": criteria.subqueue,
            "limit": limit,
        }
        return [key for (key,) in self._context.run("select_with_id", values)]

    def previews(self, keys: Sequence[int], longest: int) -> dict[int, Preview]:
        """Return how messages begin, by key."""
        rows = self._context.run("select_previews", {"keys": self._context.ids(keys), "longest": longest})
        return {key: Preview(size, bytes(start or b"")) for key, size, start in rows}

    def _read(self, name: str, values: dict[str, Any]) -> list[DeadLetterRecord]:
        return [DeadLetterRecord(*row) for row in self._context.run(name, values)]


def _last_of(position: Position) -> int:
    """Return the last key that is not behind a position by number."""
    key, at = position
    return key if at else key - 1
