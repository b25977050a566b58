"""Options of entities as Service Bus describes them: which element stands for which option. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from lazaretto.model.entities import TOPIC_OPTIONS, QueueOptions, QueueStatus, TopicOptions
from lazaretto.model.entity_changes import Parts
from lazaretto.model.limits import Tier
from lazaretto.model.policy import PoisonPolicy
from lazaretto.model.spans import read_duration, write_duration
from lazaretto.servicebus.atom.feeds import Refusal
from lazaretto.servicebus.grants import entity_of

#: .NET's longest TimeSpan, which stands for "without end".
FOREVER: Final = "P10675199DT2H48M5.4775807S"
_LONGEST: Final = 900_000_000_000.0
_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)

#: Service Bus's limit of a lock, in seconds, and what it says beyond it.
_LONGEST_LOCK: Final = 300.0
#: What an entity without a limit of its size says, in megabytes: Service Bus's default.
_ANY_SIZE: Final = 1024
#: The sizes that its tiers have, in megabytes, with 16 partitions and without.
_SIZES: Final = (1024, 2048, 3072, 4096, 5120, 16384, 32768, 49152, 65536, 81920)
#: The largest messages that its premium tier can be told to take, in bytes.
_MESSAGE_SIZES: Final = range(1 << 20, (100 << 20) + 1)
#: Partitions of an entity that a client wants to be partitioned, as many as at Service Bus.
_PARTITIONS: Final = 16
#: What names of annotations that come from Service Bus's clients begin with.
_PREFIX: Final = "servicebus:"
_MOST_METADATA: Final = 1024
#: Elements that have no meaning here, and are kept as annotations: what they are unless given.
KEPT: Final = {
    "UserMetadata": "",
    "EnableBatchedOperations": "true",
    "EnableExpress": "false",
    "SupportOrdering": "true",
    "FilteringMessagesBeforePublishing": "false",
    "EnableSubscriptionPartitioning": "false",
}
#: Elements that are addresses of other entities: they are told as they were written.
_ADDRESSES: Final = ("ForwardTo", "ForwardDeadLetteredMessagesTo")
_NOT_OF_SUBSCRIPTIONS: Final = {
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "DuplicateDetectionHistoryTimeWindow",
    "EnablePartitioning",
    "MaxMessageSizeInKilobytes",
}
STATUSES: Final = {
    "Active": QueueStatus.ACTIVE,
    "Disabled": QueueStatus.DISABLED,
    "SendDisabled": QueueStatus.SEND_DISABLED,
    "ReceiveDisabled": QueueStatus.RECEIVE_DISABLED,
}
_STATUS_NAMES: Final = {
    **{status: name for name, status in STATUSES.items()},
    QueueStatus.HALTED: "ReceiveDisabled",
}
#: What cannot be: nobody receives from a topic, and nobody sends to a subscription.
_NO_STATUSES: Final = {"TopicDescription": "ReceiveDisabled", "SubscriptionDescription": "SendDisabled"}


class Setting(NamedTuple):
    """An element that stands for an option.

    `read` makes a value of text and `write` text of an option; `merge` makes an option of a value and of
    the option as it is. `clears`: whether an update without the element sets it back.
    """

    element: str
    option: str
    read: Callable[[str], Any]
    write: Callable[[Any], str]
    merge: Callable[[Any, Any], Any] = lambda value, _: value
    fixed: bool = False
    clears: bool = False


def read_seconds(text: str) -> float:
    """Return a duration in seconds. Raises Refusal."""
    try:
        length = read_duration(text)
    except ValueError as error:
        raise Refusal(400, str(error)) from None
    if length < timedelta():
        raise Refusal(400, f"expected a duration of at least PT0S, got {text[:100]!r}")
    return length.total_seconds()


def read_endless(text: str) -> float | None:
    """Return a duration in seconds; None: without end. Raises Refusal."""
    seconds = read_seconds(text)
    return None if seconds >= _LONGEST else seconds


def write_seconds(seconds: float | None) -> str:
    """Return a duration in seconds as text; None: without end."""
    return FOREVER if seconds is None or seconds >= _LONGEST else write_duration(timedelta(seconds=seconds))


def read_flag(text: str) -> bool:
    """Return a boolean. Raises Refusal."""
    if text.lower() not in ("true", "false"):
        raise Refusal(400, f"expected true or false, got {text[:100]!r}")
    return text.lower() == "true"


def write_flag(value: bool) -> str:
    """Return a boolean as text."""
    return "true" if value else "false"


def read_number(text: str) -> int:
    """Return a whole number that is not negative. Raises Refusal."""
    if not _NUMBER.fullmatch(text):
        raise Refusal(400, f"expected a whole number of at least 0, got {text[:100]!r}")
    return int(text)


def read_destination(text: str) -> str | None:
    """Return the path of an entity from its URL or its name; None: none is given."""
    return entity_of(text) or None


def _lock(seconds: float, _: float) -> float:
    if seconds > _LONGEST_LOCK:
        raise Refusal(400, "The supplied lock time exceeds the allowed maximum of '5' minutes")
    return seconds


def _deliveries(number: int, policy: PoisonPolicy) -> PoisonPolicy:
    if number < 1:
        raise Refusal(400, "expected MaxDeliveryCount to be at least 1, got 0")
    return dataclasses.replace(policy, receive_retry_count=number - 1)


def _size(text: str) -> int:
    megabytes = read_number(text)
    if megabytes < 1:
        raise Refusal(400, "expected MaxSizeInMegabytes to be at least 1, got 0")
    return megabytes << 20


def _tier(size: int, _: int | None) -> int:
    megabytes = size >> 20
    if megabytes not in _SIZES:
        raise Refusal(
            400, f"expected MaxSizeInMegabytes to be one of {', '.join(map(str, _SIZES))}, got {megabytes}"
        )
    return size


def _message_size(size: int, _: int) -> int:
    if size not in _MESSAGE_SIZES:
        raise Refusal(400, f"expected MaxMessageSizeInKilobytes to be from 1024 to 102400, got {size >> 10}")
    return size


#: In the order of Service Bus's descriptions.
SETTINGS: Final = (
    Setting("LockDuration", "lock_duration", read_seconds, write_seconds, _lock),
    Setting(
        "MaxSizeInMegabytes",
        "max_size",
        _size,
        lambda size: str(_ANY_SIZE if size is None else max(size >> 20, 1)),
        _tier,
    ),
    Setting("RequiresDuplicateDetection", "requires_duplicate_detection", read_flag, write_flag, fixed=True),
    Setting("RequiresSession", "requires_session", read_flag, write_flag, fixed=True),
    Setting("DefaultMessageTimeToLive", "default_time_to_live", read_endless, write_seconds),
    Setting("DeadLetteringOnMessageExpiration", "dead_letter_on_expiration", read_flag, write_flag),
    Setting(
        "DeadLetteringOnFilterEvaluationExceptions", "dead_letter_on_filter_errors", read_flag, write_flag
    ),
    Setting("DuplicateDetectionHistoryTimeWindow", "duplicate_detection_window", read_seconds, write_seconds),
    Setting(
        "MaxDeliveryCount",
        "policy",
        read_number,
        lambda policy: str(min(policy.receive_retry_count + 1, 2_147_483_647)),
        _deliveries,
    ),
    Setting("ForwardTo", "forward_to", read_destination, lambda path: path or "", clears=True),
    Setting("AutoDeleteOnIdle", "auto_delete_on_idle", read_endless, write_seconds),
    Setting(
        "EnablePartitioning",
        "partitions",
        read_flag,
        lambda partitions: write_flag(partitions > 1),
        lambda wanted, partitions: max(partitions, _PARTITIONS) if wanted else 1,
        fixed=True,
    ),
    Setting(
        "ForwardDeadLetteredMessagesTo",
        "forward_dead_lettered_messages_to",
        read_destination,
        lambda path: path or "",
        clears=True,
    ),
    Setting(
        "MaxMessageSizeInKilobytes",
        "max_message_size",
        lambda text: read_number(text) << 10,
        lambda size: str(size >> 10),
        _message_size,
    ),
)
#: What each kind of description has of both.
ELEMENTS: Final[Mapping[str, frozenset[str]]] = {
    "QueueDescription": frozenset(
        {one.element for one in SETTINGS if one.option != "dead_letter_on_filter_errors"}
        | {"UserMetadata", "EnableBatchedOperations", "EnableExpress", "SupportOrdering"}
    ),
    "TopicDescription": frozenset(
        {one.element for one in SETTINGS if one.option in TOPIC_OPTIONS} | set(KEPT)
    ),
    "SubscriptionDescription": frozenset(
        {one.element for one in SETTINGS} - _NOT_OF_SUBSCRIPTIONS
        | {"UserMetadata", "EnableBatchedOperations"}
    ),
}


def status_name(status: QueueStatus) -> str:
    """Return a status as Service Bus has it."""
    return _STATUS_NAMES[status]


def status_of(
    kind: str, texts: Mapping[str, str], before: QueueStatus = QueueStatus.ACTIVE
) -> QueueStatus | None:
    """Return the status that a description sets; None: it leaves the one that is. Raises Refusal."""
    text = texts.get("Status", "")
    if not text or text == status_name(before):
        return None
    names = [name for name in STATUSES if name != _NO_STATUSES.get(kind)]
    if text not in names:
        entity = kind.removesuffix("Description").lower()
        raise Refusal(
            400, f"expected Status of a {entity} to be one of {', '.join(names)}, got {text[:100]!r}"
        )
    return STATUSES[text]


def changes_of(
    kind: str,
    texts: Mapping[str, str],
    options: QueueOptions | TopicOptions,
    *,
    creates: bool = False,
    base: str = "",
    tier: Tier | None = None,
) -> dict[str, Any]:
    """Return which options become what, by elements of a description.

    `base`: the server's address as the client knows it, without a path. `tier`: whose limits hold; None:
    those of the premium tier.

    An element that says what the entity is already changes nothing, so that a client which sends back what
    it read keeps what this library alone can set. Raises Refusal.
    """
    if texts.get("IsAnonymousAccessible", "false").lower() == "true":
        raise Refusal(400, "expected IsAnonymousAccessible to be false: this server knows no such access")
    changes: dict[str, Any] = {}
    for setting in SETTINGS:
        if setting.element not in ELEMENTS[kind]:
            continue
        before = getattr(options, setting.option)
        text = texts.get(setting.element, "")
        if not text and not (setting.clears and not creates):
            continue
        value = setting.read(text)
        shown = _shown(kind, setting, options)
        if shown and value == setting.read(shown):
            if not (creates and setting.option == "max_size"):
                continue
        elif not text and before is None:
            continue
        if setting.fixed and not creates:
            entity = kind.removesuffix("Description")
            raise Refusal(
                400,
                f"The value for the {setting.element} property of an existing {entity} cannot be changed.",
            )
        if setting.option == "max_message_size" and tier is Tier.STANDARD:
            raise Refusal(
                400, f"expected no {setting.element} in a namespace of the standard tier, got {text[:20]}"
            )
        changed = setting.merge(value, before)
        if setting.option == "policy" and not creates:
            # Its other options may be changed at the same time.
            changed = Parts(receive_retry_count=changed.receive_retry_count)
        changes[setting.option] = changed
    annotations = options.annotations or {}
    kept = _kept(kind, texts, annotations, creates=creates)
    kept = _kept_addresses(kind, texts, kept, base) if base else kept
    if kept != annotations:
        changed = {
            name: kept.get(name) for name in {*kept, *annotations} if kept.get(name) != annotations.get(name)
        }
        # Others may be changed at the same time.
        changes["annotations"] = kept if creates else Parts(changed)
    return changes


def _kept_addresses(
    kind: str, elements: Mapping[str, str], kept: Mapping[str, str], base: str
) -> dict[str, str]:
    """Keep how addresses are written where they would be told in another way."""
    addresses = dict(kept)
    for element in _ADDRESSES:
        addresses.pop(_PREFIX + element, None)
        text = elements.get(element, "") if element in ELEMENTS[kind] else ""
        if text and text != _address(base, read_destination(text) or ""):
            addresses[_PREFIX + element] = text
    return addresses


def _address(base: str, path: str) -> str:
    return f"sb://{base.partition('://')[2]}/{path}"


def _shown(kind: str, setting: Setting, options: QueueOptions | TopicOptions) -> str:
    """Return an option as text.

    As at Service Bus, an entity that forwards is never deleted as idle; of those, a queue still says what it
    was given, and a subscription that it has no end.
    """
    subscribes = kind == "SubscriptionDescription"
    if setting.option == "auto_delete_on_idle" and subscribes and isinstance(options, QueueOptions):
        return setting.write(options.longest_idle)
    return setting.write(getattr(options, setting.option))


def _kept(
    kind: str, elements: Mapping[str, str], before: Mapping[str, str], *, creates: bool
) -> dict[str, str]:
    kept = dict(before)
    for element, default in KEPT.items():
        if element not in ELEMENTS[kind]:
            continue
        text = elements.get(element, "")
        if not text and (creates or element != "UserMetadata"):
            continue
        if len(text) > _MOST_METADATA:
            raise Refusal(400, f"expected {element} of at most {_MOST_METADATA} characters, got {len(text)}")
        if default in ("true", "false"):
            text = write_flag(read_flag(text))
        kept.pop(_PREFIX + element, None)
        if text != default:
            kept[_PREFIX + element] = text
    return kept


def told(kind: str, options: QueueOptions | TopicOptions, base: str) -> Iterator[tuple[str, str]]:
    """Yield the elements that tell an entity's options. `base`: the server's address, without a path."""
    for setting in SETTINGS:
        if setting.element not in ELEMENTS[kind]:
            continue
        text = _shown(kind, setting, options)
        if setting.element in _ADDRESSES and text:
            written = (options.annotations or {}).get(_PREFIX + setting.element, "")
            same = (read_destination(written) or "").lower() == text.lower()
            text = written if same else _address(base, text)
        if text:
            yield setting.element, text
    kept = options.annotations or {}
    for element, default in KEPT.items():
        text = kept.get(_PREFIX + element, default)
        if element in ELEMENTS[kind] and text:
            yield element, text
