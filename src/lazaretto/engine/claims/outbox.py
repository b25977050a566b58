"""The outbox: sends the messages that a writer's tasks have prepared in one commit, each batch once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from lazaretto.engine.claims.consumers import ClaimOperation
from lazaretto.engine.entities.queues import refuse_topic, require_queue
from lazaretto.engine.log import note
from lazaretto.engine.messages.send import Send, check_send
from lazaretto.engine.routing.deliver import dead_letter
from lazaretto.errors import NotAllowed
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


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[NewMessage]).decode
_decode_letters = msgspec.msgpack.Decoder(list[NewLetter]).decode


@dataclasses.dataclass(slots=True)
class StageMessages(ClaimOperation[None]):
    """Store prepared messages under a name until they are sent. Raises an error if they cannot be sent."""

    stage: str
    messages: Sequence[NewMessage]

    durable = False

    def run(self, tx: Transaction) -> None:
        check_send(tx, self.path, self.messages)
        tx.claims.insert_outbox(self.stage, _encode(list(self.messages)))


@dataclasses.dataclass(slots=True)
class StageLetters(ClaimOperation[None]):
    """Store dead letters under a name until its messages are sent. Raises NotAllowed: a topic has none."""

    stage: str
    letters: Sequence[NewLetter]

    durable = False

    def run(self, tx: Transaction) -> None:
        check_letters(require_queue(tx, self.path))
        tx.claims.insert_outbox(_letters(self.stage), _encode(list(self.letters)))


def _letters(stage: str) -> str:
    """Return the name under which the dead letters of a stage stand."""
    return f"{stage}/letters"


@dataclasses.dataclass(slots=True)
class SendStaged(ClaimOperation[int]):
    """Send a writer's batch, unless it was sent before; return the number of messages.

    The batch numbers of a writer increase, and it repeats no batch but its last one. Without a writer, this
    is the only batch. Raises NotAllowed: the writer has sent later batches.
    """

    stages: Sequence[str]
    writer: str | None = None
    batch: int = 0

    def run(self, tx: Transaction) -> int:
        sent = 0
        last = -1 if self.writer is None else tx.claims.last_batch(self.writer)
        if last > self.batch:
            # A batch of the same number was sent. Whether this one has the same messages, nobody knows.
            raise NotAllowed(
                f"expected micro-batch {last} again, or a later one, of the query that writes to "
                f"{str(self.path)!r}, got {self.batch}: its checkpoint is older than the store, such as an "
                "old copy, or two queries use it; nothing was sent. Give the query another checkpoint "
                "folder, and have its source begin behind what it has sent"
            )
        if self.writer is None or last < self.batch:
            for stage in self.stages:
                for messages in map(_decode, tx.claims.outbox(stage)):
                    sent += len(Send(self.path, messages).run(tx))
            self._set_aside(tx)
            if self.writer is not None:
                tx.claims.save_writer(self.writer, self.batch)
        for stage in self.stages:
            tx.claims.delete_outbox(stage)
            tx.claims.delete_outbox(_letters(stage))
        return sent

    def _set_aside(self, tx: Transaction) -> None:
        """Make the dead letters of the batch."""
        letters = [
            letter
            for stage in self.stages
            for some in map(_decode_letters, tx.claims.outbox(_letters(stage)))
            for letter in some
        ]
        if letters:
            queue = require_queue(tx, self.path)
            for letter in letters:
                insert_letter(tx, queue, letter)
            note(tx, "rows_set_aside", queue, rows=len(letters), batch=self.batch)


@dataclasses.dataclass(slots=True)
class ForgetStaged(ClaimOperation[None]):
    """Delete the messages that tasks have prepared for a queue."""

    stages: Sequence[str]

    durable = False

    def run(self, tx: Transaction) -> None:
        for stage in self.stages:
            tx.claims.delete_outbox(stage)
            tx.claims.delete_outbox(_letters(stage))


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
