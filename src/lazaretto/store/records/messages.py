"""The store's rows: queues, messages, attempts and dead letters."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from lazaretto.model.clock import MICROSECONDS
from lazaretto.model.entities import (
    SYSTEM_DEAD_LETTER_QUEUE,
    EntityKind,
    MessageState,
    QueueOptions,
    QueueStatus,
)
from lazaretto.model.keys import lanes_of
from lazaretto.model.messages import SENT_COLUMNS, Past, ReceivedMessage, SentColumns
from lazaretto.model.policy import Counters
from lazaretto.model.rates import MINUTE

#: What follows a worker's name in locks that it takes for clients of a server. No worker has such a name, so
#: its death says nothing of what they hold: those locks run out, unless another server renews them.
FOR_CLIENTS: Final = "/clients"
#: The names of those who hold messages for clients, as a pattern of SQL.
CLIENTS: Final = f"%{FOR_CLIENTS}%"
#: What follows that in locks of a client whose connection was lost while it worked on the messages.
LOST: Final = "/lost"
#: The same, if other connections were lost with its own.
LOST_TOGETHER: Final = f"/together{LOST}"

#: States of a message's row. FRESH and READY are both "active": READY was handed out before.
#: SUSPECT waits until it is handed out alone, since a worker died holding it among others.
FRESH, READY, LOCKED, DEFERRED, SCHEDULED, DELAYED, SUSPECT = range(7)

#: The names of states for users.
STATES = (
    MessageState.ACTIVE,
    MessageState.ACTIVE,
    MessageState.LOCKED,
    MessageState.DEFERRED,
    MessageState.SCHEDULED,
    MessageState.DELAYED,
    MessageState.SUSPECT,
)


@dataclasses.dataclass(frozen=True, slots=True)
class QueueRecord:
    """A queue, topic or subscription as the store keeps it. Times in microseconds.

    `halted_by` values and `breaker` are JSON. `topic_id`, `rules`: of a subscription. `redacted`: there are
    rules for fields of its messages that people may not read.
    """

    queue_id: int
    path: str
    options: QueueOptions
    status: QueueStatus
    halted_by: str | None
    dead_letter_halted_by: str | None
    breaker: str | None
    created: int
    updated: int
    kind: EntityKind = EntityKind.QUEUE
    topic_id: int | None = None
    rules: bytes | None = None
    redacted: bool = False
    #: Whether it is a queue in one part that is on, and is set to do nothing but keep what is sent to it and
    #: hand it out: so what is asked of each message that comes or goes need not be asked of the queue.
    plain: bool = dataclasses.field(init=False, repr=False, compare=False, default=False)
    #: How many partitions its own messages are in: a topic keeps only scheduled ones, in one.
    partitions: int = dataclasses.field(init=False, repr=False, compare=False, default=1)
    #: The lanes of its messages: itself, or its partitions.
    lanes: tuple[int, ...] = dataclasses.field(init=False, repr=False, compare=False, default=())
    #: The longest time that a message may live, in microseconds; None: as long as it likes.
    longest_life: int | None = dataclasses.field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        partitions = 1 if self.kind is EntityKind.TOPIC else self.options.partitions
        plain = (
            self.kind is EntityKind.QUEUE
            and self.status is QueueStatus.ACTIVE
            and self.halted_by is None
            and self.options.plain
            and self.path.lower() != SYSTEM_DEAD_LETTER_QUEUE
        )
        object.__setattr__(self, "plain", plain)
        object.__setattr__(self, "partitions", partitions)
        object.__setattr__(self, "lanes", lanes_of(self.queue_id, partitions))
        if (longest := self.options.default_time_to_live) is not None:
            object.__setattr__(self, "longest_life", round(longest * MICROSECONDS))


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """The state of a queue. `states`: the number of messages in the queue itself, by their state.

    `size`: bytes, if it is tracked. `subscriptions`: the number for a topic. `used`: the latest minute
    (after a day: hour) in which messages came or were received, as minutes since 1970.
    """

    expired: int = 0
    dropped: int = 0
    size: int = 0
    subscriptions: int = 0
    held_sessions: int = 0
    used: int | None = None
    dead_letter: int = 0
    transfer_dead_letter: int = 0
    states: dict[int, int] = dataclasses.field(default_factory=dict)

    def accessed(self, updated: int) -> int:
        """Return when the entity was used last. `updated`: when its description was changed last."""
        return updated if self.used is None else max(updated, self.used * MINUTE)

    def number(self, *states: int) -> int:
        """Return the number of messages in the queue itself that are in one of the states."""
        return sum(self.states.get(state, 0) for state in states)


class MessageRow(SentColumns):
    """A message without its body, as the engine sees it. Times in microseconds.

    `suspect`: 0, or 1 plus the uncounted worker deaths that it may have caused. A suspect is delivered alone.
    """

    key: int
    state: int
    due: int | None
    expires: int | None
    enqueued: int
    message_id: str
    session_id: str | None
    lock_token: int | None
    locked_at: int | None
    locked_by: str | None
    deliveries: int
    failures: int
    worker_deaths: int
    lock_expiries: int
    delivery_count: int
    cycle_attempts: int
    cycle: int
    moves: int
    generation: int
    deferred: int
    enqueued_sequence_number: int | None
    resubmitted_from: int | None
    headers: bytes | None
    body_id: int | None
    suspect: int = 0

    @classmethod
    def of(cls, values: Sequence[Any]) -> MessageRow:
        """Return the row that has these values, in the order of its fields."""
        own = len(values) - len(SENT_COLUMNS)
        return cls(*values[:own], **dict(zip(SENT_COLUMNS, values[own:], strict=True)))

    @property
    def counters(self) -> Counters:
        return Counters(
            self.deliveries,
            self.failures,
            self.worker_deaths,
            self.lock_expiries,
            self.delivery_count,
            self.cycle_attempts,
            self.cycle,
            self.moves,
        )

    def charged(self, counters: Counters) -> MessageRow:
        """Return this row with other counters."""
        return msgspec.structs.replace(self, **counters._asdict())


class NewMessage(SentColumns, frozen=True):  # type: ignore[misc]
    """A message checked and encoded, ready to be stored. Times and durations in microseconds.

    `begins`: when its life begins, if that is later than now: at its scheduled time. `dead_letter_queue`: as
    its headers have it, for a send to check without reading them. `elaborate`: it has such a queue, or
    columns that no function of a server knows.
    """

    body: bytes
    message_id: str | None
    session_id: str | None
    time_to_live: int | None
    scheduled: int | None
    partition_key: str | None
    headers: bytes | None
    begins: int = 0
    dead_letter_queue: str | None = None
    elaborate: bool = False

    @property
    def size(self) -> int:
        """The bytes of body and headers together."""
        return len(self.body) + len(self.headers or b"")

    def end(self, now: int, life: int | None) -> int | None:
        """Return when a message that is sent now expires, if it may live so long."""
        return None if life is None else max(now, self.begins) + life

    def standing(self, now: int, longest: int | None) -> tuple[int, int | None, int | None]:
        """Return the state of a message that is sent now, when it comes due, and when it expires.

        `longest`: the time that a message of its queue may live.
        """
        life, scheduled = self.time_to_live, self.scheduled
        if life is longest is scheduled is None:
            return FRESH, None, None
        if longest is not None and (life is None or life > longest):
            life = longest
        expires = self.end(now, life)
        if scheduled is None or scheduled <= now:
            return FRESH, expires, expires
        return SCHEDULED, scheduled if expires is None else min(scheduled, expires), expires


class RoutedMessage(SentColumns, frozen=True):  # type: ignore[misc]
    """A message on its way through topics and forwarding queues. Times in microseconds.

    `body`: None if it is stored separately, under `body_id`. `size`: bytes of the body. `origin`: the
    sequence number where it was submitted; `home`: its key there, where it is known. `hops`: how often
    it was forwarded. `scheduled`: when it becomes active. `generation`, `resubmitted_from`: as a row has.
    `set_aside`: it was a dead letter or rejected before, and is not dropped as a duplicate, or because
    nobody wants it.
    """

    body: bytes | None
    body_id: int | None
    size: int
    message_id: str
    session_id: str | None
    expires: int | None
    headers: bytes | None
    origin: int
    home: int | None = None
    hops: int = 0
    scheduled: int | None = None
    partition_key: str | None = None
    generation: int = 0
    resubmitted_from: int | None = None
    set_aside: bool = False


class AttemptRecord(msgspec.Struct, frozen=True):
    """An attempt that did not complete. Times in microseconds."""

    number: int
    started: int | None
    ended: int
    worker: str | None
    outcome: str
    error_type: str | None
    error_message: str | None
    stack: str | None
    site: str | None = None


class ErrorRecord(msgspec.Struct, frozen=True):
    """The error that an attempt ended with."""

    type: str
    message: str | None
    stack: str | None
    site: str | None = None


class NewEvent(msgspec.Struct, frozen=True):
    """An event to be written. `detail` is JSON."""

    queue: str
    sequence_number: int | None
    detail: str


class EventRecord(msgspec.Struct, frozen=True):
    """An entry of the event log. `detail` is JSON. Times in microseconds."""

    position: int
    time: int
    kind: str
    queue: str
    sequence_number: int | None
    detail: str


class AuditRecord(msgspec.Struct, frozen=True):
    """An entry of the audit log. `detail` is JSON. Times in microseconds."""

    position: int
    time: int
    actor: str
    action: str
    queue: str
    detail: str


class AuditCriteria(msgspec.Struct, frozen=True):
    """Which entries of the audit log are meant: those below a position that match all that is given.

    `since` is the first time that is meant, `until` the first that is not, in microseconds. `queue` is in
    lower case. `detail`: how the detail begins, as JSON.
    """

    below: int
    since: int
    until: int
    queue: str | None
    actor: str | None
    action: str | None
    detail: str | None = None


class WorkerRecord(msgspec.Struct, frozen=True):
    """A process that holds or held messages, or takes some. Times in microseconds; `takers`: as JSON."""

    worker: str
    machine: str
    pid: int
    seen: int
    died: int | None
    takers: str | None


class LeaseRecord(msgspec.Struct, frozen=True):
    """A hand-over to a service host: which messages, and whether their handlers were started."""

    token: int
    worker: str
    queue_id: int
    session_id: str | None
    keys: Sequence[int]
    started: bool


class Share(NamedTuple):
    """How many messages a service host takes: at most so many, its share if it is one of several `sharers`.

    `most_bytes`: of bodies and headers, if there is more than one message; None if all fit.
    """

    most: int
    sharers: int
    most_bytes: int | None


class Leased(NamedTuple):
    """Messages that a service host has taken under a lease, and the pasts of those with earlier attempts."""

    messages: list[ReceivedMessage]
    past: dict[int, Past]


class Notice(NamedTuple):
    """A log record about a queue: level of the logging module, text and stack.

    `fields`: what it tells, by name, for programs.
    """

    level: int
    queue: str
    text: str
    stack: str | None = None
    fields: Mapping[str, Any] = {}


class SessionAddress(msgspec.Struct, frozen=True):
    """A session of a queue."""

    queue_id: int
    session_id: str


class HeldSessionRecord(msgspec.Struct, frozen=True):
    """A held session, with JSON of its poison messages."""

    queue_id: int
    session_id: str
    held_by: str


class MessageStanding(msgspec.Struct, frozen=True):
    """A message's key and state."""

    key: int
    state: int


class SessionRecord(msgspec.Struct, frozen=True):
    """A session's lock and state, JSON of the poison message that holds it, and its lock's name."""

    lock_token: int | None
    locked_until: int | None
    locked_by: str | None
    state: bytes | None
    held_by: str | None
    locked_as: str | None

    def is_locked(self, now: int) -> bool:
        """Return whether the session is locked at a given time."""
        return self.locked_until is not None and self.locked_until > now


class SampleRecord(msgspec.Struct, frozen=True):
    """A completed message that is kept. Times in microseconds.

    `worker`: who completed it; None: an older version did. `kept`: when it was completed.
    """

    key: int
    message_id: str
    enqueued: int
    headers: bytes | None
    body: bytes
    worker: str | None = None
    kept: int = 0


class Again(enum.Enum):
    """The type of `AGAIN` and `ELSEWHERE`, which mean that there is no answer yet."""

    AGAIN = enum.auto()
    ELSEWHERE = enum.auto()


AGAIN = Again.AGAIN
ELSEWHERE = Again.ELSEWHERE
