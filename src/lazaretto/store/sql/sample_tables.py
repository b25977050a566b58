"""Completed messages in SQL that are kept as examples of good ones."""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.model.keys import lower_bound
from lazaretto.model.reservoir import Kept
from lazaretto.store.records.messages import SampleRecord
from lazaretto.store.sql.commit_context import Part


class SampleTables(Part):
    """Operations on kept messages within one commit."""

    def keep(self, keys: Sequence[int], longest: int) -> None:
        """Keep messages that are about to be removed, except those with a body above a limit."""
        context = self._context
        values = {
            "now": context.now, "keys": context.ids(keys), "longest": longest, "worker": context.worker,
        }  # fmt: skip
        context.run("keep_samples", values)

    def put(self, samples: Sequence[SampleRecord]) -> None:
        """Keep messages in the form given, as completed now, by this process if no worker is given."""
        now = self._context.now
        values = [
            v
            for one in samples
            for v in (
                one.key, now, one.message_id, one.enqueued, one.headers, one.body,
                one.worker or self._context.worker,
            )
        ]  # fmt: skip
        if values:
            self._context.insert("insert_samples", values, len(samples))

    def standing(self, queue_id: int) -> list[Kept]:
        """Return the records of a queue's kept messages, without the messages."""
        return [Kept(*row) for row in self._context.run("select_sample_sizes", _bounds(queue_id))]

    def of_queue(self, queue_id: int) -> list[SampleRecord]:
        """Return a queue's kept messages."""
        return [
            SampleRecord(key, message_id, enqueued, headers and bytes(headers), bytes(body), worker, kept)
            for key, message_id, enqueued, headers, body, worker, kept in self._context.run(
                "select_samples", _bounds(queue_id)
            )
        ]

    def remove(self, keys: Sequence[int]) -> None:
        """Remove kept messages."""
        self._context.run("delete_samples", (self._context.ids(keys),))

    def remove_all(self, queue_id: int) -> None:
        """Remove all kept messages of a queue."""
        self._context.run("delete_samples_of", _bounds(queue_id))


def _bounds(queue_id: int) -> tuple[int, int]:
    return lower_bound(queue_id), lower_bound(queue_id + 1)
