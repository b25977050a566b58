"""Dead workers: finds out which of their messages is to blame, without guessing.

If a worker dies while it holds a single message, the death counts as an attempt at that message. If it held
several, all of them become suspects: no attempt counts, and each is delivered alone from then on. A suspect
whose attempt ends in any other way is cleared. A suspect that kills another worker is to blame, and every
death it was involved in counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from lazaretto.engine.log import note
from lazaretto.engine.outcome.attempts import end_attempt, note_rollback, put_back, record_attempt
from lazaretto.engine.outcome.dispositions import in_unit
from lazaretto.engine.outcome.verdicts import fail
from lazaretto.model.actors import TakerRecord
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import WORKER_CRASHED, Failure
from lazaretto.model.keys import queue_of, sequence_of
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Outcome, charge
from lazaretto.store.records.messages import LOCKED, LOST_TOGETHER, LeaseRecord, MessageRow, QueueRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: The name of those whose connection was lost, in events and errors.
_CLIENT = "a client"
#: How much a message is suspected that was lost twice, the second time maybe for another one.
_SUSPECTED_AGAIN = 2


def blame(
    tx: Transaction,
    worker: str,
    rows: Sequence[MessageRow],
    *,
    alone: bool,
    failure: Failure | None = None,
) -> None:
    """End the attempts of messages that a worker was processing when it died.

    `failure`: what the only message ended with, where more is known than that its worker is gone.
    """
    by_queue: dict[int, list[MessageRow]] = {}
    for row in rows:
        by_queue.setdefault(queue_of(row.key), []).append(row)
    for queue_id, group in by_queue.items():
        queue = tx.queues.by_id(queue_id)
        if queue is None:
            # The queue was deleted; its messages are removed in chunks.
            continue
        if alone or (len(by_queue) == 1 and _are_one_unit(queue, group)):
            for row in group[1:]:
                record_attempt(tx, row, Outcome.RELEASED)
                put_back(tx, msgspec.structs.replace(row, suspect=1))
            _condemn(tx, queue, group[0], worker, failure)
            continue
        text = f"{worker} died while it held {len(rows)} message{'' if len(rows) == 1 else 's'}"
        for row in group:
            record_attempt(tx, row, Outcome.LOST, Failure(WORKER_CRASHED, text))
            put_back(tx, msgspec.structs.replace(row, suspect=max(row.suspect, 1) + 1))
        note(tx, "suspects_held", queue, worker=worker, messages=len(group))


def blame_client(
    tx: Transaction, queue: QueueRecord, rows: Sequence[MessageRow], *, together: bool = False
) -> None:
    """End the attempts of messages that a client was working on when its connection was lost.

    The connection says little of its process, so the first loss charges nobody. `together`: whether other
    connections were lost with it, as locks on messages say too. Then it takes one more loss to charge a
    message, lest it pays for what others held.
    """
    # A suspect was delivered to a connection that held nothing else.
    suspects = [] if _are_one_unit(queue, rows) else [row for row in rows if _is_killer(row, together)]
    for row in suspects:
        blame(tx, _CLIENT, [row], alone=True)
    others = [row for row in rows if row not in suspects]
    if others:
        blame(tx, _CLIENT, others, alone=False)


def _is_killer(row: MessageRow, together: bool) -> bool:
    """Return whether the loss of a client that held a message alone is charged to it."""
    together = together or (row.locked_by or "").endswith(LOST_TOGETHER)
    return row.suspect > _SUSPECTED_AGAIN if together else row.suspect > 0


def _are_one_unit(queue: QueueRecord, rows: Sequence[MessageRow]) -> bool:
    """Return whether these messages are one session that is one unit."""
    return all(in_unit(queue, row) for row in rows) and len({row.session_id for row in rows}) == 1


def _condemn(
    tx: Transaction, queue: QueueRecord, row: MessageRow, worker: str, failure: Failure | None
) -> None:
    """Count a worker's death, and earlier ones, against the only message that it held."""
    counters, earlier = row.counters, max(row.suspect - 1, 0)
    for _ in range(earlier):
        counters = charge(counters, Outcome.LOST)
    row = msgspec.structs.replace(row.charged(counters), suspect=1)
    note(tx, "killer_found", queue, sequence_of(row.key), worker=worker, deaths=earlier + 1)
    crashed = Failure(WORKER_CRASHED, f"{worker} died while it held this message alone")
    fail(tx, queue, row, Outcome.LOST, failure or crashed)


