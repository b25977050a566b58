"""Repairs: what is planned, how it stands, and what became of each letter."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from lazaretto.model.html_tables import html_table
from lazaretto.model.repair_phases import Phase

#: The orders in which letters are sent back: by number, or one session after the other.
BY_NUMBER, BY_SESSION = "number", "session"
ORDERS: Final = (BY_NUMBER, BY_SESSION)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a repair. It never changes. Times in microseconds.

    `which`: the filter's parts, as text. `members`: a hash of the frozen set in its order. `frozen_at`:
    letters that were set aside later are not in it. `first`, `last`: its lowest and highest sequence number.
    `fingerprints`: letters by fingerprint. `sessions`: how many, where they matter. `edit_source`: of a
    function, a hash of its module. `canary`: how many letters are sent first. `canary_failures`: how many of
    them may fail again. `canary_wait`: seconds. `planners`: all who may be behind whoever planned it.
    """

    which: dict[str, Any]
    members: str
    frozen_at: int
    first: int
    last: int
    fingerprints: dict[str, int]
    order: str = BY_NUMBER
    sessions: int | None = None
    to: str | None = None
    edit: str | None = None
    edit_digest: str | None = None
    edit_source: str | None = None
    canary: int = 0
    canary_failures: int = 0
    canary_wait: float = 600.0
    planners: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of what will be done: to which letters, in which order, how edited, and where they go."""
        parts = (self.members, self.order, self.to, self.edit_digest, self.canary)
        return hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class RepairCounts:
    """How many letters of a repair stand how; together they are all of its letters.

    `left`: not dealt with yet. `waiting`: sent, and still in the queue. `processed`: sent, and gone without
    becoming dead letters again. `failed`: dead letters again. `skipped`: not sent, with a reason. `undone`:
    taken back.
    """

    left: int
    waiting: int = 0
    processed: int = 0
    failed: int = 0
    skipped: int = 0
    undone: int = 0

    @property
    def sent(self) -> int:
        """The letters that were sent and not taken back."""
        return self.waiting + self.processed + self.failed


@dataclasses.dataclass(frozen=True, slots=True)
class RepairStatus:
    """How a repair stands.

    `which`: the filter's parts. `digest`: a hash of what will be done. `fingerprints`: letters by
    fingerprint. `why`: why it is in its phase, if nobody asked for it. `window`: how many letters may be in
    flight now, of at most `in_flight`. `rate`: the most letters a second. `runner`: the process at work on
    it. `next_verbs`: what can be done with it now. `subqueue`: where the letters are. `estimate`: seconds
    until all letters are sent, at its speed so far; None if that is not known.
    """

    name: str
    queue: str
    phase: Phase
    why: str | None
    letters: int
    counts: RepairCounts
    which: Mapping[str, Any]
    digest: str
    fingerprints: Mapping[str, int]
    first: int
    last: int
    frozen_at: datetime
    order: str
    sessions: int | None
    to: str | None
    edit: str | None
    canary: int
    in_flight: int | None
    window: int | None
    rate: float | None
    actor: str
    created: datetime
    changed: datetime
    ended: datetime | None
    runner: str | None
    next_verbs: tuple[str, ...]
    subqueue: str
    estimate: float | None

    def _repr_html_(self) -> str:
        counts = dataclasses.asdict(self.counts)
        why = "" if self.why is None else f" ({self.why})"
        return html_table(
            f"repair {self.name} of {self.queue}: {self.phase.value}{why}, {self.letters:,} letters",
            list(counts),
            [list(counts.values())],
        )


@dataclasses.dataclass(frozen=True, slots=True)
class RepairedLetter:
    """The outcome of a letter.

    `outcome`: waiting, processed, failed, skipped or undone. `why`: of one that was skipped.
    `sent_as`: its new sequence number, in `queue`; None if it was skipped.
    """

    sequence_number: int
    outcome: str
    why: str | None
    sent_as: int | None
    queue: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class EditedLetter:
    """How an edit changes a letter: lines that begin with "- " for what was, and "+ " for what is new."""

    sequence_number: int
    difference: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class RepairPreview:
    """The outcome of a repair's letters if they were sent now.

    `looked_at`: how many of `letters` it is about. `stops`: why nothing can be sent at present. `to`: the
    queue they go to. `bytes`: of bodies and headers. `sessions`: how many they belong to; `held_places`: how
    many letters return to their place in a session that waits for them. `duplicates`: how many have an id
    that was sent within the queue's window; they are sent all the same. `skipped`: how many would be skipped,
    by the reason. `changed`, `unchanged`: what the edit would do with the others. `examples`: the first ones
    that it would change.
    """

    looked_at: int
    letters: int
    stops: str | None
    to: str
    bytes: int
    sessions: int
    held_places: int
    duplicates: int
    skipped: Mapping[str, int]
    changed: int
    unchanged: int
    examples: tuple[EditedLetter, ...]
