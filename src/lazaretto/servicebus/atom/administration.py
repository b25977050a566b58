"""Administration by clients of Service Bus: requests, done on a broker."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from xml.etree.ElementTree import Element

from lazaretto.aio import AsyncBroker
from lazaretto.aio.witness import SigningRules
from lazaretto.api import QueueDescription, SubscriptionDescription, TopicDescription
from lazaretto.errors import EntityExists, EntityNotFound, NotAllowed
from lazaretto.model.actors import Actor
from lazaretto.model.descriptions import MessageCounts
from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE, QueueOptions, TopicOptions
from lazaretto.model.filters.rules import CorrelationFilter, Rule, sorted_rules
from lazaretto.model.grants import SigningRule
from lazaretto.model.limits import Tier
from lazaretto.servicebus.atom import rules as atom_rules
from lazaretto.servicebus.atom.feeds import (
    Entry,
    Kind,
    Refusal,
    Resource,
    description,
    element,
    entry,
    feed,
    moment,
    parse,
    text_of,
)
from lazaretto.servicebus.atom.settings import (
    changes_of,
    read_destination,
    read_number,
    status_name,
    status_of,
    told,
)

_COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
_QUEUE, _TOPIC, _SUBSCRIPTION = "QueueDescription", "TopicDescription", "SubscriptionDescription"


def entry_of_queue(queue: QueueDescription, base: str, rules: Sequence[SigningRule]) -> Entry:
    """Return a queue as an entry. `base`: the server's address, without a path."""
    parts = [*_of_queue(_QUEUE, queue, base), atom_rules.described_rules(rules)]
    parts.append(element("IsAnonymousAccessible", "false"))
    content = description(_QUEUE, parts)
    return Entry(f"{base}/{queue.path}", queue.path, content, queue.created, queue.updated)


def entry_of_topic(
    topic: TopicDescription, base: str, rules: Sequence[SigningRule], filters: tuple[int, int] | None = None
) -> Entry:
    """Return a topic as an entry. `filters`: how many of SQL, and how many of correlation, it has."""
    parts = [element(name, text) for name, text in told(_TOPIC, topic.options, base)]
    parts += _common(topic)
    parts += [
        element("SizeInBytes", str(topic.size or 0)),
        _details(MessageCounts(scheduled=topic.scheduled)),
        element("SubscriptionCount", str(topic.subscriptions)),
        *(
            element(name, str(number))
            for name, number in zip(("SqlFilterCount", "CorrelationFilterCount"), filters or (), strict=False)
        ),
        atom_rules.described_rules(rules),
        element("IsAnonymousAccessible", "false"),
    ]
    content = description(_TOPIC, parts)
    return Entry(f"{base}/{topic.path}", topic.path, content, topic.created, topic.updated)


def entry_of_subscription(subscription: SubscriptionDescription, base: str) -> Entry:
    """Return a subscription as an entry."""
    content = description(_SUBSCRIPTION, _of_queue(_SUBSCRIPTION, subscription.queue, base))
    address = f"{base}/{subscription.topic}/Subscriptions/{subscription.name}"
    return Entry(address, subscription.name, content, subscription.queue.created, subscription.queue.updated)


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


#: Entries of a page, unless a client asks for fewer.
_PAGE: Final = 100
#: An element that clients of earlier versions cannot set.
_LATER_ELEMENT, _LATER_VERSION = "MaxMessageSizeInKilobytes", "2021-05"
_MISSING: Final = "Publicly Listed Services"
_SUFFIXES: Final = ("/$deadletterqueue", "/$transfer", "/$management")


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A request that its sender may make. `url`: as the client gave it; `base`: its scheme and host.

    `updates`: whether it changes what is there. `actor`: who is noted in the audit log. `tier`: the
    namespace's; None: none in particular.
    """

    method: str
    resource: Resource
    query: Mapping[str, str]
    body: bytes
    url: str
    base: str
    updates: bool
    actor: Actor
    tier: Tier | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The status and the body of an answer, in XML."""

    status: int
    body: str = ""


