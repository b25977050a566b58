"""Queues, topics and subscriptions: their paths, options and descriptions."""

from __future__ import annotations

import dataclasses
import enum
import re
from datetime import datetime
from typing import NamedTuple

from lazaretto.errors import InvalidOption, InvalidPath
from lazaretto.model.breaker import BreakerPolicy, BreakerStatus
from lazaretto.model.checks import exact, flag, member, option_set, seconds, shown, whole
from lazaretto.model.policy import PoisonPolicy

#: Where messages go that their receiver rejected, unless the sender named another queue or none.
SYSTEM_DEAD_LETTER_QUEUE = "$system/deadletter"

LONGEST_PATH = 260
LONGEST_SUBSCRIPTION = 50
SUBSCRIPTIONS = "subscriptions"
_SEGMENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\Z")


class Subqueue(enum.Enum):
    """The part of a queue that a path addresses; the values are the suffixes as Service Bus spells them."""

    MAIN = ""
    DEAD_LETTER = "$deadletterqueue"
    TRANSFER_DEAD_LETTER = "$Transfer/$deadletterqueue"
    RETRY = ";retry"


# Every suffix that names a subqueue, in lower case. ";poison" is MSMQ's name for the same thing.
_SUFFIXES = {
    "/$transfer/$deadletterqueue": Subqueue.TRANSFER_DEAD_LETTER,
    "/$deadletterqueue": Subqueue.DEAD_LETTER,
    ";poison": Subqueue.DEAD_LETTER,
    ";retry": Subqueue.RETRY,
}
_NAMES = {
    "dead_letter": Subqueue.DEAD_LETTER,
    "transfer_dead_letter": Subqueue.TRANSFER_DEAD_LETTER,
    "retry": Subqueue.RETRY,
}


class EntityPath(NamedTuple):
    """A queue's path, as given, and which of its subqueues is meant.

    Paths compare without case: `key` is what to compare.
    """

    queue: str
    subqueue: Subqueue = Subqueue.MAIN

    @property
    def key(self) -> str:
        return self.queue.lower()

    def __str__(self) -> str:
        if self.subqueue is Subqueue.MAIN:
            return self.queue
        return f"{self.queue}{'' if self.subqueue is Subqueue.RETRY else '/'}{self.subqueue.value}"

    @classmethod
    def parse(cls, path: str, subqueue: str | Subqueue | None = None) -> EntityPath:
        """Return the entity that `path` addresses.

        A subqueue is named by the path's suffix (`orders/$deadletterqueue`, `orders;poison`,
        `orders;retry`, `orders/$Transfer/$deadletterqueue`) or by `subqueue` ("dead_letter",
        "transfer_dead_letter", "retry"), not both. Raises InvalidPath.
        """
        if not isinstance(path, str):
            raise InvalidPath(f"expected a path to be text, got {shown(path)}")
        found, queue = Subqueue.MAIN, path
        lower = path.lower()
        for suffix, value in _SUFFIXES.items():
            if lower.endswith(suffix):
                found, queue = value, path[: -len(suffix)]
                break
        if subqueue is not None:
            named = subqueue if isinstance(subqueue, Subqueue) else None
            if isinstance(subqueue, str):
                named = _NAMES.get(subqueue)
            if named is None:
                raise InvalidPath(
                    f"expected subqueue to be one of {', '.join(_NAMES)}, got {shown(subqueue)}"
                )
            if found not in (Subqueue.MAIN, named):
                raise InvalidPath(f"{path!r} names a subqueue already; leave out subqueue={subqueue!r}")
            found = named
        _check_queue_path(queue, path)
        return cls(exact(queue), found)


def _check_queue_path(queue: str, given: str) -> None:
    if queue.lower() == SYSTEM_DEAD_LETTER_QUEUE:
        return
    if not queue or len(queue) > LONGEST_PATH:
        raise InvalidPath(
            f"expected a queue path of 1 to {LONGEST_PATH} characters, got {len(queue)} in {shown(given)}"
        )
    segments = queue.split("/")
    for segment in segments:
        if not _SEGMENT.match(segment):
            raise InvalidPath(
                f"expected each part of a path to be letters, digits, '.', '-' or '_', starting and ending "
                f"with a letter or digit, got {shown(segment)} in {shown(given)}"
            )
    reserved = [index for index, segment in enumerate(segments) if segment.lower() == SUBSCRIPTIONS]
    if reserved and (reserved != [len(segments) - 2] or len(segments) < 3):
        raise InvalidPath(
            f"'{SUBSCRIPTIONS}' is reserved: it stands between a topic and a subscription's name, "
            f"got {shown(given)}"
        )


