"""Follows a message through its generations: back to the first one, and on to what came of it."""

from __future__ import annotations

import msgspec

from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.outcome.dead_letter_operations import attempts_at, letter_of
from lazaretto.errors import MessageNotFound
from lazaretto.model.clock import to_datetime
from lazaretto.model.entities import EntityKind, EntityPath, Subqueue
from lazaretto.model.keys import (
    dead_key,
    lane_of,
    lower_bound,
    main_key,
    queue_of,
    sequence_of,
    subqueue_of,
)
from lazaretto.model.message_history import GONE, Generation, MessageHistory, generation_of
from lazaretto.model.messages import Attempt, PeekedMessage
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.transaction import Transaction

#: Generations that are followed in each direction.
_MOST = 100
#: How many of the latest events are searched for the end of a message.
_EVENTS = 10_000
_PARTS = (Subqueue.MAIN, Subqueue.DEAD_LETTER, Subqueue.TRANSFER_DEAD_LETTER)


def show_message(tx: Transaction, path: EntityPath, number: int) -> MessageHistory:
    """Return what is known of a message that the queue has, or had.

    Raises MessageNotFound for a number that the queue has not given yet.
    """
    queue = require_queue(tx, path)
    key = lower_bound(queue.queue_id) + number
    asked, message, before, after = _look(tx, queue, key)
    if asked.state == GONE and key > tx.sequences.last(lane_of(key, queue.partitions)):
        raise MessageNotFound(f"no message {number} in {queue.path!r}: it has not given this number yet")
    generations, seen = [asked], {key}
    while before is not None and before not in seen and len(seen) <= _MOST:
        neighbour = _generation(tx, before)
        if neighbour is None:
            break
        seen.add(before)
        generation, _, before, _ = neighbour
        generations.insert(0, generation)
    complete, most = before is None or before in seen or len(seen) <= _MOST, len(seen) + _MOST
    while after is not None:
        if after in seen:
            # It returned to its place under the same number, and has left it.
            generations.append(Generation(queue.path, "", number, GONE))
            break
        neighbour = _generation(tx, after)
        if neighbour is None or len(seen) >= most:
            complete = complete and neighbour is None
            break
        seen.add(after)
        generation, _, _, after = neighbour
        generations.append(generation)
    return MessageHistory(queue.path, number, tuple(generations), message, complete)


_Found = tuple[Generation, PeekedMessage | None, int | None, int | None]


def _generation(tx: Transaction, key: int) -> _Found | None:
    """Return the generation under a key; None: its queue was deleted."""
    queue = tx.queues.by_id(queue_of(key))
    return None if queue is None else _look(tx, queue, key)


def _look(tx: Transaction, queue: QueueRecord, key: int) -> _Found:
    """Return a generation, its message if it is stored, and the keys of the generations before and after."""
    attempts = attempts_at(tx, key)
    messages = tx.peek_keys([dead_key(key, part) for part in _PARTS])
    message = messages[0] if messages else None
    record = tx.history.dead_letter(key)
    where = "" if message is None else subqueue_of(message.key).value
    row = None if message is None or where else tx.row(key)
    if record is not None and row is None:
        letter = letter_of(tx, queue, record, None)
        generation = generation_of(letter, where, attempts)
        return generation, message, record.resubmitted_from, record.resubmitted_as
    if message is None:
        return _gone(tx, queue, key, attempts), None, None, None
    generation = Generation(
        queue.path,
        where,
        sequence_of(main_key(key)),
        message.state.value,
        message.message_id,
        message.generation,
        to_datetime(message.enqueued),
        attempts,
    )
    return generation, message, None if row is None else row.resubmitted_from, None


def _gone(tx: Transaction, queue: QueueRecord, key: int, attempts: tuple[Attempt, ...]) -> Generation:
    """Return a generation that has left no row: what an event says of its end, if a recent one does."""
    number = sequence_of(key)
    event = tx.history.end(queue.path, number, _EVENTS)
    if event is None or event.time < queue.created:
        return Generation(queue.path, "", number, GONE, attempts=attempts, description=_way(queue))
    detail = msgspec.json.decode(event.detail, type=_End)
    return Generation(
        queue.path,
        "",
        number,
        event.kind,
        attempts=attempts,
        reason=detail.reason,
        description=None if detail.to is None else f"returned to {detail.to}",
        error_type=detail.error_type,
        resolved=to_datetime(event.time),
    )


def _way(queue: QueueRecord) -> str | None:
    """Return where an entity passes its messages on to now."""
    if queue.kind is EntityKind.TOPIC:
        return f"{queue.path} passes messages on to its subscriptions"
    to = queue.options.forward_to
    return None if to is None else f"{queue.path} passes messages on to {to}"


class _End(msgspec.Struct):
    """The end of a message that was discarded or returned, by its events."""

    reason: str | None = None
    error_type: str | None = None
    to: str | None = None
