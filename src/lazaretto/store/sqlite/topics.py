"""Topics in SQL: the part of a transaction that knows subscriptions and gives them copies."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from lazaretto.keys import first_key, queue_of, sequence_of
from lazaretto.store.records import FRESH, NewCopy, QueueRecord
from lazaretto.store.sqlite.rows import SQL, Inserts, Memory, queue_record

_COPIES = Inserts("insert_copies")


class TopicTables:
    """What a transaction does with topics."""

    _x: Callable[..., sqlite3.Cursor]
    _memory: Memory
    _take_sequences: Callable[[int, int], int]
    wake: Callable[[int], None]
    now: int

    def subscriptions(self, topic_id: int) -> tuple[QueueRecord, ...]:
        known = self._memory.subscriptions
        if topic_id not in known:
            rows = self._x(SQL["select_subscriptions"], (topic_id,))
            known[topic_id] = tuple(queue_record(row) for row in rows)
        return known[topic_id]

    def insert_copies(self, queue: QueueRecord, copies: Sequence[NewCopy]) -> list[int]:
        count = len(copies)
        key = first_key(queue.queue_id) + self._take_sequences(queue.queue_id, count)
        values: list[Any] = []
        for number, copy in enumerate(copies, key):
            values += (
                number, FRESH, copy.expires, copy.expires, self.now, copy.message_id, copy.session_id,
                copy.headers, copy.body_id, copy.body, copy.origin,
            )  # fmt: skip
        _COPIES.run(self._x, values, count)
        self.wake(key)
        return list(range(key, key + count))

    def repeat_copies(self, queue: QueueRecord, first: int, count: int) -> None:
        key = first_key(queue.queue_id) + self._take_sequences(queue.queue_id, count)
        values = {"shift": key - first, "first": first, "last": first + count - 1}
        self._x(SQL["repeat_copies"], values)
        self.wake(key)

    def keep_sequence(self, key: int) -> None:
        values = {"queue_id": queue_of(key), "sequence_number": sequence_of(key)}
        self._x(SQL["set_high_water"], values)
