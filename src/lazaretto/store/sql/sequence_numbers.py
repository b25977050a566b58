"""Sequence numbers in SQL: the part of a transaction that gives each message of a queue its number."""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.errors import StoreError
from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import (
    QUEUE_BITS,
    highest_of_each,
    lane_of,
    lower_bound,
    main_key,
    upper_bound,
)
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.commit_context import CommitContext, Part
from lazaretto.store.sql.partition_tables import PartitionTables
from lazaretto.store.sql.queue_tables import QueueTables

_PLACES = (Subqueue.MAIN, Subqueue.DEAD_LETTER, Subqueue.TRANSFER_DEAD_LETTER)


class SequenceNumbers(Part):
    """Operations on sequence numbers within one commit. Each lane of a queue counts by itself."""

    def __init__(self, context: CommitContext, queues: QueueTables, partitions: PartitionTables) -> None:
        super().__init__(context)
        self._queues = queues
        self._partitions = partitions

    def _last(self, lane: int) -> int:
        known = self._context.memory.last_sequences
        last = known.get(lane)
        if last is None:
            last = known[lane] = self._find_last(lane)
        return last

    def _find_last(self, lane: int) -> int:
        row = self._context.run("select_high_water", (lane,)).fetchone()
        last: int = row[0] if row else 0
        # What is below was seen before; many that are gone may stand there.
        bounds = [b for place in _PLACES for b in (lower_bound(lane, place) + last, upper_bound(lane, place))]
        keys = self._context.run("select_last_keys", bounds).fetchone()
        start = lower_bound(lane)
        return max([last, *(main_key(key) - start for key in keys if key is not None)])

    def last(self, lane: int) -> int:
        """Return the highest key that a lane has given to a message so far."""
        return lower_bound(lane) + self._find_last(lane)

    def take_key(self, queue: QueueRecord, partition_key: str | None = None, count: int = 1) -> int:
        """Return the key for a new message at the end of a queue, or of its partition of that key.

        With `count`, it is the first of several.
        """
        return self.take_keys(self._partitions.lane(queue, partition_key), count)

    def take_key_beside(self, key: int) -> int:
        """Return the key for a message at the end of the queue, or the partition, of another message."""
        return self.take_keys(self._lane_of(key))

    def take_keys(self, lane: int, count: int = 1) -> int:
        """Return the first of so many keys at the end of a lane."""
        numbers = self._context.memory.last_sequences
        last = numbers.get(lane)
        if last is None:
            last = self._find_last(lane)
        first = lower_bound(lane) + last
        if first + count > upper_bound(lane):
            most = upper_bound(lane) - lower_bound(lane)
            raise StoreError(f"the queue, or a partition of it, has used all of its {most} sequence numbers")
        numbers[lane] = last + count
        return first + 1

    def keep(self, key: int) -> None:
        """Mark a sequence number as used by a message that is not stored under it."""
        lane = self._lane_of(key)
        self._set_high_water(lane, main_key(key) - lower_bound(lane))

    def keep_highest(self, keys: Sequence[int], lane: int | None = None) -> None:
        """Keep a lane's highest sequence number before the last message that shows it goes.

        `lane`: the messages', if all of them are in one, and in one subqueue.
        """
        numbers = self._context.memory.last_sequences
        for each, number in self._highest(keys, lane).items():
            last = numbers.get(each)
            if number >= (self._last(each) if last is None else last):
                self._set_high_water(each, number)

    def _highest(self, keys: Sequence[int], lane: int | None) -> dict[int, int]:
        """Return the highest of some messages' numbers by lane. `lane`: as of `keep_highest`."""
        if lane is not None:
            return {lane: main_key(max(keys)) - lower_bound(lane)}
        found: dict[int, int] = {}
        for key in keys if len(keys) == 1 else highest_of_each(keys):
            lane = self._lane_of(key)
            found[lane] = max(main_key(key) - lower_bound(lane), found.get(lane, 0))
        return found

    def _lane_of(self, key: int) -> int:
        queue_id = key >> QUEUE_BITS
        queue = self._queues.by_id(queue_id)
        return queue_id if queue is None or queue.partitions == 1 else lane_of(key, queue.partitions)

    def _set_high_water(self, lane: int, number: int) -> None:
        self._context.run("set_high_water", {"queue_id": lane, "sequence_number": number})
