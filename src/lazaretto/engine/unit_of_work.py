"""A unit of work: settles received messages and sends collected ones in one commit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lazaretto.engine.messages.send import Send
from lazaretto.engine.messages.settle import RELEASE, Settle, Settled
from lazaretto.engine.outcome.attempts import note_rollback
from lazaretto.engine.outcome.breakers import breaker_of
from lazaretto.engine.outcome.verdicts import fail
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.failure import Failure
from lazaretto.model.keys import queue_of
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Final, Outcome
from lazaretto.store.records.messages import NewMessage
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction


def perform(tx: Transaction, operation: Operation[Any]) -> None:
    """Do an operation whose answer nobody needs."""
    if not tx.plans or operation.start(tx) is None:
        operation.run(tx)


@dataclasses.dataclass(slots=True)
class CommitWork(Operation[None]):
    """Settle the messages that a transaction received, then run its sends and dialog operations."""

    entries: Sequence[Settled]
    operations: Sequence[Operation[Any]]

    foreseeable = True

    def run(self, tx: Transaction) -> None:
        if self.entries:
            Settle(self.entries).run(tx)
        for operation in self.operations:
            perform(tx, operation)


@dataclasses.dataclass(slots=True)
class RollBackWork(Operation[None]):
    """Count a failed attempt for each message that a transaction still holds, and release its locks."""

    messages: Sequence[ReceivedMessage]
    failure: Failure | None
    releases: Sequence[Operation[Any]] = ()

    foreseeable = True

    def run(self, tx: Transaction) -> None:
        noted = set()
        for message in self.messages:
            lock, row = message.lock, tx.row(message.key)
            queue = tx.queues.by_id(queue_of(message.key))
            if lock is None or row is None or queue is None or not tx.held([message.key], lock.token):
                # Its lock expired, which counted as an attempt.
                continue
            if queue.queue_id not in noted and lock.path.subqueue is Subqueue.MAIN:
                noted.add(queue.queue_id)
                note_rollback(tx, queue)
            fail(tx, queue, row, Outcome.FAILED, self.failure)
        for release in self.releases:
            release.run(tx)


class Finished(NamedTuple):
    """The result of settling a hand-over.

    `finals`: the final verdicts, by message key. `outage`: the fingerprint of failures that did not count,
    because the queue's breaker was open for them.
    """

    finals: list[tuple[int, Final]]
    outage: str | None


@dataclasses.dataclass(slots=True)
class FinishHandover(Operation[Finished]):
    """Settle a host's hand-over, send its handlers' messages, and mark the next one as started.

    `fingerprints`: of failed messages, by key. `token`: of the lease that ends; `started`: of the next lease,
    whose handlers are about to start.
    """

    entries: Sequence[Settled]
    sends: Sequence[tuple[EntityPath, Sequence[NewMessage]]] = ()
    fingerprints: Mapping[int, str] = dataclasses.field(default_factory=dict)
    token: int | None = None
    started: int | None = None

    foreseeable = True

    def run(self, tx: Transaction) -> Finished:
        outage = self._outage(tx) if self.fingerprints else None
        entries = self.entries
        if outage is not None:
            entries = [
                Settled(e.message, RELEASE) if self.fingerprints.get(e.message.key) == outage else e
                for e in entries
            ]
        finals = Settle(entries).run(tx) if entries else []
        for path, messages in self.sends:
            perform(tx, Send(path, messages))
        if self.token is not None:
            tx.workers.delete_lease(self.token)
        if self.started is not None:
            tx.workers.start_lease(self.started)
        return Finished(finals, outage)

    def _outage(self, tx: Transaction) -> str | None:
        """Return the fingerprint of an outage that another hand-over of the queue has found."""
        queue = tx.queues.by_id(queue_of(next(iter(self.fingerprints))))
        state = None if queue is None else breaker_of(queue)
        return None if state is None else state.fingerprint
