"""Rates in the store: what happened to the messages of queues, by minute and by hour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lazaretto.model.rates import Counts


class StoredRates(Protocol):
    """Operations on rates. Spans and starts are in minutes since 1970."""

    def count(self, queue_id: int, kind: int, amount: int = 1) -> None:
        """Count messages of a queue, once the commit is done; a later commit writes the sums."""
        ...

    def of(self, queue_id: int, span: int, since: int) -> list[tuple[int, Counts]]:
        """Return a queue's counts by start."""
        ...

    def recent(self, queue_ids: Sequence[int], since: int) -> dict[int, Counts]:
        """Return the sums of queues over the minutes since one, by queue."""
        ...

    def totals(self, queue_ids: Sequence[int]) -> dict[int, Counts]:
        """Return all that was ever counted for queues, and for ALL_QUEUES, by queue."""
        ...

    def forget(self, span: int, before: int, limit: int) -> bool:
        """Remove some counts of spans that started earlier; return whether there may be more."""
        ...
