"""Dead letters of messages that this store never held: rows that others rejected, or that are no messages."""

from __future__ import annotations

import msgspec

from lazaretto.engine.entities.queues import refuse_topic
from lazaretto.engine.routing.deliver import dead_letter
from lazaretto.model.failure import Failure
from lazaretto.model.messages import sent_columns
from lazaretto.model.partitions import chosen_key
from lazaretto.model.policy import Counters, Outcome
from lazaretto.model.site import site_in
from lazaretto.store.records.messages import FRESH, AttemptRecord, MessageRow, NewMessage, QueueRecord
from lazaretto.store.sql.transaction import Transaction


class NewLetter(msgspec.Struct, array_like=True, omit_defaults=True):
    """A message to set aside as it is, and why. No limit of a message holds for it."""

    message: NewMessage
    reason: str
    description: str | None = None
    failure: Failure | None = None
    worker: str | None = None
    outcome: str = Outcome.FAILED.value


def check_letters(queue: QueueRecord) -> None:
    """Raise NotAllowed if an entity has no dead-letter subqueue."""
    refuse_topic(queue, "what cannot be a message is set aside in a queue, which has a dead-letter subqueue")


def insert_letter(tx: Transaction, queue: QueueRecord, letter: NewLetter) -> int:
    """Make a dead letter of a message; return its key in the queue."""
    message, failure = letter.message, letter.failure
    key = tx.sequences.take_key(queue, chosen_key(message.session_id, message.partition_key))
    counters = Counters(deliveries=1, failures=1, delivery_count=1) if failure else Counters()
    row = MessageRow(
        key=key, state=FRESH, due=None, expires=None, enqueued=tx.now,
        message_id=message.message_id or tx.new_message_id(), session_id=None, lock_token=None,
        locked_at=None, locked_by=None, **counters._asdict(), generation=0, deferred=0,
        enqueued_sequence_number=None, resubmitted_from=None, headers=message.headers, body_id=None,
        **sent_columns(message),
    )  # fmt: skip
    tx.insert_row(row, message.body)
    if failure is not None:
        # The stack stands in the history alone.
        attempt = AttemptRecord(
            number=1, started=None, ended=tx.now, worker=letter.worker, outcome=letter.outcome,
            error_type=failure.type, error_message=failure.message, stack=failure.stack,
            site=failure.site or site_in(failure.stack),
        )  # fmt: skip
        tx.history.insert_attempts([(key, attempt)])
    dead_letter(tx, queue, row, letter.reason, letter.description, failure)
    return key
