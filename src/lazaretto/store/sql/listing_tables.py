"""Listings in SQL: pages of dead letters, and how queues stand at a glance."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE, Subqueue
from lazaretto.model.keys import SEQUENCE_BITS, SUBQUEUE_BITS, lower_bound, queue_of
from lazaretto.store.records.messages import CLIENTS, QueueRecord
from lazaretto.store.records.overview import NO_DEAD, Dead, Position, Preview, Waiting
from lazaretto.store.records.repairs import DeadLetterCriteria, DeadLetterRecord
from lazaretto.store.sql.commit_context import CommitContext, Part
from lazaretto.store.sql.history_tables import HistoryTables
from lazaretto.store.sql.rows import pattern_of, queue_record

#: Up to so many messages are counted; more are an estimate.
_FEW = 100
#: The latest failures that are looked at.
_FAILURES = 5_000


class ListingTables(Part):
    """Reads of listings within one transaction."""

    def __init__(self, context: CommitContext, history: HistoryTables) -> None:
        super().__init__(context)
        self._history = history

    def by_number(
        self, criteria: DeadLetterCriteria, after: Position, before: Position, limit: int, *, down: bool
    ) -> list[DeadLetterRecord]:
        """Return waiting dead letters between two positions, of (key, key), by number."""
        values = {
            **self._history.criteria_values(criteria, limit),
            "after": _last_of(after) | criteria.subqueue << SEQUENCE_BITS,
            "before": before[0] | criteria.subqueue << SEQUENCE_BITS,
        }
        return self._read("select_letters_down" if down else "select_letters_up", values)

    def by_time(
        self, criteria: DeadLetterCriteria, after: Position, before: Position, limit: int, *, down: bool
    ) -> list[DeadLetterRecord]:
        """Return waiting dead letters between two positions, of (time, key), by time."""
        values = {
            **self._history.criteria_values(criteria, limit),
            "queue_id": queue_of(criteria.first),
            "after_time": after[0],
            "after_key": after[1],
            "before_time": before[0],
            "before_key": before[1],
        }
        return self._read("select_times_down" if down else "select_times_up", values)

    def alike(
        self, criteria: DeadLetterCriteria, after: Position, before: Position, limit: int, *, down: bool
    ) -> list[DeadLetterRecord]:
        """Return waiting dead letters with the criteria's fingerprints alone, by number."""
        values = {
            "after": _last_of(after),
            "before": before[0],
            "limit": limit,
            "subqueue": criteria.subqueue,
        }
        name = "select_like_down" if down else "select_like_up"
        letters: list[DeadLetterRecord] = []
        for fingerprint in criteria.fingerprints or ():
            letters += self._read(name, {**values, "fingerprint": fingerprint})
        pick = heapq.nlargest if down else heapq.nsmallest
        return pick(limit, letters, key=lambda record: record.key)

    def ends_by_number(self, criteria: DeadLetterCriteria) -> tuple[int, int] | None:
        """Return the keys of the first and the last waiting dead letter of a subqueue."""
        bits = criteria.subqueue << SEQUENCE_BITS
        values = {"after": criteria.first | bits, "before": (criteria.last | bits) + 1}
        first, last = self._context.run("select_letter_ends", values).fetchone()
        return None if first is None else (first & ~bits, last & ~bits)

    def ends_by_time(self, criteria: DeadLetterCriteria) -> tuple[int, int] | None:
        """Return when the first and the last waiting dead letter of a subqueue came."""
        values = {"queue_id": queue_of(criteria.first), "subqueue": criteria.subqueue}
        first, last = self._context.run("select_time_ends", values).fetchone()
        return None if first is None else (first, last)

    def with_id(self, criteria: DeadLetterCriteria, message_id: str, limit: int) -> list[int]:
        """Return the keys of waiting dead letters with a message id."""
        values = {
            "message_id": message_id,
            "first": criteria.first,
            "last": criteria.last,
            "subqueue": criteria.subqueue,
            "limit": limit,
        }
        return [key for (key,) in self._context.run("select_with_id", values)]

    def previews(self, keys: Sequence[int], longest: int) -> dict[int, Preview]:
        """Return how messages begin, by key."""
        rows = self._context.run("select_previews", {"keys": self._context.ids(keys), "longest": longest})
        return {key: Preview(size, bytes(start or b"")) for key, size, start in rows}

    def _read(self, name: str, values: dict[str, Any]) -> list[DeadLetterRecord]:
        return [DeadLetterRecord(*row) for row in self._context.run(name, values)]


