"""A unit of work: what was received is settled and what was gathered is sent, in one commit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lazaretto.engine.attempts import note_rollback
from lazaretto.engine.send import Send
from lazaretto.engine.settle import Settle, Settled
from lazaretto.engine.verdicts import fail
from lazaretto.entities import EntityPath, Subqueue
from lazaretto.failure import Failure
from lazaretto.keys import queue_of
from lazaretto.messages import ReceivedMessage
from lazaretto.policy import Final, Outcome
from lazaretto.store.contract import Operation, Transaction
from lazaretto.store.records import NewMessage


@dataclasses.dataclass(slots=True)
class CommitWork(Operation[list[list[int]]]):
    """Settle and send what a transaction has gathered; the answer is the sequence numbers."""

    entries: Sequence[Settled]
    sends: Sequence[tuple[EntityPath, list[NewMessage]]]

    def run(self, tx: Transaction) -> list[list[int]]:
        if self.entries:
            Settle(self.entries).run(tx)
        return [Send(path, messages).run(tx) for path, messages in self.sends]


@dataclasses.dataclass(slots=True)
class RollBackWork(Operation[None]):
    """Charge one failure to each message that a transaction received and still holds."""

    messages: Sequence[ReceivedMessage]
    failure: Failure | None

    def run(self, tx: Transaction) -> None:
        noted = set()
        for message in self.messages:
            lock, row = message.lock, tx.row(message.key)
            queue = tx.queue_by_id(queue_of(message.key))
            if lock is None or row is None or queue is None or not tx.held([message.key], lock.token):
                # Its lock ran out, and it was charged for that.
                continue
            if queue.queue_id not in noted and lock.path.subqueue is Subqueue.MAIN:
                noted.add(queue.queue_id)
                note_rollback(tx, queue)
            fail(tx, queue, row, Outcome.FAILED, self.failure)


@dataclasses.dataclass(slots=True)
class FinishHandover(Operation[list[tuple[int, Final]]]):
    """Settle a host's hand-over, send what its handlers sent, and start on the next one.

    The answer is the final verdicts: the message's key and what was decided. `token`: of the lease
    that ends with this; `started`: of the next one, whose handlers are about to start.
    """

    entries: Sequence[Settled]
    sends: Sequence[tuple[EntityPath, Sequence[NewMessage]]] = ()
    token: int | None = None
    started: int | None = None

    def run(self, tx: Transaction) -> list[tuple[int, Final]]:
        finals = Settle(self.entries).run(tx) if self.entries else []
        for path, messages in self.sends:
            Send(path, messages).run(tx)
        if self.token is not None:
            tx.delete_lease(self.token)
        if self.started is not None:
            tx.start_lease(self.started)
        return finals
