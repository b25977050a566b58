"""The outbox: sends the messages that a writer's tasks have prepared in one commit, each batch once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from lazaretto.engine.claims.consumers import ClaimOperation
from lazaretto.engine.messages.send import Send, check_send
from lazaretto.errors import NotAllowed
from lazaretto.model.entities import EntityPath
from lazaretto.store.contract.records import NewMessage
from lazaretto.store.contract.transaction_contract import Transaction

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[NewMessage]).decode


@dataclasses.dataclass(slots=True)
class StageMessages(ClaimOperation[None]):
    """Store prepared messages under a name until they are sent. Raises an error if they cannot be sent."""

    path: EntityPath
    stage: str
    messages: Sequence[NewMessage]

    durable = False

    def run(self, tx: Transaction) -> None:
        check_send(tx, self.path, self.messages)
        tx.claims.insert_outbox(self.stage, _encode(list(self.messages)))


@dataclasses.dataclass(slots=True)
class SendStaged(ClaimOperation[int]):
    """Send a writer's batch, unless it was sent before; return the number of messages.

    The batch numbers of a writer increase, and it repeats no batch but its last one. Without a writer, this
    is the only batch. Raises NotAllowed: the writer has sent later batches.
    """

    path: EntityPath
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
            if self.writer is not None:
                tx.claims.save_writer(self.writer, self.batch)
        for stage in self.stages:
            tx.claims.delete_outbox(stage)
        return sent


@dataclasses.dataclass(slots=True)
class ForgetStaged(ClaimOperation[None]):
    """Delete the messages that tasks have prepared for a queue."""

    path: EntityPath
    stages: Sequence[str]

    durable = False

    def run(self, tx: Transaction) -> None:
        for stage in self.stages:
            tx.claims.delete_outbox(stage)
