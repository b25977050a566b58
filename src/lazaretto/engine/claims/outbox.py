"""The outbox: sends the messages that a writer's tasks have prepared in one commit, each batch once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from lazaretto.engine.claims.consumers import ClaimOperation
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.log import note
from lazaretto.engine.messages.send import Send, check_send
from lazaretto.engine.outcome.new_letters import NewLetter, check_letters, insert_letter
from lazaretto.errors import NotAllowed
from lazaretto.store.records.messages import NewMessage
from lazaretto.store.sql.transaction import Transaction

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