async def answer(broker: AsyncBroker, signing: SigningRules, request: Request) -> Answer:
    """Do what a request asks for. Raises Refusal, LazarettoError."""
    match request.method, request.resource.kind:
        case "GET", Kind.NAMESPACE:
            return Answer(200, entry(_namespace(request)))
        case "GET", Kind.QUEUES | Kind.TOPICS | Kind.SUBSCRIPTIONS | Kind.RULES:
            return await _listed(broker, signing, request)
        case "GET", Kind.ENTITY | Kind.SUBSCRIPTION | Kind.RULE:
            found = await _found(broker, signing, request)
            # As Service Bus answers: an entity that is not there is an empty feed.
            return Answer(200, feed(_MISSING, request.url, [], _now()) if found is None else entry(found))
        case "PUT", Kind.ENTITY:
            return await _put_entity(broker, signing, request)
        case "PUT", Kind.SUBSCRIPTION:
            return await _put_subscription(broker, request)
        case "PUT", Kind.RULE:
            return await _put_rule(broker, request)
        case "DELETE", Kind.ENTITY | Kind.SUBSCRIPTION | Kind.RULE:
            await _delete(broker, request)
            return Answer(200)
    raise Refusal(405, f"The specified HTTP verb ({request.method}) is not valid.")


def _now() -> datetime:
    return datetime.now(UTC)


def _namespace(request: Request) -> Entry:
    name = request.base.partition("://")[2]
    now = _now()
    parts = (
        element("CreatedTime", moment(now)),
        element("MessagingSKU", (request.tier or Tier.STANDARD).value.capitalize()),
        element("ModifiedTime", moment(now)),
        element("Name", name.partition(":")[0]),
        element("NamespaceType", "Messaging"),
    )
    return Entry(request.url, name, description("NamespaceInfo", parts), now, now)


# Reading.


async def _entity(broker: AsyncBroker, path: str) -> QueueDescription | TopicDescription | None:
    if path.lower().endswith(_SUFFIXES):
        raise Refusal(400, "The specified HTTP verb (GET) is not valid.")
    try:
        return await broker.queue(path)
    except EntityNotFound:
        return None
    except NotAllowed:
        return await broker.topic(path)


async def _found(broker: AsyncBroker, signing: SigningRules, request: Request) -> Entry | None:
    resource = request.resource
    if resource.kind is Kind.ENTITY:
        description = await _entity(broker, resource.entity)
        return None if description is None else await _entry(broker, signing, description, request.base)
    try:
        subscription = await broker.subscription(resource.entity, resource.subscription)
    except EntityNotFound:
        return None
    if resource.kind is Kind.SUBSCRIPTION:
        return entry_of_subscription(subscription, request.base)
    rule = _rule(subscription, resource.rule)
    return None if rule is None else _entry_of_rule(subscription, rule, request.base)


def _rule(subscription: SubscriptionDescription, name: str) -> Rule | None:
    return next((rule for rule in subscription.rules if rule.name.lower() == name.lower()), None)


async def _entry(
    broker: AsyncBroker, signing: SigningRules, description: QueueDescription | TopicDescription, base: str
) -> Entry:
    filters = None
    if isinstance(description, TopicDescription):
        subscriptions = await broker.subscriptions(description.path)
        kinds = Counter(
            isinstance(rule.filter, CorrelationFilter) for one in subscriptions for rule in one.rules
        )
        filters = kinds[False], kinds[True]
    (entry,) = await _entries(signing, [description], base, filters)
    return entry


