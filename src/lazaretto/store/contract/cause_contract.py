"""Causes in the store: dead letters counted by fingerprint, and which fingerprints are one cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from lazaretto.model.fingerprint import Fingerprint
from lazaretto.store.contract.records import DeadLetterRecord


class FingerprintRecord(msgspec.Struct, frozen=True):
    """Dead letters with one fingerprint. Times in microseconds.

    `waiting`: how many are unresolved. `since` and `key`: the arrival and key of the first of these.
    `emptied`: when there last were none. `cause`: the number of its cause, None if not assigned yet. `kept`:
    an operator assigned it.
    """

    fingerprint: int
    family: int
    reason: str | None
    error_type: str | None
    site: str | None
    shape: str | None
    waiting: int
    total: int
    first: int
    last: int
    since: int
    emptied: int | None
    cause: int | None
    kept: int
    key: int | None


class CauseRecord(msgspec.Struct, frozen=True):
    """A cause without its fingerprints. `difference` is JSON. Times in microseconds."""

    number: int
    template: str | None
    created: int
    note: str | None = None
    acknowledged_until: int | None = None
    merged_into: int | None = None
    split_from: int | None = None
    difference: str | None = None
    explained: int | None = None


class StoredCauses(Protocol):
    """Counts and looks up causes within one commit.

    `place` is a queue and subqueue: a key without its sequence number.
    """

    def count_letter(self, place: int, print_: Fingerprint) -> int:
        """Count a new dead letter; return its fingerprint as a number."""
        ...

    def save_counts(self) -> None:
        """Write the counts of this commit so far."""
        ...

    def fingerprints(self, place: int) -> list[FingerprintRecord]:
        """Return all fingerprints of a subqueue, oldest first."""
        ...

    def all(self, place: int) -> list[CauseRecord]:
        """Return all causes of a subqueue, by number."""
        ...

    def save(self, place: int, cause: CauseRecord) -> None:
        """Store the state of a cause."""
        ...

    def assign(self, place: int, fingerprints: Sequence[int], cause: int, *, kept: bool) -> None:
        """Assign fingerprints to a cause. `kept`: an operator decided it."""
        ...

    def hours(self, place: int, hour: int) -> Iterable[tuple[int, int, int]]:
        """Return fingerprint, hour since 1970 and number of dead letters, from a given hour on."""
        ...

    def unknown_letters(self, place: int, limit: int) -> list[DeadLetterRecord]:
        """Return unresolved dead letters without a fingerprint."""
        ...

    def set_fingerprint(self, place: int, letter: DeadLetterRecord, print_: Fingerprint) -> None:
        """Assign a missing fingerprint to a dead letter, and count it."""
        ...

    def recount(self, place: int) -> None:
        """Recount unresolved dead letters."""
        ...