def subscription_path(topic: str, name: str) -> EntityPath:
    """Return the path of a topic's subscription. Raises InvalidPath."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_SUBSCRIPTION or "/" in name:
        raise InvalidPath(
            f"expected a subscription's name of 1 to {LONGEST_SUBSCRIPTION} characters without '/', "
            f"got {shown(name)}"
        )
    return EntityPath.parse(f"{EntityPath.parse(topic).queue}/{SUBSCRIPTIONS}/{name}")


def names_subscription(path: EntityPath) -> bool:
    """Return whether a path is that of a subscription."""
    return f"/{SUBSCRIPTIONS}/" in path.key


class EntityKind(enum.Enum):
    """What stands at a path."""

    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


class QueueStatus(enum.Enum):
    """Whether a queue takes and gives messages."""

    ACTIVE = "active"
    #: Not receivable, by a poison message with disposition fault; sending goes on.
    HALTED = "halted"
    #: Off both ways, by consecutive rollbacks or by an operator.
    DISABLED = "disabled"
    #: By an operator: nothing can be sent; what is there can be received.
    SEND_DISABLED = "send_disabled"
    #: By an operator: nothing is handed out; sending goes on.
    RECEIVE_DISABLED = "receive_disabled"

    @property
    def takes(self) -> bool:
        """Whether messages can be sent."""
        return self not in (QueueStatus.DISABLED, QueueStatus.SEND_DISABLED)

    @property
    def gives(self) -> bool:
        """Whether messages are handed out, or forwarded."""
        return self in (QueueStatus.ACTIVE, QueueStatus.SEND_DISABLED)


class PoisonSession(enum.Enum):
    """What becomes of a session when a message of it is poison."""

    #: It goes on with the next message, as in Service Bus.
    SKIP = "skip"
    #: The message stays in its place, and the session waits for an operator's verdict on it.
    BLOCK = "block"
    #: The message becomes a dead letter; those behind it wait until it is repaired or given up.
    PARK = "park"
    #: All its messages share the fate of that one, as in queued WCF.
    WHOLE = "whole"
    #: Of dialogs alone: the conversation is ended with an error, as in Service Broker's samples.
    END = "end"


#: The statuses that an operator may set.
STATUSES = {status.value: status for status in QueueStatus if status is not QueueStatus.HALTED}

POISON_SESSIONS = {mode.value: mode for mode in PoisonSession}


class MessageState(enum.Enum):
    """Where a message stands within its queue or subqueue."""

    ACTIVE = "active"
    LOCKED = "locked"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"
    DELAYED = "delayed"
    #: Held back until it can be handed out alone: a worker died while it held it among others.
    SUSPECT = "suspect"


_DAY = 86_400.0
_DEFAULT_POLICY = PoisonPolicy()
_DEFAULT_BREAKER = BreakerPolicy()
MAX_MESSAGE_SIZE = 104_857_600
#: Service Bus's shortest time after which an entity counts as idle, in seconds.
SHORTEST_IDLE = 300.0


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Everything that can be set on a queue. Durations are seconds or timedeltas.

    `lock_duration`: how long a peek-lock holds, 1 s to 1 day. `default_time_to_live`: the most any message
    lives (None: for ever); `dead_letter_on_expiration`: expired messages are dead-lettered, else discarded
    and counted. `requires_session`: messages are received by session, in order.
    `requires_duplicate_detection`: a message whose id was sent within `duplicate_detection_window` (1 s to
    7 days) is accepted and dropped. `max_message_size`: bytes of body and headers together, up to 100 MiB.
    `policy`: the poison policy. `dead_letter_policy`: a policy for reading the dead-letter subqueue (its
    cycles are ignored, `move` is refused); None counts nothing there, as Service Bus does. `breaker`: when
    service hosts take failures for an outage (None: never). `on_poison_session`: what becomes of a session
    with a poison message: skip, block, park or whole. `dead_letter_on_filter_errors`: of a subscription,
    what becomes of a message that its rules cannot be evaluated on: a dead letter, else it is left out.
    `forward_to`: the queue or topic that its messages go on to, in the commit that brings them; nothing is
    received from it then. `forward_dead_lettered_messages_to`: the same for its dead letters. `max_size`:
    bytes of bodies and headers of all its messages, dead letters too (None: no limit); of a topic, of all
    its subscriptions. `auto_delete_on_idle`: it is deleted when nothing was sent to it or received from it
    for so long, 5 min at least (None: never), unless it holds dead letters or scheduled messages.
    `dialogs`: it is the queue of a service, and its messages come and go by dialogs alone; `retention`:
    those received and sent are kept until their conversation ends. Whether a queue requires sessions,
    detects duplicates or holds dialogs cannot change after it is created.
    """

    lock_duration: float = 60.0
    default_time_to_live: float | None = None
    dead_letter_on_expiration: bool = False
    requires_session: bool = False
    requires_duplicate_detection: bool = False
    duplicate_detection_window: float = 600.0
    max_message_size: int = 262_144
    policy: PoisonPolicy = _DEFAULT_POLICY
    dead_letter_policy: PoisonPolicy | None = None
    breaker: BreakerPolicy | None = _DEFAULT_BREAKER
    on_poison_session: PoisonSession = PoisonSession.SKIP
    dead_letter_on_filter_errors: bool = True
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    max_size: int | None = None
    auto_delete_on_idle: float | None = None
    dialogs: bool = False
    retention: bool = False

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        self._check_forwards()
        if self.max_size is not None:
            whole("max_size", self.max_size, 1024, 1 << 62)
        if self.auto_delete_on_idle is not None:
            idle = seconds("auto_delete_on_idle", self.auto_delete_on_idle, SHORTEST_IDLE)
            set_(self, "auto_delete_on_idle", idle)
        flag("dead_letter_on_filter_errors", self.dead_letter_on_filter_errors)
        set_(self, "lock_duration", seconds("lock_duration", self.lock_duration, 1.0, _DAY))
        if self.default_time_to_live is not None:
            ttl = seconds("default_time_to_live", self.default_time_to_live, 0.000_001)
            set_(self, "default_time_to_live", ttl)
        set_(self, "on_poison_session", member("on_poison_session", self.on_poison_session, POISON_SESSIONS))
        self._check_dialogs()
        if self.on_poison_session is not PoisonSession.SKIP and not self.requires_session:
            raise InvalidOption(
                f"on_poison_session={self.on_poison_session.value!r} needs a queue with requires_session"
            )
        flag("dead_letter_on_expiration", self.dead_letter_on_expiration)
        flag("requires_session", self.requires_session)
        flag("requires_duplicate_detection", self.requires_duplicate_detection)
        window = seconds("duplicate_detection_window", self.duplicate_detection_window, 1.0, 7 * _DAY)
        set_(self, "duplicate_detection_window", window)
        whole("max_message_size", self.max_message_size, 1024, MAX_MESSAGE_SIZE)
        if not isinstance(self.policy, PoisonPolicy):
            raise InvalidOption(f"expected policy to be a PoisonPolicy, got {shown(self.policy)}")
        if self.breaker is not None and not isinstance(self.breaker, BreakerPolicy):
            raise InvalidOption(f"expected breaker to be a BreakerPolicy or None, got {shown(self.breaker)}")
        if self.dead_letter_policy is not None:
            if not isinstance(self.dead_letter_policy, PoisonPolicy):
                raise InvalidOption(
                    "expected dead_letter_policy to be a PoisonPolicy or None, "
                    f"got {shown(self.dead_letter_policy)}"
                )
            set_(self, "dead_letter_policy", self.dead_letter_policy.for_dead_letters())

    @property
    def whole_sessions(self) -> bool:
        """Whether each of its sessions is one unit: handed out, completed and set aside as one."""
        return self.on_poison_session is PoisonSession.WHOLE and not self.dialogs

    def policy_of(self, subqueue: Subqueue) -> PoisonPolicy | None:
        """Return the policy for reading a subqueue; None counts nothing there."""
        if subqueue is Subqueue.DEAD_LETTER:
            return self.dead_letter_policy
        return None if subqueue is Subqueue.TRANSFER_DEAD_LETTER else self.policy

    def _check_dialogs(self) -> None:
        """Refuse what a queue of dialogs cannot have, and what only such a one can."""
        flag("dialogs", self.dialogs)
        flag("retention", self.retention)
        if self.dialogs:
            ordinary = {
                "default_time_to_live": self.default_time_to_live is None,
                "requires_duplicate_detection": not self.requires_duplicate_detection,
                "forward_to": self.forward_to is None,
                "auto_delete_on_idle": self.auto_delete_on_idle is None,
                "requires_session=False": self.requires_session,
            }
            for name, allowed in ordinary.items():
                if not allowed:
                    raise InvalidOption(f"a queue of dialogs cannot have {name}")
        elif self.retention:
            raise InvalidOption("retention needs a queue of dialogs")
        elif self.on_poison_session is PoisonSession.END:
            raise InvalidOption("on_poison_session='end' needs a queue of dialogs")

    def _check_forwards(self) -> None:
        """Refuse destinations that can never be one, and what cannot be together with forwarding."""
        for name in ("forward_to", "forward_dead_lettered_messages_to"):
            destination = getattr(self, name)
            if destination is None:
                continue
            path = EntityPath.parse(destination)
            system = path.key == SYSTEM_DEAD_LETTER_QUEUE
            if path.subqueue is not Subqueue.MAIN or names_subscription(path) or system:
                raise InvalidOption(f"expected {name} to be a queue or a topic, got {shown(destination)}")
            object.__setattr__(self, name, path.queue)
            if self.auto_delete_on_idle is not None:
                raise InvalidOption(f"an entity with {name} cannot have auto_delete_on_idle")
        if self.forward_to is not None and self.requires_session:
            raise InvalidOption("an entity with requires_session cannot have forward_to")


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """Everything that can be set on a topic: see QueueOptions, which has the same under the same names."""

    default_time_to_live: float | None = None
    requires_duplicate_detection: bool = False
    duplicate_detection_window: float = 600.0
    max_message_size: int = 262_144
    max_size: int | None = None
    auto_delete_on_idle: float | None = None

    def __post_init__(self) -> None:
        checked = self.as_queue()
        for name in TOPIC_OPTIONS:
            object.__setattr__(self, name, getattr(checked, name))

    def as_queue(self) -> QueueOptions:
        """Return them as they are stored."""
        return QueueOptions(**{name: getattr(self, name) for name in TOPIC_OPTIONS})


