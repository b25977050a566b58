"""Queues in SQL: the part of a transaction for queues, topics and subscriptions as entities."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lazaretto.errors import StoreError
from lazaretto.model.entities import EntityKind, QueueOptions
from lazaretto.model.keys import LAST_QUEUE, lower_bound, queue_of
from lazaretto.store.contract.records import QueueRecord, Standing
from lazaretto.store.sql.rows import encode_options, queue_record
from lazaretto.store.sql.statements import Statements

_COLUMNS = ("path", "path_key", "options", "created", "updated", "kind", "topic_id", "rules")


class QueueTables(Statements):
    """What a transaction does with queues."""

    delete_bodies: Callable[[Sequence[int]], None]
    delete_consumers: Callable[[int], None]

    def queue(self, path_key: str) -> QueueRecord | None:
        known = self._memory.queues
        if path_key not in known:
            row = self._run("select_queue", (path_key,)).fetchone()
            known[path_key] = queue_record(row) if row else None
        return known[path_key]

    def queue_by_id(self, queue_id: int) -> QueueRecord | None:
        known = self._memory.queues_by_id
        if queue_id not in known:
            row = self._run("select_queue_by_id", (queue_id,)).fetchone()
            known[queue_id] = queue_record(row) if row else None
        return known[queue_id]

    def queues(self) -> list[QueueRecord]:
        return [queue_record(row) for row in self._run("select_queues")]

    def insert_queue(
        self,
        path: str,
        options: QueueOptions,
        kind: EntityKind = EntityKind.QUEUE,
        topic_id: int | None = None,
        rules: bytes | None = None,
    ) -> QueueRecord:
        values = dict(zip(_COLUMNS, self._values_of(path, options, kind, topic_id, rules), strict=True))
        (queue_id,) = self._run("insert_queue", values).fetchone()
        self._check_ids(queue_id)
        record = self.queue_by_id(queue_id)
        assert record is not None
        return record

    def insert_queues(self, paths: Sequence[str], options: QueueOptions) -> list[QueueRecord]:
        (last,) = self._run("last_queue").fetchone()
        values = [v for path in paths for v in self._values_of(path, options, EntityKind.QUEUE)]
        self._insert("insert_queues", values, len(paths))
        added = [queue_record(row) for row in self._run("select_queues_after", (last,))]
        self._check_ids(*(record.queue_id for record in added))
        return added

    def _values_of(
        self,
        path: str,
        options: QueueOptions,
        kind: EntityKind,
        topic_id: int | None = None,
        rules: bytes | None = None,
    ) -> tuple[object, ...]:
        """Return the columns of a new queue."""
        return (path, path.lower(), encode_options(options), self.now, self.now, kind.value, topic_id, rules)

    def _check_ids(self, *queue_ids: int) -> None:
        if max(queue_ids, default=0) > LAST_QUEUE:
            raise StoreError(f"this store has had {LAST_QUEUE} queues the maximum")
        self._memory.forget_queues()

    def save_queue(self, record: QueueRecord) -> QueueRecord:
        self._run(
            "update_queue",
            {
                "queue_id": record.queue_id,
                "options": encode_options(record.options),
                "status": record.status.value,
                "halted_by": record.halted_by,
                "dead_letter_halted_by": record.dead_letter_halted_by,
                "breaker": record.breaker,
                "rules": record.rules,
                "now": self.now,
            },
        )
        self._memory.forget_queues()
        saved = self.queue_by_id(record.queue_id)
        assert saved is not None
        return saved

    def delete_queue(self, record: QueueRecord) -> None:
        sized = self.sized(record.queue_id)
        if sized is not None and record.kind is EntityKind.SUBSCRIPTION:
            # What its topic holds is less by that.
            bounds = {"first": lower_bound(record.queue_id), "last": lower_bound(record.queue_id + 1)}
            self.grow(sized, -self.sum_range(**bounds))
        self._run("delete_queue", {"queue_id": record.queue_id})
        self.delete_consumers(record.queue_id)
        self._run("insert_deleted_queue", (record.queue_id,))
        self._memory.forget()

    def remove_deleted(self, limit: int) -> bool:
        row = self._run("select_deleted_queue").fetchone()
        if row is None:
            return False
        (queue_id,) = row
        first, last = lower_bound(queue_id), lower_bound(queue_id + 1)
        found = self._run("select_some_keys", (first, last, limit)).fetchall()
        if found:
            self._run("delete_messages", (self._ids(key for key, _ in found),))
            self.delete_bodies([body_id for _, body_id in found if body_id is not None])
        else:
            self._run("delete_attempts_range", (first, last))
            self._run("delete_dead_letters_range", (first, last))
            self._run("delete_sessions_of", (queue_id,))
            self._run("delete_message_ids_of", (queue_id,))
            self._run("delete_deleted_queue", (queue_id,))
        return True

    def standings(self, queue_ids: Sequence[int]) -> dict[int, Standing]:
        found: dict[int, Standing] = {}
        values = {"ids": self._ids(queue_ids)}
        for queue_id, *known, state, amount in self._run("select_standings", values):
            standing = found.setdefault(queue_id, Standing(*known))
            if amount is not None:
                standing.states[state] = amount
        return found

    def count_discarded(self, queue_id: int, *, expired: int = 0, dropped: int = 0) -> None:
        self._run("count_discarded", {"queue_id": queue_id, "expired": expired, "dropped": dropped})

    def rollbacks(self, queue_id: int) -> int:
        (count,) = self._run("select_rollbacks", (queue_id,)).fetchone()
        return int(count)

    def set_rollbacks(self, queue_id: int, count: int) -> None:
        self._run("set_rollbacks", {"queue_id": queue_id, "rollbacks": count})

    # -- sizes, of entities that have a largest one ---------------------------------------------

    def sized(self, queue_id: int) -> int | None:
        """Return the entity whose size a queue's messages count to: its topic, itself, or none."""
        record = self.queue_by_id(queue_id)
        if record is not None and record.topic_id is not None:
            record = self.queue_by_id(record.topic_id)
        return None if record is None or record.options.max_size is None else record.queue_id

    def grow(self, queue_id: int, size: int) -> None:
        """Add to the bytes that an entity holds."""
        self._run("grow", (size, queue_id))

    def count_bytes(self, keys: Sequence[int], sign: int) -> None:
        """Add messages to the sizes of their entities, or take them away, while they are there."""
        for queue_id in set(map(queue_of, keys)):
            sized = self.sized(queue_id)
            if sized is not None:
                theirs = self._ids(key for key in keys if queue_of(key) == queue_id)
                self.grow(sized, sign * self._run("sum_sizes", (theirs,)).fetchone()[0])

    def sum_range(self, first: int, last: int, token: int | None = None) -> int:
        """Return the bytes of the messages between two keys, or of those that a lock holds."""
        found = self._run("sum_range", {"first": first, "last": last, "token": token}).fetchone()
        return int(found[0])

    def size(self, queue_id: int) -> int:
        (size,) = self._run("select_size", (queue_id,)).fetchone()
        return int(size)

    def count_size(self, queue_id: int) -> None:
        self._run("set_size", {"queue_id": queue_id})

    # -- entities that are deleted when nobody uses them ----------------------------------------

    def set_idle_at(self, queue_id: int, idle_at: int | None) -> None:
        self._run("set_idle_at", (idle_at, queue_id))
        if idle_at is None:
            self._memory.idle_at.pop(queue_id, None)
        else:
            self._memory.idle_at[queue_id] = idle_at

    def idle_at(self, queue_id: int) -> int:
        return self._memory.idle_at.get(queue_id, 0)

    def idle(self, limit: int) -> list[QueueRecord]:
        found = (self.queue_by_id(row[0]) for row in self._run("select_idle", (self.now, limit)))
        return [record for record in found if record is not None]