def _last_of(position: Position) -> int:
    """Return the last key that is not behind a position by number."""
    key, at = position
    return key if at else key - 1


class OverviewTables(Part):
    """Reads of how queues stand, within one transaction."""

    def held_sessions(self) -> dict[int, int]:
        """Return how many sessions are held back, by queue."""
        return dict(self._context.run("sum_held_sessions").fetchall())

    def open_claims(self) -> int:
        """Return how many claims are open."""
        (count,) = self._context.run("count_open_claims").fetchone()
        return int(count)

    def dead_letters(self) -> dict[int, Dead]:
        """Return what dead letters wait, by queue, those in transfer too."""
        by_queue: dict[int, Dead] = {}
        for place, letters, since, fingerprints in self._context.run("sum_dead_letters"):
            queue_id = place >> SUBQUEUE_BITS
            before, earliest, kinds = by_queue.get(queue_id, NO_DEAD)
            earliest = since if earliest is None else min(since, earliest)
            by_queue[queue_id] = Dead(before + int(letters), earliest, kinds + fingerprints)
        return by_queue

    def concerned(self, queue_ids: Sequence[int]) -> list[QueueRecord]:
        """Return queues that are halted, disabled or have a breaker, and the given ones, but no topics."""
        rows = self._context.run("select_concerned", {"ids": self._context.ids(queue_ids)})
        return [queue_record(row) for row in rows]

    def count(self, part: str) -> int:
        """Return how many queues and subscriptions have a text in their path, in lower case."""
        (count,) = self._context.run("count_holders", {"part": pattern_of(part)}).fetchone()
        return int(count)

    def holders(self, part: str, limit: int) -> list[QueueRecord]:
        """Return queues and subscriptions by path, those with a text in it, in lower case."""
        rows = self._context.run("select_holders", {"part": pattern_of(part), "limit": limit})
        return [queue_record(row) for row in rows]

    def waiting(self, queues: Sequence[QueueRecord]) -> dict[int, Waiting]:
        """Return how many messages stand in queues."""
        plain = [queue.queue_id for queue in queues if queue.partitions == 1]
        values = {"ids": self._context.ids(plain), "few": _FEW + 1}
        rows = self._context.run("select_waiting", values).fetchall()
        parted = [queue for queue in queues if queue.partitions > 1]
        if parted:
            values["ids"] = self._context.ids([queue.queue_id for queue in parted])
            values["partitions"] = max(queue.partitions for queue in parted)
            rows += self._context.run("select_waiting_in_partitions", values).fetchall()
        by_queue: dict[int, Waiting] = {}
        for queue_id, first, last, few, oldest in rows:
            before = by_queue.get(queue_id, Waiting())
            by_queue[queue_id] = Waiting(
                before.messages + (few if few <= _FEW else last - first + 1),
                before.exact and few <= _FEW,
                min((time for time in (before.oldest, oldest) if time is not None), default=None),
            )
        return by_queue

    def unattended(self, part: str, minute: int, before: int) -> dict[int, int]:
        """Return since when messages wait, by queue, where that is before a time and nobody takes any.

        `minute`: nobody has taken any since this one.
        """
        values = {
            "part": pattern_of(part), "few": _FEW, "minute": minute, "before": before,
            "now": self._context.now, "system": SYSTEM_DEAD_LETTER_QUEUE,
        }  # fmt: skip
        return dict(self._context.run("select_unattended", values).fetchall())

    def client_failures(self, since: int) -> dict[int, tuple[int, int, int]]:
        """Return how many messages failed at clients since a time, by queue.

        Of each: how many, how many by locks that ran out, and when the first did.
        """
        values = {"since": since, "clients": CLIENTS, "most": _FAILURES}
        rows = self._context.run("sum_client_failures", values)
        return {queue_id: (int(messages), int(expired), first) for queue_id, messages, expired, first in rows}

    def died(self, queue_ids: Sequence[int], hour: int) -> dict[tuple[int, int], int]:
        """Return how many dead letters came, by queue and hour since 1970, from one on."""
        places = [
            lower_bound(queue_id, part) >> SEQUENCE_BITS
            for queue_id in queue_ids
            for part in (Subqueue.DEAD_LETTER, Subqueue.TRANSFER_DEAD_LETTER)
        ]
        values = {"places": self._context.ids(places), "hour": hour}
        by_kind: dict[tuple[int, int], int] = {}
        for place, at, letters in self._context.run("sum_hours", values):
            key = place >> SUBQUEUE_BITS, at
            by_kind[key] = by_kind.get(key, 0) + int(letters)
        return by_kind
