"""Causes in SQL: the part of a transaction that counts dead letters by fingerprint.

What is counted is written once, at the end of the commit: one row for each fingerprint, not for each letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from lazaretto.model.fingerprint import OTHER_TEXTS, VERSION, Fingerprint
from lazaretto.model.keys import SEQUENCE_BITS, SUBQUEUE_BITS, lower_bound, upper_bound
from lazaretto.store.records.repairs import CauseRecord, DeadLetterRecord, FingerprintRecord
from lazaretto.store.sql.commit_context import Part, Tally

HOUR = 3_600_000_000
#: How many fingerprints of one family, and of one subqueue, are told apart; all others are one.
_MOST_OF_FAMILY, _MOST_OF_PLACE = 1_000, 10_000
#: The number of columns of count_letters.
_WIDTH = 13
#: Fingerprints that a process remembers to be in the store.
_MOST_KNOWN = 50_000


class CauseTables(Part):
    """Operations on fingerprints and causes within one commit."""

    def count_letter(self, place: int, print_: Fingerprint, came: int | None = None) -> int:
        """Count a new dead letter; return its fingerprint as a number."""
        print_ = self._bounded(place, print_)
        number = print_.number
        came_at = self._context.now if came is None else came
        hour = came_at // HOUR
        tally = self._context.counted.get((place, number)) or Tally()
        self._context.counted[place, number] = Tally(
            tally.came + 1,
            min(came_at, tally.first) if tally.came else came_at,
            max(came_at, tally.last),
            tally.resolved,
            print_,
            {**tally.hours, hour: tally.hours.get(hour, 0) + 1},
        )
        return number

    def uncount_letters(self, keys: Sequence[int]) -> None:
        """Count dead letters as resolved, before they are."""
        for key, subqueue, number in self._context.run(
            "select_counted", (self._context.ids(keys),)
        ).fetchall():
            place = (key >> SEQUENCE_BITS) | subqueue
            tally = self._context.counted.get((place, number)) or Tally()
            self._context.counted[place, number] = tally._replace(resolved=tally.resolved + 1)

    def count_again(self, keys: Sequence[int]) -> None:
        """Count dead letters that were resolved as waiting again, once they are unresolved."""
        for key, subqueue, number in self._context.run(
            "select_counted", (self._context.ids(keys),)
        ).fetchall():
            place = (key >> SEQUENCE_BITS) | subqueue
            tally = self._context.counted.get((place, number)) or Tally()
            self._context.counted[place, number] = tally._replace(resolved=tally.resolved - 1)

    def _bounded(self, place: int, print_: Fingerprint) -> Fingerprint:
        """Return a fingerprint, or if there are too many like it one that stands for all others."""
        number, fingerprints = print_.number, self._context.memory.fingerprints
        if (place, number) in fingerprints or (place, number) in self._context.counted:
            return print_
        values = {"place": place, "fingerprint": number}
        if self._context.run("has_fingerprint", values).fetchone() is None:
            family, amounts = print_.family, self._context.memory.fingerprint_amounts
            for which, name in (((place, None), "count_fingerprints"), ((place, family), "count_family")):
                if which not in amounts:
                    (amounts[which],) = self._context.run(name, {"place": place, "family": family}).fetchone()
            if amounts[place, None] >= _MOST_OF_PLACE:
                return Fingerprint(None, None, None, OTHER_TEXTS)
            if amounts[place, family] >= _MOST_OF_FAMILY and print_.shape != OTHER_TEXTS:
                return self._bounded(place, print_._replace(shape=OTHER_TEXTS))
            amounts[place, None] += 1
            amounts[place, family] += 1
        if len(fingerprints) >= _MOST_KNOWN:
            fingerprints.clear()
        fingerprints.add((place, number))
        return print_

    def save_counts(self) -> None:
        """Write the counts of this commit so far."""
        if not self._context.counted:
            return
        counted, self._context.counted = self._context.counted, {}
        letters: list[Any] = []
        hours: list[Any] = []
        for (place, number), tally in counted.items():
            if tally.print_ is not None:
                family = tally.print_.family
                came, first, last = tally.came, tally.first, tally.last
                letters += (place, number, family, VERSION, *tally.print_, came, came, first, last, first)
                for hour, amount in tally.hours.items():
                    hours += (place, number, hour, amount)
        if letters:
            self._context.insert("count_letters", letters, len(letters) // _WIDTH)
            self._context.insert("count_hours", hours, len(hours) // 4)
        for (place, number), tally in counted.items():
            if tally.resolved:
                values = {
                    "place": place,
                    "fingerprint": number,
                    "count": tally.resolved,
                    "now": self._context.now,
                }
                self._context.run("uncount_letters", values)

    def fingerprints(self, place: int) -> list[FingerprintRecord]:
        """Return all fingerprints of a subqueue, oldest first."""
        rows = self._context.run("select_fingerprints", {**_bounds(place), "place": place})
        return [FingerprintRecord(*row) for row in rows]

    def all(self, place: int) -> list[CauseRecord]:
        """Return all causes of a subqueue, by number."""
        return [CauseRecord(*row) for row in self._context.run("select_causes", (place,))]

    def save(self, place: int, cause: CauseRecord) -> None:
        """Store the state of a cause."""
        self._context.run("save_cause", {"place": place, **msgspec.structs.asdict(cause)})

    def assign(self, place: int, fingerprints: Sequence[int], cause: int, *, kept: bool) -> None:
        """Assign fingerprints to a cause. `kept`: an operator decided it."""
        values = {
            "place": place,
            "fingerprints": self._context.ids(fingerprints),
            "cause": cause,
            "kept": int(kept),
        }
        self._context.run("set_cause", values)

    def hours(self, place: int, hour: int) -> Iterable[tuple[int, int, int]]:
        """Return fingerprint, hour since 1970 and number of dead letters, from a given hour on."""
        return self._context.run("select_cause_hours", {"place": place, "hour": hour}).fetchall()

    def unknown_letters(self, place: int, limit: int) -> list[DeadLetterRecord]:
        """Return unresolved dead letters without a fingerprint."""
        rows = self._context.run("select_unknown_letters", {**_bounds(place), "limit": limit})
        return [DeadLetterRecord(*row) for row in rows]

    def set_fingerprint(self, place: int, letter: DeadLetterRecord, print_: Fingerprint) -> None:
        """Assign a missing fingerprint to a dead letter, and count it."""
        number = self.count_letter(place, print_, letter.dead_lettered)
        self._context.run("set_fingerprint", {"key": letter.key, "fingerprint": number})

    def recount(self, place: int) -> None:
        """Recount unresolved dead letters."""
        self._context.run("recount_letters", {**_bounds(place), "place": place})


def _bounds(place: int) -> dict[str, int]:
    """Return between which keys the dead letters of a place have theirs in the queue itself."""
    queue_id, subqueue = place >> SUBQUEUE_BITS, place & (1 << SUBQUEUE_BITS) - 1
    return {"first": lower_bound(queue_id), "last": upper_bound(queue_id), "subqueue": subqueue}
