"""Causes in the store: dead letters counted by fingerprint, and which fingerprints are one cause."""

from __future__ import annotations

import msgspec


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
