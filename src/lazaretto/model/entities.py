"""Queues, topics and subscriptions: their paths, states and options."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from lazaretto.errors import InvalidOption, InvalidPath
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.checks import exact, is_unicode, shown, text
from lazaretto.model.options import (
    Converted,
    Duration,
    OptionalDuration,
    choice,
    duration,
    flag,
    instance,
    integer,
    option,
    option_set,
    optional,
    options_of,
    same_option,
    size,
    special,
    words,
)
from lazaretto.model.policy import PoisonPolicy

#: Where messages go that their receiver rejected, unless the sender named another queue or none.
SYSTEM_DEAD_LETTER_QUEUE = "$system/deadletter"

LONGEST_PATH = 260
LONGEST_SUBSCRIPTION = 50
SUBSCRIPTIONS = "subscriptions"
#: The options that name another entity.
FORWARDS = ("forward_to", "forward_dead_lettered_messages_to")
#: Paths that are kept in case that they come again.
_USUAL_PATHS = 4096
#: Not of dots alone, which addresses of HTTP take out.
_SEGMENT = re.compile(r"\.*[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")


class Subqueue(enum.Enum):
    """The part of a queue that a path addresses; the values are the suffixes as Service Bus spells them."""

    MAIN = ""
    DEAD_LETTER = "$deadletterqueue"
    TRANSFER_DEAD_LETTER = "$Transfer/$deadletterqueue"
    RETRY = ";retry"

    # Paths and keys are looked up by it for every message; Python's own hash of members is slower.
    __hash__ = object.__hash__


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
        if type(path) is str and subqueue is None:
            return _usual_path(path)
        return _read_path(path, subqueue)


def _read_path(path: str, subqueue: str | Subqueue | None) -> EntityPath:
    if not isinstance(path, str):
        raise InvalidPath(f"expected a path to be text, got {shown(path)}")
    part, queue = Subqueue.MAIN, path
    lower = path.lower()
    for suffix, value in _SUFFIXES.items():
        if lower.endswith(suffix):
            part, queue = value, path[: -len(suffix)]
            break
    if subqueue is not None:
        named = subqueue if isinstance(subqueue, Subqueue) else None
        if isinstance(subqueue, str):
            named = _NAMES.get(subqueue)
        if named is None:
            raise InvalidPath(f"expected subqueue to be one of {', '.join(_NAMES)}, got {shown(subqueue)}")
        if part not in (Subqueue.MAIN, named):
            raise InvalidPath(f"{path!r} already names a subqueue; omit subqueue={subqueue!r}")
        part = named
    _check_queue_path(queue, path)
    return EntityPath(exact(queue), part)


@functools.lru_cache(_USUAL_PATHS)
def _usual_path(path: str) -> EntityPath:
    """Return the entity that a path addresses: programs name the same again and again. Raises InvalidPath."""
    return _read_path(path, None)


def _check_queue_path(queue: str, path: str) -> None:
    if queue.lower() == SYSTEM_DEAD_LETTER_QUEUE:
        return
    if not queue or len(queue) > LONGEST_PATH:
        raise InvalidPath(
            f"expected a queue path of 1 to {LONGEST_PATH} characters, got {len(queue)} in {shown(path)}"
        )
    segments = queue.split("/")
    for segment in segments:
        if not _SEGMENT.match(segment):
            raise InvalidPath(
                "expected each part of a path to be letters, digits, '.', '-' or '_', and not dots alone, "
                f"got {shown(segment)} in {shown(path)}"
            )
    reserved = [index for index, segment in enumerate(segments) if segment.lower() == SUBSCRIPTIONS]
    if reserved and (reserved != [len(segments) - 2] or len(segments) < 3):
        raise InvalidPath(f"'{SUBSCRIPTIONS}' is reserved for the paths of subscriptions, got {shown(path)}")


def names_subscription(path: EntityPath) -> bool:
    """Return whether a path is that of a subscription."""
    return f"/{SUBSCRIPTIONS}/" in path.key


def dead_letter_path(path: EntityPath) -> EntityPath:
    """Return the dead-letter subqueue of a path: the queue's, or the one that the path names."""
    if path.subqueue is Subqueue.RETRY:
        raise InvalidOption(f"expected a queue or one of its dead-letter subqueues, got {str(path)!r}")
    return EntityPath(path.queue, Subqueue.DEAD_LETTER) if path.subqueue is Subqueue.MAIN else path


class EntityKind(enum.Enum):
    """The kind of entity at a path."""

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
    """The fate of a session when a message of it is poison."""

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

#: A mode as it may be given.
GivenPoisonSession = PoisonSession | Literal["skip", "block", "park", "whole", "end"]


