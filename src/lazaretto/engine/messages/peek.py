"""Peeks at messages in every state."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from lazaretto.engine.entities.queues import refuse_topic, require_queue
from lazaretto.engine.messages.parts import TooLittleRoom, fitting
from lazaretto.errors import NotAllowed
from lazaretto.model.entities import EntityPath, MessageState, Subqueue
from lazaretto.model.failure import short_error
from lazaretto.model.keys import lower_bound, main_key, upper_bound
from lazaretto.model.messages import PeekedMessage
from lazaretto.store.sql.transaction import Transaction


def peek(
    tx: Transaction, path: EntityPath, limit: int, from_sequence_number: int, session_id: str | None = None
) -> list[PeekedMessage]:
    """Return messages in every state, starting at a sequence number. Counts no attempts.

    `session_id`: only those of a session; what others there are does not matter to how long it takes.
    """
    part = _peek(tx, path, limit, from_sequence_number, session_id, None)
    assert not isinstance(part, TooLittleRoom)
    return part.messages


class PeekedPart(NamedTuple):
    """The first of the messages that a peek means. `last`: whether there are no more."""

    messages: list[PeekedMessage]
    last: bool


def peek_part(
    tx: Transaction,
    path: EntityPath,
    limit: int,
    from_sequence_number: int,
    session_id: str | None,
    room: int,
) -> PeekedPart | TooLittleRoom:
    """Return the first messages of a peek, as many as there is room for in bytes."""
    return _peek(tx, path, limit, from_sequence_number, session_id, room)


def _peek(
    tx: Transaction,
    path: EntityPath,
    limit: int,
    from_sequence_number: int,
    session_id: str | None,
    room: int | None,
) -> PeekedPart | TooLittleRoom:
    queue = require_queue(tx, path)
    if path.subqueue is not Subqueue.MAIN:
        refuse_topic(queue, "it has no subqueues; peek at those of its subscriptions")
    first = lower_bound(queue.queue_id, path.subqueue) + max(0, from_sequence_number - 1)
    last = upper_bound(queue.queue_id, path.subqueue)
    if first > last:
        return PeekedPart([], True)
    delayed = path.subqueue is Subqueue.RETRY
    keys: list[int] | None = None
    if session_id is None and room is not None:
        sizes = tx.sizes(first, last, limit, delayed=delayed)
    elif session_id is not None:
        if not queue.options.requires_session or path.subqueue not in (Subqueue.MAIN, Subqueue.RETRY):
            raise NotAllowed(f"{str(path)!r} has no sessions: peek without session_id")
        keys = tx.peeked_keys(queue.queue_id, session_id, first, last, limit, delayed=delayed)
        sizes = sorted(tx.sizes_of(keys).items()) if room is not None else []
    complete = True
    if room is not None:
        some = fitting(sizes, room)
        if isinstance(some, TooLittleRoom):
            return some
        keys, complete = some, len(some) == len(sizes)
    if keys is None:
        peeked = tx.peek(first, last, limit, delayed=delayed)
    else:
        peeked = sorted(tx.peek_keys(keys), key=lambda message: message.key) if keys else []
    messages = [
        _with_error(tx, message) if message.state is MessageState.DELAYED else message for message in peeked
    ]
    return PeekedPart(messages, complete)


def _with_error(tx: Transaction, message: PeekedMessage) -> PeekedMessage:
    latest = tx.history.last_error(main_key(message.key))
    if latest is None:
        return message
    return msgspec.structs.replace(message, error=short_error(latest.type, latest.message))
