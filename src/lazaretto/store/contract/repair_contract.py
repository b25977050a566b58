"""Repairs in the store: frozen sets of dead letters, and what became of each letter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from lazaretto.store.contract.records import DeadLetterCriteria


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
    """What became of a letter. `new_key`: of the message that was sent; None if it was skipped, and `why`.

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


class StoredRepairs(Protocol):
    """Operations on repairs within one commit. Keys of letters are those in the queue itself."""

    def insert(self, repair: NewRepair, parts: Sequence[bytes]) -> RepairRecord:
        """Add a repair with its frozen set, in parts."""
        ...

    def find(self, repair: int) -> RepairRecord | None:
        """Return a repair by its number."""
        ...

    def named(self, name: str) -> RepairRecord | None:
        """Return a repair by its name."""
        ...

    def all(self, limit: int, queue_id: int | None = None) -> list[RepairRecord]:
        """Return all repairs, or those of a queue, newest first."""
        ...

    def running(self) -> list[RepairRecord]:
        """Return the repairs on which there is work to do, oldest first."""
        ...

    def last(self) -> int:
        """Return the highest number of a repair."""
        ...

    def save(self, repair: RepairRecord) -> None:
        """Store how a repair stands."""
        ...

    def part(self, repair: int, part: int) -> bytes:
        """Return a part of a repair's frozen set."""
        ...

    def frozen(self, criteria: DeadLetterCriteria, limit: int) -> Iterator[list[tuple[int, int | None, int]]]:
        """Yield key, fingerprint and time of unresolved dead letters, lowest key first, some at a time."""
        ...

    def headers(self, keys: Sequence[int]) -> dict[int, bytes | None]:
        """Return the headers of messages, by key."""
        ...

    def add_items(self, repair: int, items: Sequence[RepairItem]) -> None:
        """Add what became of letters."""
        ...

    def items(self, repair: int, keys: Sequence[int]) -> list[RepairItem]:
        """Return what became of some letters."""
        ...

    def skipped(self, repair: int, after: int, limit: int) -> list[RepairItem]:
        """Return letters that were skipped, lowest key first."""
        ...

    def standings(self, repair: int, after: int, limit: int, *, failed: bool = False) -> list[ItemStanding]:
        """Return how letters stand that were dealt with, or that failed again, lowest key first."""
        ...

    def open(self, repair: int) -> int:
        """Return the number of letters that are watched."""
        ...

    def finished(self, repair: int, limit: int) -> list[tuple[int, bool]]:
        """Return the keys of watched letters that are finished, and whether they died again."""
        ...

    def set_outcomes(self, repair: int, outcomes: Mapping[str, Sequence[int]]) -> None:
        """Store outcomes of letters, which are no longer watched."""
        ...

    def count(self, repair: int) -> list[tuple[str | None, bool, int | None, int]]:
        """Count the letters that were sent: by outcome, whether they died again, and state."""
        ...

    def add_originals(self, repair: int, originals: Sequence[Original]) -> None:
        """Keep edited letters as they were."""
        ...

    def originals(self, repair: int, keys: Sequence[int]) -> dict[int, Original]:
        """Return edited letters as they were, by key."""
        ...

    def reopen(self, keys: Sequence[int]) -> None:
        """Let dead letters be unresolved again, and count them."""
        ...

    def forget(self, before: int) -> bool:
        """Delete repairs that ended before a time; return whether there may be more."""
        ...
