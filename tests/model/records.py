"""What the model keeps of messages, queues and sessions. Times and durations are whole seconds."""

from __future__ import annotations

import dataclasses

from lazaretto.model.entities import MessageState, PoisonSession, QueueOptions, QueueStatus
from lazaretto.model.policy import Outcome, PoisonPolicy

SYSTEM = "$system/deadletter"

ACTIVE, LOCKED = MessageState.ACTIVE, MessageState.LOCKED
DEFERRED, SCHEDULED, DELAYED = MessageState.DEFERRED, MessageState.SCHEDULED, MessageState.DELAYED


class Refused(Exception):
    """The call raises the broker's error of this name."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


@dataclasses.dataclass(frozen=True)
class Draft:
    """A message to send. `ttl` in seconds; `at` is the time before which it is not receivable."""

    body: bytes
    message_id: str | None = None
    session_id: str | None = None
    ttl: int | None = None
    at: int | None = None
    sender_queue: str | None = SYSTEM


@dataclasses.dataclass(frozen=True)
class Settlement:
    """How a receiver settles a message. `error` is the error's type; `delay` in seconds."""

    outcome: Outcome
    error: str | None = None
    delay: int | None = None
    reason: str | None = None
    description: str | None = None


COMPLETE = Settlement(Outcome.COMPLETED)


@dataclasses.dataclass(frozen=True)
class Handle:
    """What a receiver holds: a message, and the lock of the hand-over (None: received and deleted)."""

    queue: str
    dead: bool
    number: int
    token: int | None
    session: str | None = None

    @property
    def place(self) -> tuple[str, bool, int]:
        return self.queue, self.dead, self.number


@dataclasses.dataclass(frozen=True)
class SessionHandle:
    """A session that a receiver holds."""

    queue: str
    name: str
    token: int


@dataclasses.dataclass
class Counts:
    """The counters of a message; the last four start again, or not, as their names say elsewhere."""

    deliveries: int = 0
    failures: int = 0
    lock_expiries: int = 0
    delivery_count: int = 0
    tries: int = 0
    cycle: int = 0
    moves: int = 0


@dataclasses.dataclass
class Past:
    """The attempts of a message under one number, behind those of the dead letter it came from."""

    attempts: list[tuple[int, Outcome, str | None]] = dataclasses.field(default_factory=list)
    before: Past | None = None

    def whole(self) -> list[tuple[int, Outcome, str | None]]:
        return (self.before.whole() if self.before else []) + self.attempts


CHARGED = (Outcome.FAILED, Outcome.LOST, Outcome.LOCK_EXPIRED, Outcome.DEFERRED)


@dataclasses.dataclass
class Copy:
    """A message as it stands in a queue, or in its dead-letter subqueue (`dead`)."""

    number: int
    draft: Draft
    message_id: str | None
    enqueued: int
    expires: int | None
    past: Past = dataclasses.field(default_factory=Past)
    counts: Counts = dataclasses.field(default_factory=Counts)
    state: MessageState = ACTIVE
    dead: bool = False
    wake: int | None = None
    token: int | None = None
    locked_until: int | None = None
    deferred: bool = False
    generation: int = 0
    came_from: int | None = None
    edited: bool = False
    returned_by: tuple[str, int] | None = None
    sender_queue: str | None = SYSTEM

    @property
    def failures_in_cycle(self) -> int:
        """How many of its tries have failed: deferring counts as a try, but is no failure."""
        charged = [o for _, o, _ in self.past.attempts if o in CHARGED]
        tries = charged[-self.counts.tries :] if self.counts.tries else []
        return sum(outcome is not Outcome.DEFERRED for outcome in tries)

    @property
    def due(self) -> int | None:
        """When time next does something to it."""
        if self.state is LOCKED:
            return self.locked_until
        if self.state is DEFERRED:
            return None
        times = [t for t in (self.wake, self.expires) if t is not None]
        return min(times, default=None)


@dataclasses.dataclass
class Grave:
    """Why a message was set aside, and what became of it."""

    message_id: str | None
    reason: str | None
    description: str | None
    error: str | None
    time: int
    enqueued: int
    counts: Counts
    generation: int
    past: Past
    resolution: str | None = None
    resubmitted_as: int | None = None


@dataclasses.dataclass(frozen=True)
class Culprit:
    """The message that stopped a queue."""

    number: int
    delivery_count: int
    cycle: int
    reason: str
    time: int


@dataclasses.dataclass
class Session:
    """A session's lock and state."""

    token: int | None = None
    until: int = 0
    state: bytes | None = None


@dataclasses.dataclass
class Queue:
    """A queue with its dead-letter subqueue."""

    path: str
    options: QueueOptions
    copies: dict[tuple[bool, int], Copy] = dataclasses.field(default_factory=dict)
    graves: dict[int, Grave] = dataclasses.field(default_factory=dict)
    sessions: dict[str, Session] = dataclasses.field(default_factory=dict)
    sent_ids: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    #: The last number of each partition.
    last: dict[int, int] = dataclasses.field(default_factory=dict)
    disabled: bool = False
    culprit: Culprit | None = None
    dead_culprit: Culprit | None = None
    rollbacks: int = 0
    expired: int = 0
    dropped: int = 0

    @property
    def status(self) -> QueueStatus:
        if self.disabled:
            return QueueStatus.DISABLED
        return QueueStatus.HALTED if self.culprit else QueueStatus.ACTIVE

    def part(self, dead: bool) -> list[Copy]:
        """Return what is in the queue, or in its dead-letter subqueue, in order."""
        return [c for (d, _), c in sorted(self.copies.items()) if d == dead]

    def of_session(self, name: str) -> list[Copy]:
        return [c for c in self.part(False) if c.draft.session_id == name]

    @property
    def units(self) -> bool:
        """Whether each session is one unit."""
        return self.options.on_poison_session is PoisonSession.WHOLE

    def session_names(self) -> list[str]:
        """Return the sessions that have messages, a lock or a state."""
        if not self.options.requires_session:
            return []
        with_messages = {c.draft.session_id for c in self.part(False) if c.draft.session_id}
        return sorted(with_messages | set(self.sessions))

    def policy(self, dead: bool) -> PoisonPolicy | None:
        return self.options.dead_letter_policy if dead else self.options.policy
