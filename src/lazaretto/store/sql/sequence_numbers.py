"""Sequence numbers and partitions in SQL: where the messages of a queue go, under which numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lazaretto.errors import StoreError
from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import (
    QUEUE_BITS,
    highest_of_each,
    lane_of,
    lower_bound,
    main_key,
    partition_of_lane,
    queue_of_lane,
    upper_bound,
)
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.partitions import Keyed, Rounds, partition_key_of, partition_of
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.commit_context import CommitContext, Part
from lazaretto.store.sql.queue_tables import QueueTables

_PLACES = (Subqueue.MAIN, Subqueue.DEAD_LETTER, Subqueue.TRANSFER_DEAD_LETTER)


class PartitionTables(Part):
    """Operations on a queue's partitions, each of which is a lane, within one commit."""

    def lane(self, queue: QueueRecord, partition_key: str | None) -> int:
        """Return the lane of a new message."""
        lanes = queue.lanes
        if len(lanes) == 1:
            return lanes[0]
        if partition_key is None:
            return lanes[self.rounds(queue).home]
        return lanes[partition_of(partition_key, len(lanes))]

    def split(self, queue: QueueRecord, messages: Sequence[Keyed]) -> dict[int, list[int]]:
        """Return the places of some new messages by their lane."""
        by_partition: dict[int, list[int]] = {}
        detects, rounds = queue.options.requires_duplicate_detection, self.rounds(queue)
        for place, message in enumerate(messages):
            lane = self.lane(queue, partition_key_of(message, detects=detects))
            by_partition.setdefault(lane, []).append(place)
        for lane in by_partition:
            rounds.note_sent(queue.lanes.index(lane), self._context.now)
        return by_partition

    def rounds(self, queue: QueueRecord) -> Rounds:
        """Return what this process knows of a queue's partitions."""
        return self._context.memory.homes.rounds(queue.queue_id, len(queue.lanes))

    def note_taken(self, lane: int, taken: Sequence[ReceivedMessage], limit: int) -> None:
        """Note which messages were taken from a lane, at most `limit`."""
        rounds = self._context.memory.homes.find(queue_of_lane(lane))
        if rounds is None or lane == queue_of_lane(lane):
            return
        last = max((message.enqueued for message in taken), default=0) if len(taken) >= limit else None
        rounds.note_taken(partition_of_lane(lane), last, any_taken=bool(taken))

    def waiting(self, queue: QueueRecord) -> Iterator[int]:
        """Yield the lanes in which something may wait, in the order to look at them: all of them at last."""
        lanes = queue.lanes
        if len(lanes) == 1:
            yield lanes[0]
            return
        rounds = self.rounds(queue)
        looked = rounds.needs_look(self._context.now)
        if looked:
            self.look(queue, rounds)
        tried = [lanes[partition] for partition in rounds.order()]
        yield from tried
        if not looked:
            self.look(queue, rounds)
            yield from (lanes[partition] for partition in rounds.order())

    def next_to_take(self, queue: QueueRecord) -> tuple[int, bool]:
        """Return the lane to take from next, and whether nothing waits anywhere if nothing is in it."""
        lanes = queue.lanes
        if len(lanes) == 1:
            return lanes[0], True
        rounds = self.rounds(queue)
        if rounds.needs_look(self._context.now):
            self.look(queue, rounds)
        order = rounds.order()
        return lanes[order[0] if order else rounds.home], not order

    def look(self, queue: QueueRecord, rounds: Rounds) -> None:
        """Look since when the first message of each partition has waited."""
        rounds.note_look(self.heads([self._places(lane) for lane in queue.lanes]), self._context.now)

    def heads(self, places: Sequence[dict[str, int]]) -> list[int | None]:
        """Return when the first message came that waits in each of some places."""
        answers = [self._context.run("select_head", place) for place in places]
        return [answer.fetchone()[0] for answer in answers]

    def _places(self, lane: int) -> dict[str, int]:
        first = lower_bound(lane)
        start = self._context.fresh_start(lane) or first
        return {"first": first, "last": upper_bound(lane), "start": start, "now": self._context.now}


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

    def keep_highest(self, keys: Sequence[int], queue: QueueRecord | None = None) -> None:
        """Keep a lane's highest sequence number before the last message that shows it goes.

        `queue`: the messages', if all of them are in one subqueue of it.
        """
        numbers = self._context.memory.last_sequences
        for lane, number in self._highest(keys, queue).items():
            last = numbers.get(lane)
            if number >= (self._last(lane) if last is None else last):
                self._set_high_water(lane, number)

    def _highest(self, keys: Sequence[int], queue: QueueRecord | None) -> dict[int, int]:
        """Return the highest of some messages' numbers by lane. `queue`: as of `keep_highest`."""
        if queue is not None and queue.partitions == 1:
            return {queue.queue_id: main_key(max(keys)) - lower_bound(queue.queue_id)}
        highest: dict[int, int] = {}
        for key in keys if len(keys) == 1 else highest_of_each(keys):
            lane = self._lane_of(key)
            highest[lane] = max(main_key(key) - lower_bound(lane), highest.get(lane, 0))
        return highest

    def _lane_of(self, key: int) -> int:
        queue_id = key >> QUEUE_BITS
        queue = self._queues.by_id(queue_id)
        return queue_id if queue is None or queue.partitions == 1 else lane_of(key, queue.partitions)

    def _set_high_water(self, lane: int, number: int) -> None:
        self._context.run("set_high_water", {"queue_id": lane, "sequence_number": number})
