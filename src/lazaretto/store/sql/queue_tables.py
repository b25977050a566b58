"""Queues in SQL: the part of a transaction for queues, topics and subscriptions as entities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lazaretto.errors import StoreError
from lazaretto.model.entities import EntityKind, QueueOptions, Subqueue
from lazaretto.model.keys import (
    LAST_QUEUE,
    SEQUENCE_BITS,
    SUBQUEUE_BITS,
    aside_key,
    lower_bound,
    queue_of,
    queues_of,
)
from lazaretto.model.redaction import RedactionRule, decode_rules, rules_for
from lazaretto.store.records.access import REDACTION, SIGNING
from lazaretto.store.records.messages import QueueRecord, Standing
from lazaretto.store.sql.body_tables import BodyTables
from lazaretto.store.sql.commit_context import CommitContext, Part
from lazaretto.store.sql.rows import encode_options, pattern_of, queue_record

_COLUMNS = ("path", "path_key", "options", "created", "updated", "kind", "topic_id", "rules", "redacted")

#: What forgets the consumers of a queue, with their claims.
_CONSUMERS = (
    "delete_consumers_staged",
    "delete_consumers_shards",
    "delete_consumers_ranges",
    "delete_consumers_claims",
    "delete_consumers",
)

#: What forgets the causes of a queue's dead letters.
_CAUSES = ("delete_fingerprints_of", "delete_hours_of", "delete_causes_of")


class QueueTables(Part):
    """Operations on queues within one commit."""

    def __init__(self, context: CommitContext, bodies: BodyTables) -> None:
        super().__init__(context)
        self._bodies = bodies

    def by_path(self, path_key: str) -> QueueRecord | None:
        """Return the queue at a path."""
        queues = self._context.memory.queues
        if path_key not in queues:
            row = self._context.run("select_queue", (path_key,)).fetchone()
            record = queues[path_key] = self._record(row)
            if record is not None:
                self._context.memory.queues_by_id[record.queue_id] = record
        return queues[path_key]

    def by_id(self, queue_id: int) -> QueueRecord | None:
        """Return the queue with an id."""
        queues = self._context.memory.queues_by_id
        if queue_id not in queues:
            row = self._context.run("select_queue_by_id", (queue_id,)).fetchone()
            queues[queue_id] = self._record(row)
        return queues[queue_id]

    def _record(self, row: tuple[Any, ...] | None) -> QueueRecord | None:
        """Return a row as a record: as what it was when it was read last, if it is the same."""
        if row is None:
            return None
        rows = self._context.memory.queue_rows
        last = rows.get(row[0])
        if last is None or last[0] != row:
            last = rows[row[0]] = (row, queue_record(row))
        return last[1]

    def near(self, path_key: str, limit: int) -> list[tuple[str, EntityKind]]:
        """Return what stands nearest to a path in order: up to `limit` before it, and as many behind it."""
        rows = self._context.run("select_near", {"path_key": path_key, "limit": limit})
        return [(path, EntityKind(kind)) for path, kind in rows]

    def all(self) -> list[QueueRecord]:
        """Return all queues by path."""
        return [queue_record(row) for row in self._context.run("select_queues")]

    def page(
        self, after: str, part: str, limit: int, skip: int = 0, kind: EntityKind = EntityKind.QUEUE
    ) -> list[QueueRecord]:
        """Return queues or topics by path behind one, those with a text in their path; both in lower case."""
        values = {
            "after": after,
            "part": pattern_of(part),
            "limit": limit,
            "skip": skip,
            "kind": kind.value,
        }
        return [queue_record(row) for row in self._context.run("select_queues_page", values)]

    def insert(
        self,
        path: str,
        options: QueueOptions,
        kind: EntityKind = EntityKind.QUEUE,
        topic_id: int | None = None,
        rules: bytes | None = None,
    ) -> QueueRecord:
        """Add a queue, topic or subscription."""
        redaction = self._redaction()
        values = dict(
            zip(_COLUMNS, self._values_of(redaction, path, options, kind, topic_id, rules), strict=True)
        )
        (queue_id,) = self._context.run("insert_queue", values).fetchone()
        self._check_ids(queue_id)
        record = self.by_id(queue_id)
        assert record is not None
        return record

    def insert_many(self, paths: Sequence[str], options: QueueOptions) -> list[QueueRecord]:
        """Add queues at the paths that are free, and return them."""
        (last,) = self._context.run("last_queue").fetchone()
        redaction = self._redaction()
        values = [v for path in paths for v in self._values_of(redaction, path, options, EntityKind.QUEUE)]
        self._context.insert("insert_queues", values, len(paths))
        added = [queue_record(row) for row in self._context.run("select_queues_after", (last,))]
        self._check_ids(*(record.queue_id for record in added))
        return added

    def _values_of(
        self,
        redaction: Sequence[RedactionRule],
        path: str,
        options: QueueOptions,
        kind: EntityKind,
        topic_id: int | None = None,
        rules: bytes | None = None,
    ) -> tuple[object, ...]:
        """Return the columns of a new queue."""
        return (
            path,
            path.lower(),
            encode_options(options),
            self._context.now,
            self._context.now,
            kind.value,
            topic_id,
            rules,
            int(bool(rules_for(redaction, path))),
        )

    def _redaction(self) -> Sequence[RedactionRule]:
        row = self._context.run("select_setting", (REDACTION,)).fetchone()
        return decode_rules(row[0] if row else None)

    def mark_redacted(self, queue_id: int, redacted: bool) -> None:
        """Store whether there are rules for fields of a queue's messages that people may not read."""
        self._context.run("mark_redacted", {"redacted": int(redacted), "queue_id": queue_id})
        self._context.memory.forget_queues()

    def _check_ids(self, *queue_ids: int) -> None:
        if max(queue_ids, default=0) > LAST_QUEUE:
            raise StoreError(f"this store has had {LAST_QUEUE} queues the maximum")
        self._context.memory.forget_queues()

    def save(self, record: QueueRecord) -> QueueRecord:
        """Store a queue's options, status and culprits; return it with the time of the change."""
        self._context.run(
            "update_queue",
            {
                "queue_id": record.queue_id,
                "options": encode_options(record.options),
                "status": record.status.value,
                "halted_by": record.halted_by,
                "dead_letter_halted_by": record.dead_letter_halted_by,
                "breaker": record.breaker,
                "rules": record.rules,
                "now": self._context.now,
            },
        )
        self._context.memory.forget_queues()
        saved = self.by_id(record.queue_id)
        assert saved is not None
        return saved

    def delete(self, record: QueueRecord) -> None:
        """Remove a queue; `remove_deleted` removes its messages in chunks."""
        sized = self.sized(record.queue_id)
        if sized is not None and record.kind is EntityKind.SUBSCRIPTION:
            # What its topic holds is less by that.
            bounds = {"first": lower_bound(record.queue_id), "last": lower_bound(record.queue_id + 1)}
            self.grow(sized, -self.sum_range(**bounds))
        self._context.run("delete_queue", {"queue_id": record.queue_id})
        self._context.run("delete_setting", (f"{SIGNING}{record.queue_id}",))
        for query in _CONSUMERS:
            self._context.run(query, (record.queue_id,))
        self._context.run("insert_deleted_queue", (record.queue_id,))
        self._context.memory.forget()

    def remove_deleted(self, limit: int) -> bool:
        """Remove up to `limit` messages of a deleted queue; return whether there may be more."""
        row = self._context.run("select_deleted_queue").fetchone()
        if row is None:
            return False
        (queue_id,) = row
        first, last = lower_bound(queue_id), lower_bound(queue_id + 1)
        rows = self._context.run("select_some_keys", (first, last, limit)).fetchall()
        if rows:
            self._context.run("delete_messages", (self._context.ids(key for key, _ in rows),))
            self._bodies.delete([body_id for _, body_id in rows if body_id is not None])
        else:
            self._context.run("delete_attempts_range", (first, last))
            self._context.run("delete_dead_letters_range", (first, last))
            places = {"first": queue_id << SUBQUEUE_BITS, "last": (queue_id + 1) << SUBQUEUE_BITS}
            for name in _CAUSES:
                self._context.run(name, places)
            self._context.run("delete_samples_of", (first, last))
            self._context.run("delete_rates_of", (queue_id,))
            self._context.run("delete_sessions_of", (queue_id,))
            self._context.run("delete_message_ids_of", (queue_id,))
            self._context.run("delete_deleted_queue", (queue_id,))
        return True

    def standings(self, queue_ids: Sequence[int]) -> dict[int, Standing]:
        """Return the states of queues, with exact numbers of messages."""
        standings: dict[int, Standing] = {}
        pending = self._pending_letters()
        values = {"ids": self._context.ids(queue_ids)}
        for queue_id, *known, dead, transfer, state, amount in self._context.run("select_standings", values):
            if queue_id not in standings:
                dead += pending[lower_bound(queue_id, Subqueue.DEAD_LETTER) >> SEQUENCE_BITS]
                transfer += pending[lower_bound(queue_id, Subqueue.TRANSFER_DEAD_LETTER) >> SEQUENCE_BITS]
                known = [*known, dead, transfer]
                standings[queue_id] = Standing(*known)
            if amount is not None:
                standings[queue_id].states[state] = amount
        return standings

    def _pending_letters(self) -> Counter[int]:
        """Return how many more dead letters each place has by this commit, which writes that at its end."""
        letters: Counter[int] = Counter()
        for (place, _), tally in self._context.counted.items():
            letters[place] += tally.came - tally.resolved
        return letters

    def count_discarded(self, queue_id: int, *, expired: int = 0, dropped: int = 0) -> None:
        """Add to the numbers of messages discarded."""
        self._context.run("count_discarded", {"queue_id": queue_id, "expired": expired, "dropped": dropped})

    def rollbacks(self, queue_id: int) -> int:
        """Return the number of consecutive rolled-back receives from the queue."""
        (count,) = self._context.run("select_rollbacks", (queue_id,)).fetchone()
        return int(count)

    def set_rollbacks(self, queue_id: int, count: int) -> None:
        """Store the number of consecutive rolled-back receives from the queue."""
        self._context.run("set_rollbacks", {"queue_id": queue_id, "rollbacks": count})

    # -- sizes, of entities that have a largest one ---------------------------------------------

    def sized(self, queue_id: int) -> int | None:
        """Return the entity whose size a queue's messages count to: its topic, itself, or none."""
        record = self.by_id(queue_id)
        if record is not None and record.topic_id is not None:
            record = self.by_id(record.topic_id)
        return None if record is None or record.options.max_size is None else record.queue_id

    def grow(self, queue_id: int, size: int) -> None:
        """Add to the bytes that an entity holds."""
        self._context.run("grow", (size, queue_id))

    def count_bytes(self, keys: Sequence[int], sign: int) -> None:
        """Add messages to the sizes of their entities, or take them away, while they are there."""
        for queue_id in queues_of(keys):
            sized = self.sized(queue_id)
            if sized is not None:
                theirs = self._context.ids(key for key in keys if queue_of(key) == queue_id)
                self._context.run("grow_by", {"queue_id": sized, "sign": sign, "keys": theirs})

    def sum_range(self, first: int, last: int) -> int:
        """Return the bytes of the messages between two keys."""
        sums = self._context.run("sum_range", {"first": first, "last": last}).fetchone()
        return int(sums[0])

    def size(self, queue_id: int) -> int:
        """Return the bytes in an entity with a maximum size; for a topic, in all its subscriptions."""
        (size,) = self._context.run("select_size", (queue_id,)).fetchone()
        return int(size)

    def has_room(self, queue_id: int, size: int, most: int) -> bool:
        """Return whether an entity holds at most `most` bytes after another `size` bytes are sent to it.

        A commit that is planned may find out later, and fail.
        """
        return self.size(queue_id) + size <= most

    def count_size(self, queue_id: int) -> None:
        """Count the bytes in an entity, message by message, when it gets a maximum size."""
        self._context.run("set_size", {"queue_id": queue_id})

    # -- entities that are deleted when nobody uses them ----------------------------------------

    def set_idle_at(self, queue_id: int, idle_at: int | None) -> None:
        """Store when an entity will be deleted if it is not used before."""
        self._context.run("set_idle_at", (idle_at, queue_id))
        if idle_at is None:
            self._context.memory.idle_at.pop(queue_id, None)
        else:
            self._context.memory.idle_at[queue_id] = idle_at

    def purged(self, queue_id: int) -> int:
        """Return how many purged dead letters of a queue can be restored."""
        values = {"first": aside_key(lower_bound(queue_id)), "last": lower_bound(queue_id + 1)}
        (number,) = self._context.run("count_purged", values).fetchone()
        return int(number)

    def idle_at(self, queue_id: int) -> int:
        """Return when an idle entity will be deleted; a past time if it is not known here."""
        return self._context.memory.idle_at.get(queue_id, 0)

    def idle(self, limit: int) -> list[QueueRecord]:
        """Return the entities that have been idle for longer than allowed."""
        queues = (self.by_id(row[0]) for row in self._context.run("select_idle", (self._context.now, limit)))
        return [record for record in queues if record is not None]
