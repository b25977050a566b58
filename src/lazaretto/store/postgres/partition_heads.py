"""Looks with one statement at which partitions of a queue have messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazaretto.store.postgres.whole_context import WholeContext
from lazaretto.store.sql.sequence_numbers import PartitionTables


class PgPartitions(PartitionTables):
    """Partitions, all of which are looked at in one statement."""

    def heads(self, places: Sequence[dict[str, int]]) -> list[int | None]:
        return [head for (head,) in self._context.run("select_heads", _columns(places))]


class WholePartitions(PgPartitions):
    """Partitions, which are looked at before the commit: what is found there need not hold."""

    def __init__(self, context: WholeContext) -> None:
        super().__init__(context)
        self._whole = context

    def heads(self, places: Sequence[dict[str, int]]) -> list[int | None]:
        return [head for (head,) in self._whole.ask_first("select_heads", _columns(places))]


def _columns(places: Sequence[dict[str, int]]) -> dict[str, Any]:
    columns = {f"{name}s": [place[name] for place in places] for name in ("first", "start", "last")}
    return {**columns, "now": places[0]["now"]}
