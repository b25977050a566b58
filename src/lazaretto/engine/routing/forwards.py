"""Forwarding: which entity forwards where, which destinations are allowed, and when entities are idle."""

from __future__ import annotations

from lazaretto.engine.entities.existing import no_entity
from lazaretto.errors import InvalidOption
from lazaretto.model.entities import FORWARDS, EntityKind, EntityPath, QueueOptions, names_subscription
from lazaretto.model.keys import lower_bound, upper_bound
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.transaction import Transaction


def forwards(queue: QueueRecord) -> bool:
    """Return whether an entity forwards its messages now; while it is disabled, they wait."""
    return queue.options.forward_to is not None and queue.status.gives


def active_due(tx: Transaction, queue_id: int, expires: int | None) -> int | None:
    """Return when an active message is due: at once if it must be forwarded."""
    queue = tx.queues.by_id(queue_id)
    return tx.now if queue is not None and forwards(queue) else expires


def start_forwarding(tx: Transaction, queue: QueueRecord) -> None:
    """Start to forward the messages that an entity already holds, if it forwards."""
    if forwards(queue):
        tx.make_due(lower_bound(queue.queue_id), upper_bound(queue.queue_id))


def check_destinations(tx: Transaction, path: EntityPath, options: QueueOptions) -> None:
    """Raise EntityNotFound for a missing destination, InvalidOption for a circle that would lose messages.

    Any other circle is taken: the limit of hops ends it among the dead letters.
    """
    for name in FORWARDS:
        destination = getattr(options, name)
        if destination is None:
            continue
        target = tx.queues.by_path(destination.lower())
        if target is None and destination.lower() != path.key:
            plain = f"no queue or topic exists at {destination!r} ({name})"
            raise no_entity(tx, plain, destination, [EntityKind.QUEUE, EntityKind.TOPIC])
    if options.forward_to is not None:
        _refuse_circle_of_duplicates(tx, path, options)


def _refuse_circle_of_duplicates(tx: Transaction, path: EntityPath, options: QueueOptions) -> None:
    """Raise InvalidOption if messages would come again to where they would be dropped as duplicates."""
    assert options.forward_to is not None
    # A message to the topic reaches all its subscriptions, including this one.
    topic = path.key.rsplit("/", 2)[0] if names_subscription(path) else path.key
    steps, circle = _steps(tx, options.forward_to), {path.key, topic}
    if not circle & steps.keys():
        return
    # Those from which one of them is reached, a step further back each time.
    while back := {key for key, further in steps.items() if key not in circle and circle & set(further)}:
        circle |= back
    for key in sorted(circle):
        record = tx.queues.by_path(key)
        if (record.options if record else options).requires_duplicate_detection:
            dropped = "dropped there as duplicates of themselves; forward them elsewhere"
            error = InvalidOption(f"messages would come back to {key!r}, and be {dropped}")
            error.plain, error.entities = f"messages would come back, and be {dropped}", (key,)
            raise error


def _steps(tx: Transaction, start: str) -> dict[str, list[str]]:
    """Return the keys of entities that messages pass through from one on, with where each forwards to."""
    steps, ahead = dict[str, list[str]](), [start.lower()]
    while ahead:
        key = ahead.pop()
        if key in steps:
            continue
        record = tx.queues.by_path(key)
        members = [] if record is None else [record]
        if record is not None and record.kind is EntityKind.TOPIC:
            members = list(tx.topics.subscriptions(record.queue_id))
        further = (one.options.forward_to for one in members)
        steps[key] = [to.lower() for to in further if to is not None]
        ahead += steps[key]
    return steps


def places_behind(tx: Transaction, path: str) -> set[str]:
    """Return the paths of all entities that a message can come to that is sent to one, and this path.

    It also follows dead letters that are forwarded, since any message can become one.
    """
    paths, queues = {path}, [tx.queues.by_path(path.lower())]
    while queues:
        queue = queues.pop()
        if queue is None:
            continue
        further = [queue.options.forward_to, queue.options.forward_dead_lettered_messages_to]
        if queue.kind is EntityKind.TOPIC:
            further += [one.path for one in tx.topics.subscriptions(queue.queue_id)]
        new = {one for one in further if one is not None and one not in paths}
        paths |= new
        queues += [tx.queues.by_path(one.lower()) for one in new]
    return paths


def touch(tx: Transaction, queue: QueueRecord) -> None:
    """Note that an entity and its topic are in use, so that they are not deleted as idle."""
    _touch(tx, queue)
    if queue.topic_id is not None:
        topic = tx.queues.by_id(queue.topic_id)
        if topic is not None:
            _touch(tx, topic)


def _touch(tx: Transaction, queue: QueueRecord) -> None:
    longest = queue.options.longest_idle
    if longest is None:
        return
    micros = round(longest * 1_000_000)
    # Somewhat later than necessary, so that not every use causes a write.
    if tx.now + micros > tx.queues.idle_at(queue.queue_id):
        tx.queues.set_idle_at(queue.queue_id, tx.now + micros + micros // 20)
