"""Rates in SQL: the part of a transaction that counts what happens to messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lazaretto.model.rates import KINDS, Counts
from lazaretto.store.sql.commit_context import Part

#: The number of columns of add_rates.
_WIDTH = 3 + KINDS


class RateTables(Part):
    """Operations on rates within one commit."""

    def count(self, queue_id: int, kind: int, amount: int = 1) -> None:
        """Count messages of a queue, once the commit is done; a later commit writes the sums."""
        self._context.rates.entries.append((queue_id << 3 | kind, amount))

    def add(self, rows: Iterable[Sequence[int]]) -> None:
        """Add sums: queue, span, start and counts."""
        values: list[Any] = [value for row in rows for value in row]
        self._context.insert("add_rates", values, len(values) // _WIDTH)
        self._context.adds_rates = True

    def of(self, queue_id: int, span: int, since: int) -> list[tuple[int, Counts]]:
        """Return a queue's counts by start."""
        values = {"queue_id": queue_id, "span": span, "since": since}
        return [(start, _counts(counts)) for start, *counts in self._context.run("select_rates", values)]

    def recent(self, queue_ids: Sequence[int], since: int) -> dict[int, Counts]:
        """Return the sums of queues over the minutes since one, by queue."""
        values = {"ids": self._context.ids(queue_ids), "since": since}
        return {queue: _counts(counts) for queue, *counts in self._context.run("sum_rates", values)}

    def totals(self, queue_ids: Sequence[int]) -> dict[int, Counts]:
        """Return all that was ever counted for queues, and for ALL_QUEUES, by queue."""
        rows = self._context.run("select_totals", {"ids": self._context.ids(queue_ids)})
        return {queue: _counts(counts) for queue, *counts in rows}

    def forget(self, span: int, before: int, limit: int) -> bool:
        """Remove some counts of spans that started earlier; return whether there may be more."""
        values = {"span": span, "before": before, "limit": limit}
        return self._context.run("forget_rates", values).rowcount >= limit


def _counts(counts: Sequence[Any]) -> Counts:
    sent, received, completed, failed, dead = map(int, counts)
    return sent, received, completed, failed, dead
