"""Parts of what there is to read, each of bounded bytes: what reads it needs no more memory than for one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.keys import dead_key, lower_bound, upper_bound
from lazaretto.model.messages import PeekedMessage
from lazaretto.store.sql.transaction import Transaction

#: Bytes of the messages of a part, unless one alone has more.
ROOM = 1 << 20


class TooLittleRoom(NamedTuple):
    """The next message needs so many bytes, which is more than there was room for."""

    size: int


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