def bury(tx: Transaction, worker: str) -> set[int]:
    """Release or blame the messages of a dead service host's leases; return their keys.

    Its other locks expire.
    """
    leases = tx.workers.leases_of(worker)
    started = [row for lease in leases if lease.started for row in _held(tx, lease)]
    taken = [row for lease in leases if not lease.started for row in _held(tx, lease)]
    for row in taken:
        record_attempt(tx, row, Outcome.RELEASED)
        put_back(tx, row)
    if started:
        blame(tx, worker, started, alone=len(started) == 1)
        for queue_id in {queue_of(row.key) for row in started}:
            queue = tx.queues.by_id(queue_id)
            if queue is not None:
                note_rollback(tx, queue)
    for lease in leases:
        if lease.session_id is not None:
            session = tx.sessions.find(lease.queue_id, lease.session_id)
            if session is not None and session.lock_token == lease.token:
                tx.sessions.unlock(lease.queue_id, lease.session_id)
        tx.workers.delete_lease(lease.token)
    tx.workers.bury(worker)
    return {row.key for row in (*started, *taken)}


def _held(tx: Transaction, lease: LeaseRecord) -> list[MessageRow]:
    rows = (tx.row(key) for key in lease.keys)
    return [row for row in rows if row and row.state == LOCKED and row.lock_token == lease.token]


class BuryWorkers(Operation[None]):
    """Recover the hand-overs of dead service hosts."""

    __slots__ = ()

    def run(self, tx: Transaction) -> None:
        for worker in tx.workers.dead():
            bury(tx, worker)


@dataclasses.dataclass(slots=True)
class Heartbeat(Operation[None]):
    """Write a heartbeat, with who takes messages in this process."""

    takers: Sequence[TakerRecord]

    durable = False
    foreseeable = True

    def run(self, tx: Transaction) -> None:
        tx.workers.write_heartbeat(self.takers)


class Leave(Operation[None]):
    """Release this process's hand-overs as a service host, and unregister it as a worker."""

    __slots__ = ()

    durable = False

    def run(self, tx: Transaction) -> None:
        for lease in tx.workers.leases_of(tx.worker):
            for row in _held(tx, lease):
                record_attempt(tx, row, Outcome.RELEASED)
                put_back(tx, row)
            tx.workers.delete_lease(lease.token)
        tx.workers.delete()


@dataclasses.dataclass(slots=True)
class LoseClient(Operation[None]):
    """End what a client held of a queue, or of a session, when its connection was lost.

    `working`: what it worked on, as far as its settlements show. Their locks run out first, because it may
    live; that of a session has ended. `waiting`: what it had not begun; it is released. `together`: whether
    other connections were lost with it, so that the message that it held alone need not have killed it.
    """

    path: EntityPath
    working: Sequence[ReceivedMessage]
    waiting: Sequence[ReceivedMessage]
    together: bool = False

    def run(self, tx: Transaction) -> None:
        queue = tx.queues.by_path(self.path.key)
        if queue is None:
            return
        for row in _rows_of(tx, self.waiting):
            put_back(tx, end_attempt(tx, row, Outcome.RELEASED))
        working = _rows_of(tx, self.working)
        if queue.options.requires_session and working:
            blame_client(tx, queue, working, together=self.together)
        elif working:
            tx.workers.note_lost([row.key for row in working], together=self.together)


def _rows_of(tx: Transaction, messages: Sequence[ReceivedMessage]) -> list[MessageRow]:
    """Return those of some messages that are held under their locks still."""
    by_token: dict[int, list[int]] = {}
    for message in messages:
        if message.lock is not None:
            by_token.setdefault(message.lock.token, []).append(message.key)
    return [row for token, keys in by_token.items() for row in tx.held_rows(keys, token).values()]
