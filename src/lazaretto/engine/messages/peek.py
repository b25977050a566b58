"""Reads messages of every state without locking them, in parts of bounded bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from lazaretto.engine.entities.queues import refuse_topic, require_queue
from lazaretto.errors import NotAllowed
from lazaretto.model.entities import EntityPath, MessageState, Subqueue
from lazaretto.model.failure import short_error
from lazaretto.model.keys import dead_key, lower_bound, main_key, upper_bound
from lazaretto.model.messages import PeekedMessage
from lazaretto.store.sql.transaction import Transaction

#: Bytes of the messages of a part, unless one alone has more.
ROOM = 1 << 20


class TooLittleRoom(NamedTuple):
    """The next message needs so many bytes, which is more than there was room for."""

    size: int


class PeekedPart(NamedTuple):
    """The first of the messages that a peek means. `last`: whether there are no more."""

    messages: list[PeekedMessage]
    last: bool


def fitting(sizes: Sequence[tuple[int, int]], room: int) -> list[int] | TooLittleRoom:
    """Return the first keys whose messages have room. `sizes`: keys and bytes, in order."""
    taken, rest = list[int](), room
    for key, size in sizes:
        if size > rest:
            break
        rest -= size
        taken.append(key)
    return taken if taken or not sizes else TooLittleRoom(sizes[0][1])


def in_parts(keys: Sequence[int], sizes: dict[int, int], room: int = ROOM) -> Iterator[Sequence[int]]:
    """Yield keys in parts whose messages have room, or which are one."""
    start, rest = 0, room
    for place, key in enumerate(keys):
        size = sizes.get(key, 0)
        if size > rest and place > start:
            yield keys[start:place]
            start, rest = place, room
        rest -= size
    if start < len(keys):
        yield keys[start:]


def size_of(messages: Iterable[PeekedMessage | None]) -> int:
    """Return the bytes of messages."""
    return sum(len(one.body) + len(one.encoded_headers or b"") for one in messages if one is not None)


def sizes_of_numbers(tx: Transaction, path: EntityPath, numbers: Sequence[int]) -> int:
    """Return the bytes of a queue's messages by their numbers, in whatever subqueue they are."""
    queue = tx.queues.by_path(path.key)
    if queue is None:
        return 0
    first = lower_bound(queue.queue_id)
    keys = [dead_key(first + number, part) for number in numbers for part in Subqueue]
    return sum(tx.sizes_of(keys).values())


def largest_ahead(tx: Transaction, path: EntityPath, limit: int) -> int:
    """Return the bytes of the largest of the first messages in a subqueue; 0: there are none."""
    queue = tx.queues.by_path(path.key)
    if queue is None:
        return 0
    first, last = lower_bound(queue.queue_id, path.subqueue), upper_bound(queue.queue_id, path.subqueue)
    sizes = tx.sizes(first, last, limit, delayed=path.subqueue is Subqueue.RETRY)
    return max((size for _, size in sizes), default=0)


def peek(
    tx: Transaction, path: EntityPath, limit: int, from_sequence_number: int, session_id: str | None = None
) -> list[PeekedMessage]:
    """Return messages in every state, starting at a sequence number. Counts no attempts.

    `session_id`: only those of a session; what others there are does not matter to how long it takes.
    """
    part = peek_part(tx, path, limit, from_sequence_number, session_id, None)
    assert not isinstance(part, TooLittleRoom)
    return part.messages


def peek_part(
    tx: Transaction,
    path: EntityPath,
    limit: int,
    from_sequence_number: int,
    session_id: str | None,
    room: int | None,
) -> PeekedPart | TooLittleRoom:
    """Return the first messages of a peek, as many as there is room for in bytes; None: all of them."""
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
