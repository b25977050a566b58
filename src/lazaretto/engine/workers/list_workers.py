"""Lists the processes that hold messages, and the hand-overs of service hosts."""

from __future__ import annotations

import dataclasses
from datetime import datetime

from lazaretto.model.clock import to_datetime
from lazaretto.model.keys import sequence_of
from lazaretto.store.contract.transaction_contract import Transaction


@dataclasses.dataclass(frozen=True, slots=True)
class HeldMessages:
    """A service host's hand-over from a queue. `started`: its handlers are running."""

    queue: str
    session_id: str | None
    sequence_numbers: tuple[int, ...]
    started: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Worker:
    """A process that holds messages. `seen`: its last heartbeat. `alive`: not known to be dead."""

    name: str
    machine: str
    pid: int
    seen: datetime
    alive: bool
    holds: tuple[HeldMessages, ...]


def list_workers(tx: Transaction) -> list[Worker]:
    """Return all known workers, by name."""
    found = []
    for record in tx.workers.all():
        holds = []
        for lease in tx.workers.leases_of(record.worker):
            queue = tx.queues.by_id(lease.queue_id)
            if queue is not None:
                numbers = tuple(map(sequence_of, lease.keys))
                holds.append(HeldMessages(queue.path, lease.session_id, numbers, lease.started))
        alive = record.died is None and not tx.workers.is_dead(record.worker)
        seen = to_datetime(record.seen)
        found.append(Worker(record.worker, record.machine, record.pid, seen, alive, tuple(holds)))
    return found
