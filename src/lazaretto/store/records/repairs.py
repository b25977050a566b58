"""Causes of dead letters and repairs in the store: counts by fingerprint, and frozen sets of letters."""

from __future__ import annotations

from collections.abc import Sequence

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


class RepairRecord(msgspec.Struct, frozen=True):
    """A repair as the store keeps it. `plan` and `pace` are JSON. Times in microseconds.

    `position`: how many members were dealt with, from the start. `taken_back`: how many of these an undo has
    not looked at yet; None before. `processed`, `failed`: outcomes of letters that are watched. `runner`: the
    process that is at work on it, under a lease with a `token`.
    """

    repair: int
    name: str
    queue_id: int
    subqueue: int
    path: str
    phase: str
    why: str | None
    plan: str
    pace: str
    letters: int
    position: int
    sent: int
    skipped: int
    processed: int
    failed: int
    taken_back: int | None
    undone: int
    actor: str
    created: int
    changed: int
    ended: int | None
    runner: str | None
    token: int | None
    lease_until: int | None


class NewRepair(msgspec.Struct, frozen=True):
    """A repair to be stored: what was planned, and who planned it."""

    name: str
    queue_id: int
    subqueue: int
    path: str
    phase: str
    plan: str
    pace: str
    letters: int
    actor: str


class RepairItem(msgspec.Struct, frozen=True):
    """The outcome of a letter. `new_key`: of the message that was sent; None if it was skipped, and `why`.

    `generation`: of the message that was sent. `before`: what sending has changed of the letter. `outcome`:
    None while it is watched.
    """

    key: int
    new_key: int | None
    generation: int
    before: bytes | None
    why: str | None
    outcome: str | None


class ItemStanding(msgspec.Struct, frozen=True):
    """A letter, whether it died again, and the state of its message if that is there."""

    item: RepairItem
    died: bool
    state: int | None


class Original(msgspec.Struct, frozen=True):
    """An edited letter as it was."""

    key: int
    message_id: str
    body: bytes


class DeadLetterRecord(msgspec.Struct, frozen=True):
    """Why a message was dead-lettered, and how it was resolved. `counters` is JSON. Times in microseconds."""

    key: int
    message_id: str
    reason: str | None
    description: str | None
    error_type: str | None
    error_message: str | None
    dead_lettered: int
    enqueued: int
    counters: str
    generation: int
    resubmitted_from: int | None
    resolution: str | None = None
    resolved: int | None = None
    resubmitted_as: int | None = None
    #: The number of the dead-letter subqueue, as in keys.
    subqueue: int = 1
    fingerprint: int | None = None


class DeadLetterCriteria(msgspec.Struct, frozen=True):
    """Selects dead letters; None places no condition. Times in microseconds."""

    first: int
    last: int
    subqueue: int = 1
    reason: str | None = None
    error_type: str | None = None
    since: int | None = None
    until: int | None = None
    keys: Sequence[int] | None = None
    text: str | None = None
    fingerprints: Sequence[int] | None = None
