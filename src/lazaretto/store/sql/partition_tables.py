"""Partitions in SQL: the part of a transaction that chooses those to send to and to take from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lazaretto.model.keys import lower_bound, partition_of_lane, queue_of_lane, upper_bound
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.partitions import Keyed, Rounds, partition_key_of, partition_of
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.commit_context import Part


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
        found: dict[int, list[int]] = {}
        detects, rounds = queue.options.requires_duplicate_detection, self.rounds(queue)
        for place, message in enumerate(messages):
            lane = self.lane(queue, partition_key_of(message, detects=detects))
            found.setdefault(lane, []).append(place)
        for lane in found:
            rounds.note_sent(queue.lanes.index(lane), self._context.now)
        return found

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
