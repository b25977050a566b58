"""How queues and sessions stand: what a broker tells of them."""

from __future__ import annotations

import dataclasses
import hashlib
from datetime import datetime
from typing import Final

import msgspec

from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.entities import PoisonSession, QueueOptions, QueueStatus
from lazaretto.model.shown_text import html_table

#: Bytes of a version: two settings of one entity never have the same by chance.
_SIZE: Final = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Culprit:
    """The message that halted a queue, and why. `error`: with which its latest attempt failed."""

    sequence_number: int
    delivery_count: int
    cycle: int
    reason: str
    time: datetime
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class HeldSession:
    """A session that is held back, and the poison message that it waits for, with its latest error."""

    session_id: str
    mode: PoisonSession
    sequence_number: int
    reason: str
    time: datetime
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SessionDescription:
    """How a session stands: its messages by state, its lock, and whether it is held back."""

    queue: str
    session_id: str
    messages: dict[str, int]
    locked_until: datetime | None
    locked_by: str | None
    has_state: bool
    held: HeldSession | None


@dataclasses.dataclass(frozen=True, slots=True)
class BreakerDescription:
    """How a queue's breaker stands: since when, for which failure, when the next probe is due."""

    status: BreakerStatus
    since: datetime | None = None
    fingerprint: str | None = None
    error: str | None = None
    probe_at: datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class MessageCounts:
    """Exact numbers of messages: by state in the queue, and in its dead-letter subqueues."""

    active: int = 0
    locked: int = 0
    deferred: int = 0
    scheduled: int = 0
    delayed: int = 0
    suspect: int = 0
    dead_letter: int = 0
    transfer_dead_letter: int = 0

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))

    def _repr_html_(self) -> str:
        return _counts_table("messages", self)


def _counts_table(caption: str, counts: MessageCounts) -> str:
    rows = dataclasses.asdict(counts)
    return html_table(caption, [name.replace("_", " ") for name in rows], [list(rows.values())])


@dataclasses.dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue, and how it stands.

    `expired` and `dropped` count the messages that were discarded, over the queue's life:
    by their time to live, and by the disposition drop. `held_sessions`: how many sessions wait for
    a poison message of theirs to be decided on. `size`: bytes that it holds, where `max_size` is set.
    `accessed`: when messages came, were received or failed last, to the minute, or the description changed.
    """

    path: str
    options: QueueOptions
    status: QueueStatus
    halted_by: Culprit | None
    dead_letter_halted_by: Culprit | None
    counts: MessageCounts
    expired: int
    dropped: int
    held_sessions: int
    size: int | None
    created: datetime
    updated: datetime
    accessed: datetime

    @property
    def version(self) -> str:
        """The version of options and status, which changes with them. Not that of a subscription's rules."""
        return version_of(self.options, self.status, self.created)

    def _repr_html_(self) -> str:
        return _counts_table(f"{self.path}, {self.status.value}", self.counts)


def version_of(options: QueueOptions, status: QueueStatus, created: datetime, rules: bytes = b"") -> str:
    """Return the version of an entity's settings. `rules`: of a subscription, as they are stored."""
    encoded = msgspec.json.encode((options, status, created))
    return hashlib.blake2b(encoded + rules, digest_size=_SIZE).hexdigest()