class MessageState(enum.Enum):
    """State of a message within its queue or subqueue."""

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
MOST_PARTITIONS = 64
#: Bytes of all annotations of an entity, and characters of one's name.
_MOST_ANNOTATIONS = 4_096
_LONGEST_ANNOTATION = 128


def _destination(name: str, value: Any) -> str:
    """Return the path of a queue or topic that messages can go on to. Raises InvalidPath, InvalidOption."""
    path = EntityPath.parse(value)
    system = path.key == SYSTEM_DEAD_LETTER_QUEUE
    if path.subqueue is not Subqueue.MAIN or names_subscription(path) or system:
        raise InvalidOption(f"expected {name} to be a queue or a topic, got {shown(value)}")
    return path.queue


def _annotations(name: str, value: Any) -> dict[str, str] | None:
    """Return texts by name; None: no texts. Raises InvalidOption."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidOption(f"expected {name} to be a dict of texts, got {shown(value)}")
    kept: dict[str, str] = {}
    for key, one in value.items():
        if not isinstance(one, str) or not is_unicode(one):
            raise InvalidOption(f"expected {name} to be texts by name, got {shown(one)}")
        kept[text(f"a name in {name}", key, _LONGEST_ANNOTATION)] = exact(one)
    size = sum(len(key.encode()) + len(one.encode()) for key, one in kept.items())
    if size > _MOST_ANNOTATIONS:
        raise InvalidOption(f"expected {name} to be at most {_MOST_ANNOTATIONS} bytes together, got {size}")
    return kept or None


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Everything that can be set on a queue. Durations are seconds or timedeltas.

    `per_message=False` stands at options of what happens to a message later, or that are read wherever they
    apply: a queue that has them is still plain.

    Options:
        lock_duration: How long a peek-lock holds a message.
        default_time_to_live: Maximum time to live of a message.
        dead_letter_on_expiration: Dead-letter expired messages; otherwise discard and count them.
        requires_session: Messages are received by session, in order.
        requires_duplicate_detection: Drop a message whose ID was sent lately; its send succeeds.
        duplicate_detection_window: How long message IDs are remembered.
        max_message_size: Maximum size of a message, body and headers.
        policy: When a message is poison, and what happens to it.
        dead_letter_policy: Poison policy for reading the dead-letter subqueue. Its cycles are
            ignored, and `move` is refused. Without it nothing is counted there, as in Service Bus.
        breaker: When service hosts pause the queue because of an outage.
        blame_clients: A connection of a client that dies charges only what the client was working on.
        on_poison_session: What happens to a session with a poison message; `end` is for dialogs.
        dead_letter_on_filter_errors: Subscriptions only: dead-letter messages whose rules raise an
            error, otherwise skip them.
        forward_to: Queue or topic that messages are forwarded to. Nothing can be received then.
        forward_dead_lettered_messages_to: Queue or topic that dead letters are forwarded to.
        max_size: Maximum size of all messages together, dead letters included. A subscription
            does not have it; its topic counts all subscriptions.
        auto_delete_on_idle: Delete it after this time without a send or receive, unless it holds
            dead letters or scheduled messages. An entity that forwards is never idle.
        kept_samples: Completed messages that are kept as examples of good ones, at most about this
            many, bodies included, for `explain` to compare dead letters with; 0 keeps none.
        partitions: Number of parts that are sent to and received from independently. Order holds within a
            session or partition key. It can be raised while the queue is empty.
        dialogs: It is the queue of a service; only dialogs send to it and receive from it.
        retention: Of dialogs: keep processed messages until the conversation ends.
        annotations: Texts by name that other tools keep with it, at most 4 KiB together.
    """

    lock_duration: Duration = option(60.0, duration(1.0, _DAY), per_message=False)
    default_time_to_live: OptionalDuration = option(None, optional(duration(0.000_001)), per_message=False)
    dead_letter_on_expiration: bool = option(False, flag(), per_message=False)
    requires_session: bool = option(False, flag(), fixed=True)
    requires_duplicate_detection: bool = option(False, flag(), fixed=True)
    duplicate_detection_window: Duration = option(600.0, duration(1.0, 7 * _DAY), per_message=False)
    max_message_size: int = option(262_144, size(1024, MAX_MESSAGE_SIZE), per_message=False)
    policy: PoisonPolicy = option(
        _DEFAULT_POLICY, instance(PoisonPolicy), per_message=False, page="poison-messages.md"
    )
    dead_letter_policy: PoisonPolicy | None = option(
        None, instance(PoisonPolicy, or_none=True), per_message=False
    )
    breaker: BreakerPolicy | None = option(
        _DEFAULT_BREAKER,
        instance(BreakerPolicy, or_none=True),
        per_message=False,
        page="service-host.md#circuit-breaker",
    )
    blame_clients: bool = option(
        False, flag(), per_message=False, page="service-bus-clients.md#outages-and-killers"
    )
    on_poison_session: Converted[PoisonSession, GivenPoisonSession] = option(
        PoisonSession.SKIP, choice(POISON_SESSIONS), per_message=False, page="service-host.md#sessions"
    )
    dead_letter_on_filter_errors: bool = option(True, flag(), per_message=False, page="topics.md")
    forward_to: str | None = option(None, optional(words(_destination, "a path")), page="forwarding.md")
    forward_dead_lettered_messages_to: str | None = option(
        None, optional(words(_destination, "a path")), page="forwarding.md"
    )
    max_size: int | None = option(None, optional(size(1024, 1 << 62)), page="forwarding.md#limit-the-size")
    auto_delete_on_idle: OptionalDuration = option(
        None, optional(duration(SHORTEST_IDLE)), page="forwarding.md#delete-idle-queues-automatically"
    )
    kept_samples: int = option(2_048, integer(0, 100_000), per_message=False)
    partitions: int = option(1, integer(1, MOST_PARTITIONS), page="partitions.md")
    dialogs: bool = option(False, flag(), fixed=True, page="dialogs.md")
    retention: bool = option(False, flag(), per_message=False)
    annotations: Mapping[str, str] | None = option(
        None, special(_annotations, "a dict of texts; `None`"), per_message=False
    )

    def __post_init__(self) -> None:
        self._check_dialogs()
        if self.on_poison_session is not PoisonSession.SKIP and not self.requires_session:
            raise InvalidOption(
                f"on_poison_session={self.on_poison_session.value!r} needs a queue with requires_session"
            )
        if self.dead_letter_policy is not None:
            object.__setattr__(self, "dead_letter_policy", self.dead_letter_policy.for_dead_letters())

    @property
    def plain(self) -> bool:
        """Whether it does nothing but keep messages and hand them out, as far as each of them is asked."""
        return self.policy.disable_after_rollbacks is None and all(
            getattr(self, name) == default for name, default in _PER_MESSAGE
        )

    @property
    def whole_sessions(self) -> bool:
        """Whether each of its sessions is one unit: handed out, completed and set aside as one."""
        return self.on_poison_session is PoisonSession.WHOLE and not self.dialogs

    @property
    def longest_idle(self) -> float | None:
        """After how long without use it is deleted; None: never, as while it forwards anything."""
        used = self.forward_to is not None or self.forward_dead_lettered_messages_to is not None
        return None if used else self.auto_delete_on_idle

    def policy_of(self, subqueue: Subqueue) -> PoisonPolicy | None:
        """Return the policy for reading a subqueue; None counts nothing there."""
        if subqueue is Subqueue.DEAD_LETTER:
            return self.dead_letter_policy
        return None if subqueue is Subqueue.TRANSFER_DEAD_LETTER else self.policy

    def _check_dialogs(self) -> None:
        """Refuse what a queue of dialogs cannot have, and what only such a one can."""
        if self.dialogs:
            ordinary = {
                "default_time_to_live": self.default_time_to_live is None,
                "requires_duplicate_detection": not self.requires_duplicate_detection,
                "forward_to": self.forward_to is None,
                "auto_delete_on_idle": self.auto_delete_on_idle is None,
                "requires_session=False": self.requires_session,
                "partitions: its order is that of its conversations": self.partitions == 1,
            }
            for name, allowed in ordinary.items():
                if not allowed:
                    raise InvalidOption(f"a queue of dialogs cannot have {name}")
        elif self.retention:
            raise InvalidOption("retention needs a queue of dialogs")
        elif self.on_poison_session is PoisonSession.END:
            raise InvalidOption("on_poison_session='end' needs a queue of dialogs")


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """Everything that can be set on a topic. Each option means what it means in QueueOptions."""

    default_time_to_live: OptionalDuration = same_option(QueueOptions, "default_time_to_live")
    requires_duplicate_detection: bool = same_option(QueueOptions, "requires_duplicate_detection")
    duplicate_detection_window: Duration = same_option(QueueOptions, "duplicate_detection_window")
    max_message_size: int = same_option(QueueOptions, "max_message_size")
    max_size: int | None = same_option(QueueOptions, "max_size")
    auto_delete_on_idle: OptionalDuration = same_option(QueueOptions, "auto_delete_on_idle")
    partitions: int = same_option(QueueOptions, "partitions")
    annotations: Mapping[str, str] | None = same_option(QueueOptions, "annotations")

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
TOPIC_OPTIONS = tuple(options_of(TopicOptions))

#: Options that may be asked for each message, and their defaults, which ask nothing.
_PER_MESSAGE = tuple((name, one.default) for name, one in options_of(QueueOptions).items() if one.per_message)

#: Options that are fixed when a queue is created, as in Service Bus.
FIXED_OPTIONS = tuple(name for name, one in options_of(QueueOptions).items() if one.fixed)
