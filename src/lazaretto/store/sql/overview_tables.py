"""A glance at queues, in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE, Subqueue
from lazaretto.model.keys import SEQUENCE_BITS, SUBQUEUE_BITS, lower_bound
from lazaretto.store.records.messages import CLIENTS, QueueRecord
from lazaretto.store.records.overview import NO_DEAD, Dead, Waiting
from lazaretto.store.sql.commit_context import Part
from lazaretto.store.sql.rows import pattern_of, queue_record

#: Up to so many messages are counted; more are an estimate.
_FEW = 100
#: The latest failures that are looked at.
_FAILURES = 5_000


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
