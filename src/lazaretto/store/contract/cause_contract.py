"""Causes in the store: dead letters counted by fingerprint, and which fingerprints are one cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from lazaretto.model.fingerprint import Fingerprint
from lazaretto.store.contract.records import DeadLetterRecord


class FingerprintRecord(msgspec.Struct, frozen=True):
    """Dead letters that are alike. Times in microseconds.

    `waiting`: those that are not resolved; `since`: when the first of these came, `key`: the first of them;
    `emptied`: when there was none the last time. `cause`: its number, None if it was not looked for yet.
    `kept`: an operator has put them there.
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
    """What is known of a cause besides its fingerprints. `difference` is JSON. Times in microseconds."""

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
    """What an operation may count and look up of causes within one commit.

    `place` is a queue and its subqueue: what of a key is not the sequence number.
    """

    def count_letter(self, place: int, print_: Fingerprint) -> int:
        """Count a dead letter that came; return the fingerprint that it gets, as a number."""
        ...

    def save_counts(self) -> None:
        """Write what was counted in this commit so far."""
        ...

    def fingerprints(self, place: int) -> list[FingerprintRecord]:
        """Return all fingerprints of a subqueue, the oldest first."""
        ...

    def all(self, place: int) -> list[CauseRecord]:
        """Return all causes of a subqueue, by number."""
        ...

    def save(self, place: int, cause: CauseRecord) -> None:
        """Store how a cause stands."""
        ...

    def assign(self, place: int, fingerprints: Sequence[int], cause: int, *, kept: bool) -> None:
        """Let fingerprints belong to a cause. `kept`: because an operator says so."""
        ...

    def hours(self, place: int, hour: int) -> Iterable[tuple[int, int, int]]:
        """Return fingerprints, hours since 1970 from one on, and how many dead letters came then."""
        ...

    def unknown_letters(self, place: int, limit: int) -> list[DeadLetterRecord]:
        """Return dead letters that wait and have no fingerprint yet."""
        ...

    def set_fingerprint(self, place: int, letter: DeadLetterRecord, print_: Fingerprint) -> None:
        """Give a dead letter the fingerprint that it lacks, and count it by that."""
        ...

    def recount(self, place: int) -> None:
        """Count anew which dead letters wait."""
        ...
