"""Operators' changes to causes: they merge several, part them again, and split parts off."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from lazaretto.engine.command import Command, Detail, Numbers, OfPath
from lazaretto.engine.log import audit
from lazaretto.engine.outcome.causes import OfCause, place_at
from lazaretto.engine.outcome.dead_letter_operations import known_cause
from lazaretto.errors import InvalidOption
from lazaretto.model.causes import LAST_CAUSE
from lazaretto.model.checks import moment, shown, text, whole
from lazaretto.model.clock import to_datetime
from lazaretto.model.fingerprint import plain_fingerprint, shown_fingerprint
from lazaretto.store.records.repairs import CauseRecord, FingerprintRecord
from lazaretto.store.sql.transaction import Transaction

#: The most fingerprints that an entry of the audit log names.
_AUDITED = 500
#: The most characters of a note.
_LONGEST_NOTE: Final = 4096

_replace = msgspec.structs.replace


_CAUSES: Final = ("{path}", "causes")


class MergeCauses(OfPath[int], frozen=True, kw_only=True):
    """Make several causes one; it stays one.

    The answer is its number, the lowest of theirs.
    """

    action = "merge_causes"
    touched = _CAUSES
    numbers: Numbers

    def run(self, tx: Transaction, actor: str) -> int:
        numbers = [whole("numbers", number, 1, LAST_CAUSE) for number in self.numbers]
        place, path = place_at(tx, self.place), str(self.place)
        records = [known_cause(tx, place, number, path) for number in numbers]
        by_number = {cause.number: cause for cause in records}
        if len(by_number) < 2:
            raise InvalidOption(f"expected at least two causes to merge, got {shown(tuple(numbers))}")
        first, *others = sorted(by_number)
        theirs = [p for p in tx.causes.fingerprints(place) if p.cause in others]
        tx.causes.assign(place, [p.fingerprint for p in theirs], first, kept=True)
        tx.causes.save(place, _unexplained(by_number[first]))
        for number in others:
            tx.causes.save(place, _replace(by_number[number], merged_into=first))
        names = None
        if len(theirs) <= _AUDITED:
            names = {
                number: [plain_fingerprint(p.fingerprint) for p in theirs if p.cause == number]
                for number in others
            }
        details = {"into": first, "merged": others, "fingerprints": names}
        audit(tx, actor, self.action, path, **details)
        return first

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        # Too many fingerprints are not kept; an older version noted those of all causes as a list.
        names = detail.get("fingerprints")
        if isinstance(names, dict):
            parts = {int(number): tuple(theirs) for number, theirs in names.items()}
            return UnmergeCauses(path=path, number=detail["into"], parts=parts)
        if not names or len(detail["merged"]) > 1:
            return None
        return SplitCause(path=path, number=detail["into"], fingerprints=tuple(names))


class UnmergeCauses(OfCause[int], frozen=True, kw_only=True):
    """Part causes that were merged into one again. `parts`: by number, the fingerprints that each had.

    Those that went elsewhere meanwhile stay there, and a cause that has none left stays merged. Raises
    InvalidOption if none has.
    """

    action = "unmerge_causes"
    touched = _CAUSES
    parts: dict[int, tuple[str, ...]]

    def run(self, tx: Transaction, actor: str) -> int:
        parts = {
            whole("parts", number, 1, LAST_CAUSE): [text("parts", name, 16) for name in names]
            for number, names in self.parts.items()
        }
        (place, merged), path = self.cause(tx), str(self.place)
        causes = {cause.number: cause for cause in tx.causes.all(place)}
        prints = _by_name(tx, place)
        theirs = {name: p for name, p in prints.items() if p.cause == merged.number}
        parted: dict[int, list[str]] = {}
        for number, names in parts.items():
            joined = number in causes and causes[number].merged_into is not None
            if not joined or known_cause(tx, place, number, path).number != merged.number:
                raise InvalidOption(f"expected a cause that was merged into {merged.number}, got {number}")
            taken = [name for name in dict.fromkeys(names) if theirs.pop(name, None) is not None]
            parted |= {number: taken} if taken else {}
        if not theirs or not parted:
            raise InvalidOption(
                f"expected fingerprints of cause {merged.number} to part, and some that are left to it"
            )
        for number, taken_names in parted.items():
            tx.causes.save(place, _unexplained(_replace(causes[number], merged_into=None)))
            tx.causes.assign(place, [prints[name].fingerprint for name in taken_names], number, kept=True)
        tx.causes.save(place, _unexplained(merged))
        audit(
            tx,
            actor,
            self.action,
            path,
            cause=merged.number,
            parts={
                number: [plain_fingerprint(prints[name].fingerprint) for name in taken_names]
                for number, taken_names in parted.items()
            },
        )
        return merged.number

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        return MergeCauses(path=path, numbers=(detail["cause"], *map(int, detail["parts"])))


class SplitCause(OfCause[int], frozen=True, kw_only=True):
    """Make some of a cause's fingerprints a cause of their own.

    It stays apart. The answer is its number.
    """

    action = "split_cause"
    touched = _CAUSES
    fingerprints: tuple[str, ...]

    def run(self, tx: Transaction, actor: str) -> int:
        names = [text("fingerprints", name, 16) for name in self.fingerprints]
        place, cause = self.cause(tx)
        theirs = {name: p for name, p in _by_name(tx, place).items() if p.cause == cause.number}
        prints = list(dict.fromkeys(names))
        unknown = [name for name in prints if name not in theirs]
        if unknown or not prints or len(prints) == len(theirs):
            raise InvalidOption(
                f"expected some, but not all, of the fingerprints of cause {cause.number} "
                f"({', '.join(sorted(theirs))}), got {shown(prints)}"
            )
        number = max(c.number for c in tx.causes.all(place)) + 1
        tx.causes.save(place, _unexplained(cause))
        chief = max((theirs[name] for name in prints), key=lambda p: (p.waiting, p.total))
        tx.causes.save(place, CauseRecord(number, chief.shape, tx.now, split_from=cause.number))
        tx.causes.assign(place, [theirs[name].fingerprint for name in prints], number, kept=True)
        audit(
            tx, actor, self.action, str(self.place),
            cause=cause.number, into=number,
            fingerprints=[plain_fingerprint(theirs[name].fingerprint) for name in prints],
        )  # fmt: skip
        return number

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        return MergeCauses(path=path, numbers=(detail["cause"], detail["into"]))


def _by_name(tx: Transaction, place: int) -> dict[str, FingerprintRecord]:
    """Return the fingerprints of a place, by what people see of them."""
    key = tx.access.fingerprint_key()
    return {shown_fingerprint(p.fingerprint, key): p for p in tx.causes.fingerprints(place)}


def _unexplained(cause: CauseRecord) -> CauseRecord:
    """Return a cause whose letters are others now."""
    return _replace(cause, difference=None, explained=None)


def moment_of(micros: int | None) -> datetime | None:
    return None if micros is None else to_datetime(micros)


class NoteCause(OfCause[None], frozen=True, kw_only=True):
    """Keep a note with a cause; null removes it."""

    action = "note_cause"
    touched = ("{path}", action, "{cause}")
    note: str | None

    def run(self, tx: Transaction, actor: str) -> None:
        note = None if self.note is None else text("note", self.note, _LONGEST_NOTE)
        place, cause = self.cause(tx)
        tx.causes.save(place, _replace(cause, note=note))
        changed = {"cause": cause.number, "note": note, "before": cause.note}
        audit(tx, actor, self.action, str(self.place), **changed)

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        if "before" not in detail:
            return None
        return cls(path=path, number=detail["cause"], note=detail["before"])


class AcknowledgeCause(OfCause[None], frozen=True, kw_only=True):
    """Note until when a cause is known; null withdraws that.

    It needs no attention until then.
    """

    action = "acknowledge_cause"
    touched = ("{path}", action, "{cause}")
    until: datetime | None

    def run(self, tx: Transaction, actor: str) -> None:
        end = moment("until", self.until)
        place, cause = self.cause(tx)
        tx.causes.save(place, _replace(cause, acknowledged_until=end))
        until, before = map(moment_of, (end, cause.acknowledged_until))
        changed = {"cause": cause.number, "until": until, "before": before}
        audit(tx, actor, self.action, str(self.place), **changed)

    @classmethod
    def opposite(cls, path: str, detail: Detail) -> Command | None:
        if "before" not in detail:
            return None
        until = msgspec.convert(detail["before"], datetime | None)
        return cls(path=path, number=detail["cause"], until=until)
