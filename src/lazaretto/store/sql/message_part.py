"""A part of a transaction that adds messages to queues or takes them away."""

from __future__ import annotations

from lazaretto.store.sql.body_tables import BodyTables
from lazaretto.store.sql.commit_context import CommitContext, Part
from lazaretto.store.sql.queue_tables import QueueTables
from lazaretto.store.sql.sequence_numbers import SequenceNumbers


class MessagePart(Part):
    """A part that also keeps queue sizes, bodies and sequence numbers in step with messages."""

    def __init__(
        self, context: CommitContext, queues: QueueTables, bodies: BodyTables, sequences: SequenceNumbers
    ) -> None:
        super().__init__(context)
        self._queues = queues
        self._bodies = bodies
        self._sequences = sequences