async def _entries(
    signing: SigningRules,
    descriptions: Sequence[QueueDescription | TopicDescription],
    base: str,
    filters: tuple[int, int] | None = None,
) -> list[Entry]:
    """Return entities as entries. `filters`: how many of SQL, and of correlation, a single topic has."""
    by_path = await signing.at([one.path for one in descriptions])
    entries = []
    for one in descriptions:
        rules = by_path.get(one.path.lower(), ())
        if isinstance(one, TopicDescription):
            entries.append(entry_of_topic(one, base, rules, filters))
        else:
            entries.append(entry_of_queue(one, base, rules))
    return entries


def _entry_of_rule(subscription: SubscriptionDescription, rule: Rule, base: str) -> Entry:
    # When a rule was made is not known, but not later than this.
    made, queue = subscription.queue.updated, subscription.queue
    address = f"{base}/{subscription.topic}/Subscriptions/{subscription.name}/Rules/{rule.name}"
    return Entry(address, rule.name, atom_rules.described(rule, made), queue.created, made)


async def _listed(broker: AsyncBroker, signing: SigningRules, request: Request) -> Answer:
    skip = read_number(request.query.get("$skip", "0"))
    top = min(read_number(request.query.get("$top", str(_PAGE))), _PAGE)
    resource, base = request.resource, request.base
    # One more than the page has tells whether there is another.
    most = top + 1
    entries: list[Entry]
    if resource.kind is Kind.QUEUES:
        # The system's own queue comes before all others.
        queues = await broker.queues(after=SYSTEM_DEAD_LETTER_QUEUE, limit=most, skip=skip)
        entries, number = await _entries(signing, queues[:top], base), len(queues)
    elif resource.kind is Kind.TOPICS:
        topics = await broker.topics(limit=most, skip=skip)
        entries, number = await _entries(signing, topics[:top], base), len(topics)
    elif resource.kind is Kind.SUBSCRIPTIONS:
        of_topic = await broker.subscriptions(resource.entity, limit=most, skip=skip)
        entries, number = [entry_of_subscription(one, base) for one in of_topic[:top]], len(of_topic)
    else:
        owner = await broker.subscription(resource.entity, resource.subscription)
        some = sorted_rules(owner.rules)[skip : skip + most]
        entries, number = [_entry_of_rule(owner, rule, base) for rule in some[:top]], len(some)
    address = request.url.partition("?")[0]
    more = f"{address}?$skip={skip + top}&$top={top}" if top and number > top else ""
    return Answer(200, feed(resource.kind.value.capitalize(), request.url, entries, _now(), more))


# Changing.


def _described(request: Request, *kinds: str) -> Element:
    """Return the description in a request's body. Raises Refusal."""
    root = parse(request.body)
    content = root.find("content")
    element = None if content is None else next(iter(content), None)
    if element is None or element.tag not in kinds:
        raise Refusal(400, f"expected an entry with {' or '.join(kinds)}, got something else")
    return element


def destination_of(body: bytes, name: str) -> str | None:
    """Return where an entity would forward, as an element of its description says. Raises Refusal."""
    return next((read_destination(text_of(one)) for one in parse(body).iter(name)), None)


def _given(described: Element) -> dict[str, str]:
    # Metadata is its user's text: its spaces stay.
    return {
        one.tag: one.text or "" if one.tag == "UserMetadata" else text_of(one)
        for one in described
        if not len(one)
    }


