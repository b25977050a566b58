"""Queues, topics and subscriptions as ATOM describes them, with their counts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lazaretto.api import QueueDescription, SubscriptionDescription, TopicDescription
from lazaretto.model.descriptions import MessageCounts
from lazaretto.model.signing import SigningRule
from lazaretto.servicebus.atom import authorization
from lazaretto.servicebus.atom.feeds import Entry, description, moment
from lazaretto.servicebus.atom.markup import element
from lazaretto.servicebus.atom.settings import status_name, told

_COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
_QUEUE, _TOPIC, _SUBSCRIPTION = "QueueDescription", "TopicDescription", "SubscriptionDescription"


def entry_of_queue(found: QueueDescription, base: str, rules: Sequence[SigningRule]) -> Entry:
    """Return a queue as an entry. `base`: the server's address, without a path."""
    parts = [*_of_queue(_QUEUE, found, base), authorization.described(rules)]
    parts.append(element("IsAnonymousAccessible", "false"))
    content = description(_QUEUE, parts)
    return Entry(f"{base}/{found.path}", found.path, content, found.created, found.updated)


def entry_of_topic(
    found: TopicDescription, base: str, rules: Sequence[SigningRule], filters: tuple[int, int] | None = None
) -> Entry:
    """Return a topic as an entry. `filters`: how many of SQL, and how many of correlation, it has."""
    parts = [element(name, text) for name, text in told(_TOPIC, found.options, base)]
    parts += _common(found)
    parts += [
        element("SizeInBytes", str(found.size or 0)),
        _details(MessageCounts(scheduled=found.scheduled)),
        element("SubscriptionCount", str(found.subscriptions)),
        *(
            element(name, str(number))
            for name, number in zip(("SqlFilterCount", "CorrelationFilterCount"), filters or (), strict=False)
        ),
        authorization.described(rules),
        element("IsAnonymousAccessible", "false"),
    ]
    content = description(_TOPIC, parts)
    return Entry(f"{base}/{found.path}", found.path, content, found.created, found.updated)


def entry_of_subscription(found: SubscriptionDescription, base: str) -> Entry:
    """Return a subscription as an entry."""
    content = description(_SUBSCRIPTION, _of_queue(_SUBSCRIPTION, found.queue, base))
    address = f"{base}/{found.topic}/Subscriptions/{found.name}"
    return Entry(address, found.name, content, found.queue.created, found.queue.updated)


def _of_queue(kind: str, description: QueueDescription, base: str) -> Iterator[str]:
    yield from (element(name, text) for name, text in told(kind, description.options, base))
    yield from _common(description)
    yield element("MessageCount", str(description.counts.total))
    if kind == _QUEUE:
        yield element("SizeInBytes", str(description.size or 0))
    yield _details(description.counts)


def _common(description: QueueDescription | TopicDescription) -> Iterator[str]:
    yield element("Status", status_name(description.status))
    yield element("CreatedAt", moment(description.created))
    yield element("UpdatedAt", moment(description.updated))
    yield element("AccessedAt", moment(description.accessed))
    yield element("EntityAvailabilityStatus", "Available")


def _details(counts: MessageCounts) -> str:
    numbers = {
        "ActiveMessageCount": counts.active
        + counts.locked
        + counts.deferred
        + counts.delayed
        + counts.suspect,
        "DeadLetterMessageCount": counts.dead_letter,
        "ScheduledMessageCount": counts.scheduled,
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": counts.transfer_dead_letter,
    }
    inner = "".join(f"<d2p1:{name}>{number}</d2p1:{name}>" for name, number in numbers.items())
    return f'<CountDetails xmlns:d2p1="{_COUNTS}">{inner}</CountDetails>'
