"""Lists the processes that take messages, with what each holds."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from datetime import datetime

import msgspec

from lazaretto.model.actors import TakerRecord
from lazaretto.model.clock import to_datetime
from lazaretto.model.entities import EntityPath
from lazaretto.model.keys import queue_of, sequence_of, subqueue_of
from lazaretto.store.records.messages import FOR_CLIENTS, WorkerRecord
from lazaretto.store.sql.transaction import Transaction

#: How many messages with a time to come are looked at for those that are locked.
_LOOKED_AT = 10_000
#: The most messages that are told of a process, besides those that it was handed as a service host.
_MOST = 1_000


@dataclasses.dataclass(frozen=True, slots=True)
class HeldMessages:
    """Messages that a process holds of a queue: a hand-over to a service host, or all of its receivers'.

    `queue`: with the subqueue, if it is one. `session_id`: of a session that is locked. `started`: handlers
    are running; always so for receivers.
    """

    queue: str
    session_id: str | None
    sequence_numbers: tuple[int, ...]
    started: bool


@dataclasses.dataclass(frozen=True, slots=True)
class MessageTaker:
    """One that takes messages of a queue: a receiver, a service host, a pipeline, or a client of a server.

    `queue`: with the subqueue, if it is one. `kind`: "receiver", "service host", "pipeline", "AMQP client" or
    "HTTP client". `name`: the program's, the handler's or the pipeline's; a client's as it calls itself, with
    where it is. `since`: when it came. `seen`: when it last did; a client comes with each request, and is
    told of for a minute.
    """

    queue: str
    kind: str
    name: str
    since: datetime
    seen: datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Worker:
    """A process that takes messages. `seen`: its last heartbeat. `alive`: not known to be dead.

    `takers`: who takes messages in it, or through it if it is a server, by queue; also while there are none.
    `complete`: False if it holds more than is told, or may: so many messages wait for a time.
    """

    name: str
    machine: str
    pid: int
    seen: datetime
    alive: bool
    holds: tuple[HeldMessages, ...]
    complete: bool = True
    takers: tuple[MessageTaker, ...] = ()

    @property
    def host_name(self) -> str:
        """The name of its machine, without what tells containers and starts of it apart."""
        return self.machine.partition("/")[0]


#: Messages by the path they lie in and their session.
_Held = dict[tuple[str, str | None], list[int]]


def list_workers(tx: Transaction) -> list[Worker]:
    """Return all known workers, by name; not processes that take nothing, such as servers without clients."""
    by_process, looked_at_all = _held_by_receivers(tx)
    workers = []
    for record in tx.workers.all():
        holds: list[HeldMessages] = []
        handed: set[tuple[str, int | str]] = set()
        for lease in tx.workers.leases_of(record.worker):
            queue = tx.queues.by_id(lease.queue_id)
            if queue is not None:
                numbers = tuple(map(sequence_of, lease.keys))
                holds.append(HeldMessages(queue.path, lease.session_id, numbers, lease.started))
                handed |= {(queue.path, number) for number in numbers}
                if lease.session_id is not None:
                    handed.add((queue.path, lease.session_id))
        own, complete = _without(by_process.get(record.worker, {}), handed)
        alive = record.died is None and not tx.workers.is_dead(record.worker)
        worker = Worker(
            record.worker,
            record.machine,
            record.pid,
            to_datetime(record.seen),
            alive,
            (*holds, *own),
            complete and looked_at_all,
            _takers(record),
        )
        # Those of an older version have not said what they take.
        if worker.takers or worker.holds or not alive or record.takers is None:
            workers.append(worker)
    return workers


def _takers(record: WorkerRecord) -> tuple[MessageTaker, ...]:
    records = msgspec.json.decode(record.takers or "[]", type=list[TakerRecord])
    return tuple(
        MessageTaker(one.queue, one.kind, one.name, to_datetime(one.since), to_datetime(one.seen))
        for one in records
    )


def _without(by_place: _Held, handed: set[tuple[str, int | str]]) -> tuple[list[HeldMessages], bool]:
    """Return what receivers hold beyond what was handed to a service host, and whether that is all of it."""
    messages, room = [], _MOST
    for (path, session_id), keys in sorted(by_place.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        numbers = sorted(n for n in set(map(sequence_of, keys)) if (path, n) not in handed)
        shown = numbers[: max(room, 0)]
        room -= len(numbers)
        if shown or (not numbers and session_id is not None and (path, session_id) not in handed):
            messages.append(HeldMessages(path, session_id, tuple(shown), started=True))
    return messages, room >= 0


def _process_of(holder: str) -> str:
    return holder.partition(FOR_CLIENTS)[0]


def _held_by_receivers(tx: Transaction) -> tuple[dict[str, _Held], bool]:
    """Return what each process has locked, and whether all was looked at."""
    by_process: dict[str, _Held] = defaultdict(lambda: defaultdict(list))
    paths: dict[int, str | None] = {}

    def path_of(queue_id: int) -> str | None:
        if queue_id not in paths:
            queue = tx.queues.by_id(queue_id)
            paths[queue_id] = None if queue is None else queue.path
        return paths[queue_id]

    holders = tx.workers.holders(_LOOKED_AT)
    for worker, key in holders:
        path = path_of(queue_of(key))
        if worker is not None and path is not None:
            by_process[_process_of(worker)][str(EntityPath(path, subqueue_of(key))), None].append(key)
    sessions = tx.workers.session_holders(_LOOKED_AT)
    for worker, message, queue_id, session_id in sessions:
        path = path_of(queue_id)
        if path is not None:
            by_process[_process_of(worker)][path, session_id] += [] if message is None else [message]
    return by_process, max(len(holders), len(sessions)) < _LOOKED_AT