#: Options that a subscription does not have, because its topic has them.
OPTIONS_OF_TOPICS = ("requires_duplicate_detection", "max_size")


def refuse_for_subscription(options: QueueOptions) -> None:
    """Raise InvalidOption if an option is set that only a topic can have."""
    for name in OPTIONS_OF_TOPICS:
        if getattr(options, name):
            raise InvalidOption(f"{name} is an option of the topic, not of a subscription")


#: Options that a topic has: it keeps no messages itself, but for those that are scheduled.
TOPIC_OPTIONS = tuple(field.name for field in dataclasses.fields(TopicOptions))


#: Options that are fixed when a queue is created, as in Service Bus.
FIXED_OPTIONS = ("requires_session", "requires_duplicate_detection", "dialogs")


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


@dataclasses.dataclass(frozen=True, slots=True)
class BreakerDescription:
    """How a queue's breaker stands: since when, for which failure, when the next probe is due."""

    status: BreakerStatus
    since: datetime | None = None
    fingerprint: str | None = None
    error: str | None = None
    probe_at: datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class QueueDescription:
    """What a queue is, and how it stands.

    `expired` and `dropped` count the messages that were discarded, over the queue's life:
    by their time to live, and by the disposition drop. `held_sessions`: how many sessions wait for
    a poison message of theirs to be decided on. `size`: bytes that it holds, where `max_size` is set.
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
