"""Addresses of messages in a store: one integer made of queue, subqueue and sequence number.

All messages of one subqueue stand together in order, and a message keeps its sequence number
when it moves between the subqueues of its queue.

The messages of a *lane* have one order: those of a queue, or of one partition of it, which is the highest
part of their sequence numbers. A lane's number is that of its queue, with that of its partition, from 1 on,
above it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from lazaretto.model.entities import Subqueue

SEQUENCE_BITS = 42
SUBQUEUE_BITS = 2
#: What of a key is not the queue's id.
QUEUE_BITS = SEQUENCE_BITS + SUBQUEUE_BITS
#: The highest sequence number: at 10,000 messages a second it is reached after 14 years.
LAST_SEQUENCE = (1 << SEQUENCE_BITS) - 1
#: What is left for a queue's id in a signed 64-bit integer.
QUEUE_ID_BITS = 63 - QUEUE_BITS
LAST_QUEUE = (1 << QUEUE_ID_BITS) - 1
#: The part of a sequence number that a partition counts with; the partition stands above it.
PARTITION_SEQUENCE_BITS = 36
_LAST_IN_PARTITION = (1 << PARTITION_SEQUENCE_BITS) - 1
_PARTITION_MASK = (1 << SEQUENCE_BITS - PARTITION_SEQUENCE_BITS) - 1

# Messages that wait in ";retry" stay in the main part: it is a state, not a place.
_PLACES = {Subqueue.MAIN: 0, Subqueue.RETRY: 0, Subqueue.DEAD_LETTER: 1, Subqueue.TRANSFER_DEAD_LETTER: 2}
#: Where purged dead letters are kept: no path leads there.
SET_ASIDE = 3
_PARTS = (Subqueue.MAIN, Subqueue.DEAD_LETTER, Subqueue.TRANSFER_DEAD_LETTER)


@functools.lru_cache(maxsize=4096)
def lower_bound(queue_id: int, subqueue: Subqueue = Subqueue.MAIN) -> int:
    """Return the key just before a subqueue's first message, or the first one of a lane."""
    if queue_id <= LAST_QUEUE:
        return (queue_id << SUBQUEUE_BITS | _PLACES[subqueue]) << SEQUENCE_BITS
    first = lower_bound(queue_id & LAST_QUEUE, subqueue)
    return first | (queue_id >> QUEUE_ID_BITS) - 1 << PARTITION_SEQUENCE_BITS


@functools.lru_cache(maxsize=4096)
def upper_bound(queue_id: int, subqueue: Subqueue = Subqueue.MAIN) -> int:
    """Return the highest key a subqueue's messages can have, or those of a lane."""
    return lower_bound(queue_id, subqueue) | (LAST_SEQUENCE if queue_id <= LAST_QUEUE else _LAST_IN_PARTITION)


@functools.lru_cache(maxsize=1024)
def lanes_of(queue_id: int, partitions: int) -> tuple[int, ...]:
    """Return the lanes of a queue."""
    if partitions == 1:
        return (queue_id,)
    return tuple(partition << QUEUE_ID_BITS | queue_id for partition in range(1, partitions + 1))


def lane_of(key: int, partitions: int) -> int:
    """Return the lane of a message whose queue has so many partitions."""
    queue_id = key >> QUEUE_BITS
    if partitions == 1:
        return queue_id
    return ((key >> PARTITION_SEQUENCE_BITS & _PARTITION_MASK) + 1) << QUEUE_ID_BITS | queue_id


def partition_of_lane(lane: int) -> int:
    """Return the partition, from 0 on, in the lane of one."""
    return (lane >> QUEUE_ID_BITS) - 1


def queue_of_lane(lane: int) -> int:
    """Return the queue id in a lane."""
    return lane & LAST_QUEUE


def sequence_of(key: int) -> int:
    """Return the sequence number in a key."""
    return key & LAST_SEQUENCE


def number_in_partition(key: int) -> int:
    """Return the part of a sequence number that its partition counts with."""
    return key & _LAST_IN_PARTITION


def queue_of(key: int) -> int:
    """Return the queue id in a key."""
    return key >> QUEUE_BITS


def queues_of(keys: Sequence[int]) -> set[int]:
    """Return the queue ids in some keys."""
    if len(keys) == 1:
        return {keys[0] >> QUEUE_BITS}
    return {key >> QUEUE_BITS for key in keys}


def highest_of_each(keys: Iterable[int]) -> list[int]:
    """Return the highest of some keys for each place that numbers its messages, and perhaps lower ones."""
    # A lane's messages may be in several subqueues; and what is above this shift may differ within one lane.
    return list({key >> PARTITION_SEQUENCE_BITS: key for key in sorted(keys)}.values())


def runs_of(keys: Iterable[int], most: int) -> list[tuple[int, int]]:
    """Return first and last of each run of keys without a gap, so many at most. The keys are in order."""
    runs: list[tuple[int, int]] = []
    first = last = -2
    for key in keys:
        if key > last + 1 or key >= first + most:
            if last >= 0:
                runs.append((first, last))
            first = key
        last = key
    if last >= 0:
        runs.append((first, last))
    return runs


def in_main(key: int) -> bool:
    """Return whether the message is in the queue itself rather than a dead-letter subqueue."""
    return not key >> SEQUENCE_BITS & 3


def main_key(key: int) -> int:
    """Return the key the message has or had in the queue itself: its history is kept under it."""
    return key & ~(3 << SEQUENCE_BITS)


def dead_key(key: int, subqueue: Subqueue = Subqueue.DEAD_LETTER) -> int:
    """Return the key the message has in the dead-letter subqueue, or in another one."""
    return main_key(key) | place_of(subqueue) << SEQUENCE_BITS


def aside_key(key: int) -> int:
    """Return the key of a purged dead letter, which is in no subqueue until it is restored or deleted."""
    return main_key(key) | SET_ASIDE << SEQUENCE_BITS


def place_of(subqueue: Subqueue) -> int:
    """Return the number of a subqueue within its queue."""
    return _PLACES[subqueue]


def subqueue_at(place: int) -> Subqueue:
    """Return the subqueue that has a number within its queue."""
    return _PARTS[place]


def subqueue_of(key: int) -> Subqueue:
    """Return the subqueue that the message is in; messages that wait for a retry are in the queue itself."""
    return _PARTS[key >> SEQUENCE_BITS & 3]
