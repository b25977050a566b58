"""Topics in SQL: the part of a transaction for subscriptions and their copies of messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lazaretto.model.keys import lower_bound, queue_of, sequence_of
from lazaretto.store.contract.records import FRESH, SCHEDULED, QueueRecord, RoutedMessage
from lazaretto.store.sql.rows import INLINE_BODY, queue_record
from lazaretto.store.sql.statements import Statements


class TopicTables(Statements):
    """What a transaction does with topics."""

    _take_sequences: Callable[[int, int], int]
    wake: Callable[[int], None]
    insert_body: Callable[[bytes], int]
    sized: Callable[[int], int | None]
    grow: Callable[[int, int], None]
    sum_range: Callable[..., int]

    def subscriptions(self, topic_id: int) -> tuple[QueueRecord, ...]:
        known = self._memory.subscriptions
        if topic_id not in known:
            rows = self._run("select_subscriptions", (topic_id,))
            known[topic_id] = tuple(queue_record(row) for row in rows)
        return known[topic_id]

    def insert_routed(self, queue: QueueRecord, routed_messages: Sequence[RoutedMessage]) -> list[int]:
        count = len(routed_messages)
        key = lower_bound(queue.queue_id) + self._take_sequences(queue.queue_id, count)
        sessions, now = queue.options.requires_session, self.now
        values: list[Any] = []
        for number, one in enumerate(routed_messages, key):
            state, due, body, body_id = FRESH, one.expires, one.body, one.body_id
            if one.scheduled is not None and one.scheduled > now:
                state = SCHEDULED
                due = one.scheduled if due is None else min(due, one.scheduled)
            if body is not None and len(body) > INLINE_BODY:
                body_id, body = self.insert_body(body), None
            values += (
                number, state, due, one.expires, now, one.message_id, one.session_id if sessions else None,
                one.headers, body_id, body, one.origin, one.generation, one.resubmitted_from,
            )  # fmt: skip
        self._insert("insert_routed", values, count)
        sized = self.sized(queue.queue_id)
        if sized is not None:
            self.grow(sized, sum(one.size + len(one.headers or b"") for one in routed_messages))
        self.wake(key)
        return list(range(key, key + count))

    def repeat_routed(self, queue: QueueRecord, first: int, count: int) -> None:
        key = lower_bound(queue.queue_id) + self._take_sequences(queue.queue_id, count)
        values = {"shift": key - first, "first": first, "last": first + count - 1}
        self._run("repeat_routed", values)
        sized = self.sized(queue.queue_id)
        if sized is not None:
            self.grow(sized, self.sum_range(key, key + count - 1))
        self.wake(key)

    def keep_sequence(self, key: int) -> None:
        values = {"queue_id": queue_of(key), "sequence_number": sequence_of(key)}
        self._run("set_high_water", values)
