"""Purges dead letters: sets them aside for a week, from where they can be restored, and then deletes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lazaretto.engine.four_eyes import count_letters
from lazaretto.engine.log import audit, note_all
from lazaretto.engine.outcome.dead_letter_operations import (
    DeadLetterFilter,
    Skipped,
    find_obstacle,
    holder,
    match_dead_letters,
    name_numbers,
)
from lazaretto.engine.routing.deliver import resolve
from lazaretto.errors import InvalidOption
from lazaretto.model.clock import to_datetime
from lazaretto.model.entities import EntityPath
from lazaretto.model.keys import aside_key, dead_key, lower_bound, place_of, sequence_of, upper_bound
from lazaretto.store.records.messages import MessageRow
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: How long a purged dead letter can be restored, in microseconds.
KEPT = 7 * 86_400 * 1_000_000
#: How many dead letters of a cause one commit sets aside or restores.
LETTERS_OF_CAUSE = 10_000
#: What becomes of a dead letter that is set aside, and then of one that is deleted.
PURGED, DELETED = "purged", "deleted"


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreReport:
    """The numbers of restored dead letters; and those skipped, and why."""

    restored: list[int]
    skipped: list[Skipped]


@dataclasses.dataclass(slots=True)
class Purge(Operation[list[int]]):
    """Set dead letters aside, as they are; return which."""

    path: EntityPath
    sequence_numbers: Sequence[int]
    actor: str
    detail: dict[str, Any]

    def run(self, tx: Transaction) -> list[int]:
        queue = holder(tx, self.path)
        keys = [lower_bound(queue.queue_id) + number for number in dict.fromkeys(self.sequence_numbers)]
        rows = tx.rows([dead_key(key, self.path.subqueue) for key in keys])
        records = tx.history.some_dead_letters(keys)
        purged = {
            key: row
            for key, row in ((key, rows.get(dead_key(key, self.path.subqueue))) for key in keys)
            if row is not None and find_obstacle(row, records.get(key)) is None
        }
        numbers = [sequence_of(key) for key in purged]
        count_letters(tx, self.actor, len(purged), "purge")
        if purged:
            # The highest number of each lane must stay known when its message goes.
            tx.sequences.keep_highest(list(purged))
            tx.save_rows({aside_key(key): row for key, row in purged.items()})
            resolve(tx, list(purged), PURGED)
            note_all(tx, "purged", [(queue, number, {}) for number in numbers])
            audit(tx, self.actor, "purge", queue.path, **name_numbers(numbers), **self.detail)
        return numbers


@dataclasses.dataclass(slots=True)
class Restore(Operation[RestoreReport]):
    """Make dead letters of those that were purged again, as they were."""

    path: EntityPath
    sequence_numbers: Sequence[int]
    actor: str

    def run(self, tx: Transaction) -> RestoreReport:
        queue = holder(tx, self.path)
        keys = [lower_bound(queue.queue_id) + number for number in dict.fromkeys(self.sequence_numbers)]
        rows = tx.rows([aside_key(key) for key in keys])
        records = tx.history.some_dead_letters(keys)
        back: dict[int, MessageRow] = {}
        skipped = []
        for key in keys:
            row, record = rows.get(aside_key(key)), records.get(key)
            if record is None or record.subqueue != place_of(self.path.subqueue):
                skipped.append(Skipped(sequence_of(key), "not found"))
            elif row is None:
                skipped.append(Skipped(sequence_of(key), f"it is {record.resolution or 'still there'}"))
            else:
                back[key] = row
        numbers = [sequence_of(key) for key in back]
        if back:
            tx.save_rows({dead_key(key, self.path.subqueue): row for key, row in back.items()})
            tx.repairs.reopen(list(back))
            note_all(tx, "restored", [(queue, number, {}) for number in numbers])
            audit(tx, self.actor, "restore", queue.path, **name_numbers(numbers))
        return RestoreReport(numbers, skipped)


@dataclasses.dataclass(frozen=True, slots=True)
class PartReport:
    """The number of letters that one commit changed, and of those that are left for another one."""

    letters: int
    remaining: int


@dataclasses.dataclass(slots=True)
class PurgeCause(Operation[PartReport]):
    """Set the dead letters of a cause aside, up to 10,000 in this commit."""

    path: EntityPath
    number: int
    actor: str

    def run(self, tx: Transaction) -> PartReport:
        numbers = match_dead_letters(tx, self.path, DeadLetterFilter(cause=self.number))
        part = list(numbers[:LETTERS_OF_CAUSE])
        # The time is that of all these letters, so it names them, however many they are.
        detail = {"cause": self.number, "at": to_datetime(tx.now)}
        purged = Purge(self.path, part, self.actor, detail).run(tx)
        return PartReport(len(purged), len(numbers) - len(part))


@dataclasses.dataclass(slots=True)
class RestorePurged(Operation[PartReport]):
    """Restore what was set aside at a time, or all for None, up to 10,000 letters in this commit."""

    path: EntityPath
    at: int | None
    actor: str

    def run(self, tx: Transaction) -> PartReport:
        keys = purged_keys(tx, self.path)
        if self.at is not None:
            records = tx.history.some_dead_letters(keys)
            keys = [key for key in keys if records[key].resolved == self.at]
        part = [sequence_of(key) for key in keys[:LETTERS_OF_CAUSE]]
        report = Restore(self.path, part, self.actor).run(tx)
        return PartReport(len(report.restored), len(keys) - len(part))


@dataclasses.dataclass(slots=True)
class DeletePurged(Operation[int]):
    """Delete purged dead letters for good, if they are as many as was said; return how many."""

    path: EntityPath
    count: int
    actor: str

    def run(self, tx: Transaction) -> int:
        queue = holder(tx, self.path)
        keys = purged_keys(tx, self.path)
        if len(keys) != self.count:
            raise InvalidOption(
                f"expected count to be the number of purged dead letters of {str(self.path)!r}, which is "
                f"{len(keys)}, got {self.count}"
            )
        count_letters(tx, self.actor, len(keys), "delete")
        delete_purged(tx, keys)
        if keys:
            numbers = name_numbers(map(sequence_of, keys))
            audit(tx, self.actor, "delete_purged", queue.path, **numbers)
        return len(keys)


def purged_keys(tx: Transaction, path: EntityPath) -> list[int]:
    """Return the keys of a queue's purged dead letters that can be restored, lowest first."""
    queue = holder(tx, path)
    place = place_of(path.subqueue)
    return tx.history.purged(lower_bound(queue.queue_id), upper_bound(queue.queue_id), place)


def delete_purged(tx: Transaction, keys: Sequence[int]) -> None:
    """Delete purged dead letters, of any queues, with their history."""
    if not keys:
        return
    rows: Mapping[int, MessageRow] = tx.rows([aside_key(key) for key in keys])
    tx.delete_messages(list(rows))
    tx.bodies.delete([row.body_id for row in rows.values() if row.body_id is not None])
    tx.history.delete_attempts(list(keys))
    tx.history.mark_deleted(list(keys))


def sweep_purged(tx: Transaction, limit: int) -> bool:
    """Delete those that were purged a week ago; return whether there may be more."""
    keys = tx.history.purged_before(tx.now - KEPT, limit)
    delete_purged(tx, keys)
    return len(keys) >= limit
