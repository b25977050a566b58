"""Sequence numbers in SQL: the part of a transaction that gives each message of a queue its number."""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.errors import StoreError
from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import LAST_SEQUENCE, lower_bound, queue_of, sequence_of, upper_bound
from lazaretto.store.sql.commit_context import Part

_PLACES = (Subqueue.MAIN, Subqueue.DEAD_LETTER, Subqueue.TRANSFER_DEAD_LETTER)


class SequenceNumbers(Part):
    """What a transaction does with sequence numbers."""

    def _last(self, queue_id: int) -> int:
        known = self._context.memory.last_sequences
        last = known.get(queue_id)
        if last is None:
            row = self._context.run("select_high_water", (queue_id,)).fetchone()
            last = row[0] if row else 0
            for place in _PLACES:
                # What is below was seen before; many that are gone may stand there.
                bounds = (lower_bound(queue_id, place) + last, upper_bound(queue_id, place))
                row = self._context.run("select_last_key", bounds).fetchone()
                if row:
                    last = max(last, sequence_of(row[0]))
            known[queue_id] = last
        return last

    def take_key(self, queue_id: int, count: int = 1) -> int:
        last = self._last(queue_id)
        if last + count > LAST_SEQUENCE:
            raise StoreError(f"the queue has used all of its {LAST_SEQUENCE} sequence numbers")
        self._context.memory.last_sequences[queue_id] = last + count
        return lower_bound(queue_id) + last + 1

    def keep(self, key: int) -> None:
        self._set_high_water(queue_of(key), sequence_of(key))

    def keep_highest(self, keys: Sequence[int]) -> None:
        """Keep a queue's highest sequence number before the last message that shows it goes."""
        for queue_id in set(map(queue_of, keys)):
            number = max(sequence_of(key) for key in keys if queue_of(key) == queue_id)
            if number >= self._last(queue_id):
                self._set_high_water(queue_id, number)

    def _set_high_water(self, queue_id: int, number: int) -> None:
        self._context.run("set_high_water", {"queue_id": queue_id, "sequence_number": number})