async def _put_entity(broker: AsyncBroker, signing: SigningRules, request: Request) -> Answer:
    described = _described(request, "QueueDescription", "TopicDescription")
    kind, elements, path = described.tag, _given(described), request.resource.entity
    entity = await _entity(broker, path)
    before = (await signing.at([path])).get(path.lower(), ())
    access = atom_rules.rules_of(described.find("AuthorizationRules"), before)
    # Whatever is refused must be so before anything is changed.
    status = status_of(kind, elements) if entity is None else status_of(kind, elements, entity.status)
    if not request.updates:
        if elements.get(_LATER_ELEMENT) and request.query.get("api-version", _LATER_VERSION) < _LATER_VERSION:
            raise Refusal(400, f"expected {_LATER_ELEMENT} with api-version={_LATER_VERSION} or a later one")
        if entity is not None:
            raise EntityExists(f"an entity already exists at {path!r}")
        await _create_entity(broker, kind, elements, request)
    elif entity is None or isinstance(entity, TopicDescription) != (kind == "TopicDescription"):
        raise EntityNotFound(f"no entity of this kind exists at {path!r}")
    else:
        changes = changes_of(kind, elements, entity.options, base=request.base, tier=request.tier)
        update = broker.update_topic if isinstance(entity, TopicDescription) else broker.update_queue
        if changes:
            await update(path, actor=request.actor, **changes)
    if status is not None:
        await broker.set_status(path, status, actor=request.actor)
    if access is not None and (access or before):
        await signing.set(path, access, request.actor)
    now = await _entity(broker, path)
    if now is None:
        raise EntityNotFound(f"somebody deleted {path!r} meanwhile")
    return Answer(200 if request.updates else 201, entry(await _entry(broker, signing, now, request.base)))


async def _create_entity(
    broker: AsyncBroker, kind: str, elements: Mapping[str, str], request: Request
) -> None:
    is_topic, path = kind == "TopicDescription", request.resource.entity
    options = TopicOptions() if is_topic else QueueOptions()
    changes = changes_of(kind, elements, options, creates=True, base=request.base, tier=request.tier)
    if is_topic:
        await broker.create_topic(path, TopicOptions(**changes), actor=request.actor)
    else:
        await broker.create_queue(path, QueueOptions(**changes), actor=request.actor)


async def _put_subscription(broker: AsyncBroker, request: Request) -> Answer:
    described = _described(request, "SubscriptionDescription")
    kind, elements = described.tag, _given(described)
    names = request.resource.entity, request.resource.subscription
    if request.updates:
        before = (await broker.subscription(*names)).queue
        status = status_of(kind, elements, before.status)
        changes: dict[str, Any] = changes_of(kind, elements, before.options, base=request.base)
        if changes:
            await broker.update_subscription(*names, actor=request.actor, **changes)
    else:
        status = status_of(kind, elements)
        options = QueueOptions(**changes_of(kind, elements, QueueOptions(), creates=True, base=request.base))
        first = described.find("DefaultRuleDescription")
        made: Sequence[Rule] | None = None if first is None else [atom_rules.rule_of(first)]
        await broker.create_subscription(*names, options, made, actor=request.actor)
    if status is not None:
        await broker.set_status(request.resource.path, status, actor=request.actor)
    subscription = await broker.subscription(*names)
    return Answer(200 if request.updates else 201, entry(entry_of_subscription(subscription, request.base)))


async def _put_rule(broker: AsyncBroker, request: Request) -> Answer:
    names, name = (request.resource.entity, request.resource.subscription), request.resource.rule
    rule = atom_rules.rule_of(_described(request, "RuleDescription"), name)
    if request.updates:
        description = await broker.update_rule(*names, rule, actor=request.actor)
    else:
        description = await broker.add_rule(*names, rule, actor=request.actor)
    now = _rule(description, name) or rule
    return Answer(200 if request.updates else 201, entry(_entry_of_rule(description, now, request.base)))


async def _delete(broker: AsyncBroker, request: Request) -> None:
    resource, actor = request.resource, request.actor
    if resource.kind is Kind.RULE:
        await broker.remove_rule(resource.entity, resource.subscription, resource.rule, actor=actor)
    elif resource.kind is Kind.SUBSCRIPTION:
        await broker.delete_subscription(resource.entity, resource.subscription, actor=actor)
    else:
        entity = await _entity(broker, resource.entity)
        if entity is None:
            raise Refusal(404, "No service is hosted at the specified address.")
        delete = broker.delete_topic if isinstance(entity, TopicDescription) else broker.delete_queue
        await delete(resource.entity, actor=actor)
