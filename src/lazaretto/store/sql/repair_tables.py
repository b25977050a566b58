"""Repairs in SQL: the part of a transaction for frozen sets of dead letters and what became of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from lazaretto.store.records.repairs import (
    DeadLetterCriteria,
    ItemStanding,
    NewRepair,
    Original,
    RepairItem,
    RepairRecord,
)
from lazaretto.store.sql.cause_tables import CauseTables
from lazaretto.store.sql.commit_context import CommitContext, Part
from lazaretto.store.sql.history_tables import HistoryTables, LetterQuery

#: Frozen letters that are fetched at once: so few that Python need not look for garbage among their rows.
_ROWS = 500
_FROZEN = LetterQuery("select_frozen", "select_frozen_alike", "select_frozen_named")
#: What removes a repair, in this order.
_OF_A_REPAIR = (
    "delete_repair_originals", "delete_repair_items", "delete_repair_members", "delete_repairs",
)  # fmt: skip


class RepairTables(Part):
    """Operations on repairs within one commit."""

    def __init__(self, context: CommitContext, causes: CauseTables, history: HistoryTables) -> None:
        super().__init__(context)
        self._causes = causes
        self._history = history

    # -- repairs --------------------------------------------------------------------------------

    def insert(self, repair: NewRepair, parts: Sequence[bytes]) -> RepairRecord:
        """Add a repair with its frozen set, in parts."""
        values = {**msgspec.structs.asdict(repair), "now": self._context.now}
        (number,) = self._context.run("insert_repair", values).fetchone()
        rows: list[Any] = []
        for part, keys in enumerate(parts):
            rows += (number, part, keys)
        if rows:
            self._context.insert("insert_repair_members", rows, len(parts))
        saved = self.find(number)
        assert saved is not None
        return saved

    def find(self, repair: int) -> RepairRecord | None:
        """Return a repair by its number."""
        row = self._context.run("select_repair", (repair,)).fetchone()
        return RepairRecord(*row) if row else None

    def named(self, name: str) -> RepairRecord | None:
        """Return a repair by its name."""
        row = self._context.run("select_repair_named", (name,)).fetchone()
        return RepairRecord(*row) if row else None

    def all(self, limit: int, queue_id: int | None = None) -> list[RepairRecord]:
        """Return all repairs, or those of a queue, newest first."""
        rows = self._context.run("select_repairs", {"queue_id": queue_id, "limit": limit})
        return [RepairRecord(*row) for row in rows]

    def running(self) -> list[RepairRecord]:
        """Return the repairs on which there is work to do, oldest first."""
        return [RepairRecord(*row) for row in self._context.run("select_running_repairs")]

    def last(self) -> int:
        """Return the highest number of a repair."""
        (number,) = self._context.run("count_repairs").fetchone()
        return int(number)

    def save(self, repair: RepairRecord) -> None:
        """Store how a repair stands."""
        self._context.run("save_repair", msgspec.structs.asdict(repair))

    # -- the frozen set -------------------------------------------------------------------------

    def part(self, repair: int, part: int) -> bytes:
        """Return a part of a repair's frozen set."""
        (keys,) = self._context.run("select_repair_members", (repair, part)).fetchone()
        return bytes(keys)

    def frozen(self, criteria: DeadLetterCriteria, limit: int) -> Iterator[list[tuple[int, int | None, int]]]:
        """Yield key, fingerprint and time of unresolved dead letters, lowest key first, some at a time."""
        rows = iter(self._history.selected(_FROZEN, criteria, limit))
        while some := list(itertools.islice(rows, _ROWS)):
            yield some

    def headers(self, keys: Sequence[int]) -> dict[int, bytes | None]:
        """Return the headers of messages, by key."""
        return dict(self._context.run("select_headers", (self._context.ids(keys),)).fetchall())

    # -- letters --------------------------------------------------------------------------------

    def add_items(self, repair: int, items: Sequence[RepairItem]) -> None:
        """Add what became of letters."""
        values: list[Any] = []
        for item in items:
            values += (
                repair, item.key, item.new_key, item.generation, item.before, item.why, item.outcome,
            )  # fmt: skip
        self._context.insert("insert_repair_items", values, len(items))

    def items(self, repair: int, keys: Sequence[int]) -> list[RepairItem]:
        """Return what became of some letters."""
        values = {"repair": repair, "keys": self._context.ids(keys)}
        return [RepairItem(*row) for row in self._context.run("select_repair_items", values)]

    def skipped(self, repair: int, after: int, limit: int) -> list[RepairItem]:
        """Return letters that were skipped, lowest key first."""
        rows = self._context.run("select_skipped_items", (repair, after, limit))
        return [RepairItem(*row) for row in rows]

    def standings(self, repair: int, after: int, limit: int, *, failed: bool = False) -> list[ItemStanding]:
        """Return how letters stand that were dealt with, or that failed again, lowest key first."""
        query = "select_failed_items" if failed else "select_items_of"
        rows = self._context.run(query, (repair, after, limit))
        return [ItemStanding(RepairItem(*item), bool(died), state) for *item, died, state in rows]

    def open(self, repair: int) -> int:
        """Return the number of letters that are watched."""
        (number,) = self._context.run("count_open_items", (repair,)).fetchone()
        return int(number)

    def finished(self, repair: int, limit: int) -> list[tuple[int, bool]]:
        """Return the keys of watched letters that are finished, and whether they died again."""
        rows = self._context.run("select_finished_items", (repair, limit))
        return [(key, bool(died)) for key, died in rows]

    def set_outcomes(self, repair: int, outcomes: Mapping[str, Sequence[int]]) -> None:
        """Store outcomes of letters, which are no longer watched."""
        for outcome, keys in outcomes.items():
            if keys:
                values = {"repair": repair, "outcome": outcome, "keys": self._context.ids(keys)}
                self._context.run("set_item_outcomes", values)

    def skip_items(self, repair: int, keys: Sequence[int], why: str) -> None:
        """Store that letters do not count for a repair any more, and why."""
        self._context.run("skip_items", {"repair": repair, "why": why, "keys": self._context.ids(keys)})

    def count(self, repair: int) -> list[tuple[str | None, bool, int | None, int]]:
        """Count the letters that were sent: by outcome, whether they died again, and state."""
        rows = self._context.run("count_item_outcomes", (repair,))
        return [(outcome, bool(died), state, number) for outcome, died, state, number in rows]

    def add_originals(self, repair: int, originals: Sequence[Original]) -> None:
        """Keep edited letters as they were."""
        values: list[Any] = []
        for original in originals:
            values += (repair, original.key, original.message_id, original.body)
        if values:
            self._context.insert("insert_repair_originals", values, len(originals))

    def originals(self, repair: int, keys: Sequence[int]) -> dict[int, Original]:
        """Return edited letters as they were, by key."""
        values = {"repair": repair, "keys": self._context.ids(keys)}
        rows = self._context.run("select_repair_originals", values)
        return {key: Original(key, message_id, bytes(body)) for key, message_id, body in rows}

    def reopen(self, keys: Sequence[int]) -> None:
        """Let dead letters be unresolved again, and count them."""
        self._context.run("reopen_dead_letters", (self._context.ids(keys),))
        self._causes.count_again(keys)

    # -- what is no longer kept -----------------------------------------------------------------

    def forget(self, before: int) -> bool:
        """Delete repairs that ended before a time; return whether there may be more."""
        # One at a time, because each may have a million letters.
        ended = [repair for (repair,) in self._context.run("select_ended_repairs", (before, 1))]
        if ended:
            for name in _OF_A_REPAIR:
                self._context.run(name, (self._context.ids(ended),))
        return bool(ended)
