"""Remembers the settings of queues, so that commits can be planned without reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.plan import Unforeseen
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.rows import queue_record
from lazaretto.store.sql.statements import Dialect

#: Of how many subscriptions a topic can have for its sends to be planned: each commit looks at all of them.
MOST_SUBSCRIPTIONS = 200
#: The mark of a topic without any.
NO_SUBSCRIPTIONS = 0


class Settings:
    """The settings of queues. Each has a mark that changes with its row."""

    def __init__(self, connection: PgConnection, dialect: Dialect) -> None:
        self._connection = connection
        self._dialect = dialect
        self.forget()

    def on(self, connection: PgConnection) -> Settings:
        """Return the same for another connection, with what is remembered by now."""
        other = Settings(connection, self._dialect)
        other._by_path, other._by_id = dict(self._by_path), dict(self._by_id)
        other._subscriptions = dict(self._subscriptions)
        return other

    def forget(self) -> None:
        """Forget all settings; they are read again when needed."""
        self._by_path: dict[str, QueueRecord] = {}
        self._by_id: dict[int, tuple[QueueRecord, int]] = {}
        self._subscriptions: dict[int, tuple[tuple[QueueRecord, ...], int]] = {}

    def by_path(self, path_key: str) -> QueueRecord:
        """Return the queue at a path. Raises Unforeseen if there is none."""
        return self._by_path.get(path_key) or self._read("select_settings", path_key)

    def by_id(self, queue_id: int) -> QueueRecord:
        """Return a queue by its id. Raises Unforeseen if there is none."""
        record = self._by_id.get(queue_id)
        return record[0] if record else self._read("select_settings_by_id", queue_id)

    def mark(self, queue_id: int) -> int:
        """Return the mark of a queue that was returned before."""
        return self._by_id[queue_id][1]

    def subscriptions(self, topic_id: int) -> tuple[QueueRecord, ...]:
        """Return the subscriptions of a topic by path; the same object until something changes."""
        if topic_id not in self._subscriptions:
            self._subscriptions[topic_id] = self._read_subscriptions(topic_id)
        return self._subscriptions[topic_id][0]

    def mark_of_subscriptions(self, topic_id: int) -> int:
        """Return the mark of all subscriptions of a topic, which were returned before."""
        return self._subscriptions[topic_id][1]

    def next_bodies(self) -> int:
        """Return the id before a range of body ids that no other process uses."""
        (last,) = self._connection.execute(self._dialect.text("select_last_body")).fetchone()
        return int(last)

    def _read_subscriptions(self, topic_id: int) -> tuple[tuple[QueueRecord, ...], int]:
        query = self._dialect.text("select_settings_of_topic")
        rows = self._connection.execute(query, (topic_id, MOST_SUBSCRIPTIONS + 1)).fetchall()
        if len(rows) > MOST_SUBSCRIPTIONS:
            raise Unforeseen
        return tuple(self._keep(row[:-1]) for row in rows), rows[0][-1] if rows else NO_SUBSCRIPTIONS

    def _read(self, query: str, key: object) -> QueueRecord:
        row = self._connection.execute(self._dialect.text(query), (key,)).fetchone()
        if row is None:
            raise Unforeseen
        return self._keep(row)

    def _keep(self, row: Sequence[Any]) -> QueueRecord:
        *columns, mark = row
        record = queue_record(tuple(columns))
        self._by_path[record.path.lower()] = record
        self._by_id[record.queue_id] = record, mark
        return record
