"""Topics in SQL: the part of a transaction for subscriptions and their copies of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazaretto.model.messages import sent_columns
from lazaretto.model.rates import SENT
from lazaretto.store.records.messages import FRESH, SCHEDULED, QueueRecord, RoutedMessage
from lazaretto.store.sql.body_tables import BodyTables
from lazaretto.store.sql.commit_context import CommitContext
from lazaretto.store.sql.history_tables import RateTables
from lazaretto.store.sql.message_part import MessagePart
from lazaretto.store.sql.queue_tables import QueueTables
from lazaretto.store.sql.rows import INLINE_BODY, queue_record
from lazaretto.store.sql.sequence_numbers import PartitionTables, SequenceNumbers


class TopicTables(MessagePart):
    """Operations on topics within one commit."""

    def subscriptions(self, topic_id: int) -> tuple[QueueRecord, ...]:
        """Return a topic's subscriptions by path; the same object until something changes."""
        subscriptions = self._context.memory.subscriptions
        if topic_id not in subscriptions:
            rows = self._context.run("select_subscriptions", (topic_id,))
            subscriptions[topic_id] = tuple(queue_record(row) for row in rows)
        return subscriptions[topic_id]

    def __init__(
        self,
        context: CommitContext,
        queues: QueueTables,
        bodies: BodyTables,
        sequences: SequenceNumbers,
        partitions: PartitionTables,
    ) -> None:
        super().__init__(context, queues, bodies, sequences)
        self._partitions = partitions
        self._rates = RateTables(context)

    def insert_routed(
        self, queues: Sequence[QueueRecord], routed_messages: Sequence[RoutedMessage]
    ) -> list[int]:
        """Add routed messages at the end of each of some queues; return their keys in the first one.

        Within a commit, a first queue always comes with the same others.
        """
        keys = self._insert_in(queues[0], routed_messages)
        for queue in queues[1:]:
            if queue.partitions == queues[0].partitions == 1:
                self._repeat(queue, keys[0], len(routed_messages))
            else:
                self._insert_in(queue, routed_messages)
        return keys

    def _insert_in(self, queue: QueueRecord, routed_messages: Sequence[RoutedMessage]) -> list[int]:
        if queue.partitions == 1:
            return self._insert_routed(queue, queue.queue_id, routed_messages)
        keys = [0] * len(routed_messages)
        for lane, places in self._partitions.split(queue, routed_messages).items():
            some = self._insert_routed(queue, lane, [routed_messages[place] for place in places])
            for place, key in zip(places, some, strict=True):
                keys[place] = key
        return keys

    def _insert_routed(
        self, queue: QueueRecord, lane: int, routed_messages: Sequence[RoutedMessage]
    ) -> list[int]:
        count = len(routed_messages)
        key = self._sequences.take_keys(lane, count)
        sessions, now = queue.options.requires_session, self._context.now
        values: list[Any] = []
        for number, one in enumerate(routed_messages, key):
            state, due, body, body_id = FRESH, one.expires, one.body, one.body_id
            if one.scheduled is not None and one.scheduled > now:
                state = SCHEDULED
                due = one.scheduled if due is None else min(due, one.scheduled)
                self._context.note_due(due)
            if body is not None and len(body) > INLINE_BODY:
                body_id, body = self._bodies.insert_one(body), None
            values += (
                number, now, one.origin, one.generation, one.resubmitted_from, state, due, one.expires,
                one.message_id, one.session_id if sessions else None, one.headers, body_id, body,
                *sent_columns(one).values(),
            )  # fmt: skip
        self._context.insert("insert_routed", values, count)
        sized = self._queues.sized(queue.queue_id)
        if sized is not None:
            self._queues.grow(sized, sum(one.size + len(one.headers or b"") for one in routed_messages))
        self._context.wake(key)
        self._rates.count(queue.queue_id, SENT, count)
        return list(range(key, key + count))

    def _repeat(self, queue: QueueRecord, first: int, count: int) -> None:
        """Repeat, at another queue's end, the messages from a key on."""
        key = self._sequences.take_keys(queue.queue_id, count)
        values = {"shift": key - first, "first": first, "last": first + count - 1}
        self._context.run("repeat_routed", values)
        sized = self._queues.sized(queue.queue_id)
        if sized is not None:
            self._queues.grow(sized, self._queues.sum_range(key, key + count - 1))
        self._context.wake(key)
        self._rates.count(queue.queue_id, SENT, count)
