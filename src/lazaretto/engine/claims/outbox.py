"""The outbox: sends the messages that a writer's tasks have prepared in one commit, each batch once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from lazaretto.engine.claims.consumers import ClaimOperation
from lazaretto.engine.messages.send import Send, check_send
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

    The batch numbers of a writer increase. Without a writer, this is the only batch.
    """

    path: EntityPath
    stages: Sequence[str]
    writer: str | None = None
    batch: int = 0

    def run(self, tx: Transaction) -> int:
        sent = 0
        if self.writer is None or tx.claims.last_batch(self.writer) < self.batch:
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
