"""Operators' changes to causes: they merge several, part them again, and split parts off."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lazaretto.engine.log import audit
from lazaretto.engine.outcome.causes import place_at
from lazaretto.engine.outcome.dead_letter_operations import known_cause
from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.entities import EntityPath
from lazaretto.model.fingerprint import plain_fingerprint, shown_fingerprint
from lazaretto.store.records.causes import CauseRecord, FingerprintRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: The most fingerprints that an entry of the audit log names.
_AUDITED = 500

_replace = msgspec.structs.replace


@dataclasses.dataclass(slots=True)
class MergeCauses(Operation[int]):
    """Merge several causes into the one with the lowest number; return that number."""

    path: EntityPath
    numbers: Sequence[int]
    actor: str

    def run(self, tx: Transaction) -> int:
        place = place_at(tx, self.path)
        known = [known_cause(tx, place, number, str(self.path)) for number in self.numbers]
        found = {cause.number: cause for cause in known}
        if len(found) < 2:
            raise InvalidOption(f"expected at least two causes to merge, got {shown(tuple(self.numbers))}")
        first, *others = sorted(found)
        theirs = [p for p in tx.causes.fingerprints(place) if p.cause in others]
        tx.causes.assign(place, [p.fingerprint for p in theirs], first, kept=True)
        tx.causes.save(place, _unexplained(found[first]))
        for number in others:
            tx.causes.save(place, _replace(found[number], merged_into=first))
        names = None
        if len(theirs) <= _AUDITED:
            names = {
                number: [plain_fingerprint(p.fingerprint) for p in theirs if p.cause == number]
                for number in others
            }
        told = {"into": first, "merged": others, "fingerprints": names}
        audit(tx, self.actor, "merge_causes", str(self.path), **told)
        return first


@dataclasses.dataclass(slots=True)
class UnmergeCauses(Operation[int]):
    """Part causes that were merged into one again, each with its fingerprints; return the number of that one.

    `parts`: the fingerprints of each, by its number. Those that went elsewhere meanwhile stay there, and a
    cause that has none left stays merged. Raises InvalidOption if none has.
    """

    path: EntityPath
    number: int
    parts: Mapping[int, Iterable[str]]
    actor: str

    def run(self, tx: Transaction) -> int:
        place, path = place_at(tx, self.path), str(self.path)
        whole = known_cause(tx, place, self.number, path)
        causes = {cause.number: cause for cause in tx.causes.all(place)}
        prints = _by_name(tx, place)
        theirs = {name: p for name, p in prints.items() if p.cause == whole.number}
        parted: dict[int, list[str]] = {}
        for number, names in self.parts.items():
            merged = number in causes and causes[number].merged_into is not None
            if not merged or known_cause(tx, place, number, path).number != whole.number:
                raise InvalidOption(f"expected a cause that was merged into {whole.number}, got {number}")
            left = [name for name in dict.fromkeys(names) if theirs.pop(name, None) is not None]
            parted |= {number: left} if left else {}
        if not theirs or not parted:
            raise InvalidOption(
                f"expected fingerprints of cause {whole.number} to part, and some that are left to it"
            )
        for number, found in parted.items():
            tx.causes.save(place, _unexplained(_replace(causes[number], merged_into=None)))
            tx.causes.assign(place, [prints[name].fingerprint for name in found], number, kept=True)
        tx.causes.save(place, _unexplained(whole))
        audit(
            tx,
            self.actor,
            "unmerge_causes",
            path,
            cause=whole.number,
            parts={
                number: [plain_fingerprint(prints[name].fingerprint) for name in found]
                for number, found in parted.items()
            },
        )
        return whole.number


@dataclasses.dataclass(slots=True)
class SplitCause(Operation[int]):
    """Split some fingerprints of a cause off into a new cause; return its number."""

    path: EntityPath
    number: int
    fingerprints: Iterable[str]
    actor: str

    def run(self, tx: Transaction) -> int:
        place = place_at(tx, self.path)
        cause = known_cause(tx, place, self.number, str(self.path))
        theirs = {name: p for name, p in _by_name(tx, place).items() if p.cause == cause.number}
        wanted = list(dict.fromkeys(self.fingerprints))
        unknown = [name for name in wanted if name not in theirs]
        if unknown or not wanted or len(wanted) == len(theirs):
            raise InvalidOption(
                f"expected some, but not all, of the fingerprints of cause {cause.number} "
                f"({', '.join(sorted(theirs))}), got {shown(wanted)}"
            )
        number = max(c.number for c in tx.causes.all(place)) + 1
        tx.causes.save(place, _unexplained(cause))
        chief = max((theirs[name] for name in wanted), key=lambda p: (p.waiting, p.total))
        tx.causes.save(place, CauseRecord(number, chief.shape, tx.now, split_from=cause.number))
        tx.causes.assign(place, [theirs[name].fingerprint for name in wanted], number, kept=True)
        audit(
            tx, self.actor, "split_cause", str(self.path),
            cause=cause.number, into=number,
            fingerprints=[plain_fingerprint(theirs[name].fingerprint) for name in wanted],
        )  # fmt: skip
        return number


def _by_name(tx: Transaction, place: int) -> dict[str, FingerprintRecord]:
    """Return the fingerprints of a place, by what people see of them."""
    key = tx.access.fingerprint_key()
    return {shown_fingerprint(p.fingerprint, key): p for p in tx.causes.fingerprints(place)}


def _unexplained(cause: CauseRecord) -> CauseRecord:
    """Return a cause whose letters are others now."""
    return _replace(cause, difference=None, explained=None)
