"""Purges dead letters: sets them aside for a week, from where they can be restored, and then deletes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from lazaretto.engine.command import Command, Detail, OfLetters, OfPath, Touch
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
from lazaretto.model.causes import LAST_CAUSE
from lazaretto.model.checks import moment, whole
from lazaretto.model.clock import to_datetime
from lazaretto.model.entities import EntityPath
from lazaretto.model.grants import Permission
from lazaretto.model.keys import (
    LAST_SEQUENCE,
    aside_key,
    dead_key,
    lower_bound,
    place_of,
    sequence_of,
    upper_bound,
)
from lazaretto.store.records.messages import MessageRow
from lazaretto.store.sql.transaction import Transaction

#: How long a purged dead letter can be restored, in microseconds.
KEPT = 7 * 86_400 * 1_000_000
#: How many dead letters of a cause one commit sets aside or restores.
LETTERS_OF_CAUSE = 10_000
#: What becomes of a dead letter that is set aside.
PURGED = "purged"


@dataclasses.dataclass(frozen=True, slots=True)
class RestoreReport:
    """The numbers of restored dead letters; and those skipped, and why."""

    restored: list[int]
    skipped: list[Skipped]


class Purge(OfLetters[list[int]], frozen=True, kw_only=True):
    """Set dead letters aside for 7 days."""

    action = "purge"

    def run(self, tx: Transaction, actor: str) -> list[int]:
        return purge(tx, self.place, self.numbers, actor)

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        return Restore.of_entry(path, detail)


def purge(
    tx: Transaction,
    path: EntityPath,
    numbers: Sequence[int],
    actor: str,
    detail: Mapping[str, Any] | None = None,
) -> list[int]:
    """Set dead letters aside, as they are; return which."""
    queue = holder(tx, path)
    keys = [lower_bound(queue.queue_id) + number for number in dict.fromkeys(numbers)]
    rows = tx.rows([dead_key(key, path.subqueue) for key in keys])
    records = tx.history.some_dead_letters(keys)
    purged = {
        key: row
        for key, row in ((key, rows.get(dead_key(key, path.subqueue))) for key in keys)
        if row is not None and find_obstacle(row, records.get(key)) is None
    }
    gone = [sequence_of(key) for key in purged]
    count_letters(tx, actor, len(purged), "purge")
    if purged:
        # The highest number of each lane must stay known when its message goes.
        tx.sequences.keep_highest(list(purged))
        tx.save_rows({aside_key(key): row for key, row in purged.items()})
        resolve(tx, list(purged), PURGED)
        note_all(tx, "purged", [(queue, number, {}) for number in gone])
        audit(tx, actor, "purge", queue.path, **name_numbers(gone), **(detail or {}))
    return gone


class Restore(OfLetters[RestoreReport], frozen=True, kw_only=True):
    """Bring purged dead letters back as they were."""

    action = "restore"

    def run(self, tx: Transaction, actor: str) -> RestoreReport:
        return restore(tx, self.place, self.numbers, actor)

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        return Purge.of_entry(path, detail)


@dataclasses.dataclass(frozen=True, slots=True)
class PartReport:
    """The number of letters that one commit changed, and of those that are left for another one."""

    letters: int
    remaining: int


def restore(tx: Transaction, path: EntityPath, numbers: Sequence[int], actor: str) -> RestoreReport:
    """Make dead letters of those that were purged again, as they were."""
    queue = holder(tx, path)
    keys = [lower_bound(queue.queue_id) + number for number in dict.fromkeys(numbers)]
    rows = tx.rows([aside_key(key) for key in keys])
    records = tx.history.some_dead_letters(keys)
    back: dict[int, MessageRow] = {}
    skipped = []
    for key in keys:
        row, record = rows.get(aside_key(key)), records.get(key)
        if record is None or record.subqueue != place_of(path.subqueue):
            skipped.append(Skipped(sequence_of(key), "not found"))
        elif row is None:
            skipped.append(Skipped(sequence_of(key), f"it is {record.resolution or 'still there'}"))
        else:
            back[key] = row
    restored = [sequence_of(key) for key in back]
    if back:
        tx.save_rows({dead_key(key, path.subqueue): row for key, row in back.items()})
        tx.repairs.reopen(list(back))
        note_all(tx, "restored", [(queue, number, {}) for number in restored])
        audit(tx, actor, Restore.action, queue.path, **name_numbers(restored))
    return RestoreReport(restored, skipped)


class PurgeCause(OfPath[PartReport], frozen=True, kw_only=True):
    """Set the dead letters of a cause aside for 7 days, up to 10,000 at once.

    `number`: that of the cause. The answer has how many these were, and how many remain for another time.
    """

    action = "purge"
    number: int

    def run(self, tx: Transaction, actor: str) -> PartReport:
        path, number = self.place, whole("number", self.number, 1, LAST_CAUSE)
        numbers = match_dead_letters(tx, path, DeadLetterFilter(cause=number))
        part = list(numbers[:LETTERS_OF_CAUSE])
        # The time is that of all these letters, so it names them, however many they are.
        purged = purge(tx, path, part, actor, {"cause": number, "at": to_datetime(tx.now)})
        return PartReport(len(purged), len(numbers) - len(part))

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        return RestorePurged(path=path, at=datetime.fromisoformat(detail["at"])) if "at" in detail else None


class RestorePurged(OfPath[PartReport], frozen=True, kw_only=True):
    """Bring back what was set aside at a time, or all that was set aside for null, up to 10,000 at once.

    `at`: when it was set aside.
    """

    action = "restore"
    at: datetime | None = None

    def run(self, tx: Transaction, actor: str) -> PartReport:
        path, at = self.place, moment("at", self.at)
        keys = purged_keys(tx, path)
        if at is not None:
            records = tx.history.some_dead_letters(keys)
            keys = [key for key in keys if records[key].resolved == at]
        part = [sequence_of(key) for key in keys[:LETTERS_OF_CAUSE]]
        report = restore(tx, path, part, actor)
        return PartReport(len(report.restored), len(keys) - len(part))


class DeletePurged(OfPath[int], frozen=True, kw_only=True):
    """Delete all purged dead letters of a queue for good. `count`: how many these are."""

    action = "delete_purged"
    final: ClassVar[bool] = True
    permission = Permission.ADMINISTER
    count: int

    def run(self, tx: Transaction, actor: str) -> int:
        path, count = self.place, whole("count", self.count, 0, LAST_SEQUENCE)
        queue = holder(tx, path)
        keys = purged_keys(tx, path)
        if len(keys) != count:
            raise InvalidOption(
                f"expected count to be the number of purged dead letters of {str(path)!r}, which is "
                f"{len(keys)}, got {count}"
            )
        count_letters(tx, actor, len(keys), "delete")
        delete_purged(tx, keys)
        if keys:
            numbers = name_numbers(map(sequence_of, keys))
            audit(tx, actor, self.action, queue.path, **numbers)
        return len(keys)

    @classmethod
    def touches(cls, path: str, detail: Detail) -> list[Touch]:
        return OfLetters.touches(path, detail)


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
