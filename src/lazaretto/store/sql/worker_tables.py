"""Workers and leases in SQL: the part of a transaction for the processes that hold messages."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from lazaretto.model.actors import TakerRecord
from lazaretto.model.keys import lower_bound
from lazaretto.store.records.messages import LOST, LOST_TOGETHER, LeaseRecord, MessageRow, WorkerRecord
from lazaretto.store.runtime.processes import Process, is_gone, this_process
from lazaretto.store.sql.commit_context import Part

#: How long a process that cannot be seen from here may be silent before it counts as dead, in microseconds.
SILENCE = 30_000_000


class WorkerTables(Part):
    """Operations on workers and leases within one commit."""

    def register(self) -> None:
        """Register this process as a worker."""
        if not self._context.memory.registered:
            self._context.run(
                "register_worker",
                {"worker": self._context.worker, "now": self._context.now, **this_process()._asdict()},
            )
            self._context.registers = True

    def all(self) -> list[WorkerRecord]:
        """Return all known workers, by name."""
        return [WorkerRecord(*row) for row in self._context.run("select_workers")]

    def is_dead(self, worker: str) -> bool:
        """Return whether a worker is known to have died while registered."""
        row = self._context.run("select_worker", (worker,)).fetchone()
        if row is None:
            return False
        *process, died = row
        return died is not None or self._is_gone(*process)

    def dead(self) -> list[str]:
        """Return the dead workers that `bury` has not recorded yet."""
        living = self._context.run("select_living_workers").fetchall()
        return [worker for worker, *process in living if self._is_gone(*process)]

    def attended(self) -> frozenset[str]:
        """Return the paths, in lower case, of which processes that are not known to be dead take messages."""
        return frozenset(
            taker.queue.lower()
            for takers, *process in self._context.run("select_takers").fetchall()
            if not self._is_gone(*process)
            for taker in msgspec.json.decode(takers, type=list[TakerRecord])
        )

    def bury(self, worker: str) -> None:
        """Record that a worker has died."""
        self._context.run("bury_worker", {"worker": worker, "now": self._context.now})

    def needs_heartbeat(self) -> bool:
        """Return whether this process is registered as a worker."""
        return self._context.run("select_worker", (self._context.worker,)).fetchone() is not None

    def write_heartbeat(self, takers: Sequence[TakerRecord]) -> None:
        """Write a heartbeat, with who takes messages in this process, and register it as a worker."""
        values = {
            "worker": self._context.worker,
            "now": self._context.now,
            "takers": msgspec.json.encode(takers).decode(),
            **this_process()._asdict(),
        }
        self._context.run("beat", values)

    def delete(self) -> None:
        """Unregister this process as a worker: it has released its messages, or lets their locks expire."""
        self._context.run("delete_worker", (self._context.worker,))

    def _is_gone(self, machine: str, pid: int, born: str, seen: int) -> bool:
        gone = is_gone(Process(machine, pid, born))
        return self._context.now - seen > SILENCE if gone is None else gone

    def locked_by(self, queue_id: int, worker: str, until: int) -> list[MessageRow]:
        """Return a queue's messages that a worker holds under locks that expire by a given time."""
        bounds = {"first": lower_bound(queue_id), "end": lower_bound(queue_id + 1)}
        rows = self._context.run("select_locked_by", {"worker": worker, "until": until, **bounds})
        return [MessageRow.of(row) for row in rows]

    def holders(self, limit: int) -> list[tuple[str | None, int]]:
        """Return who holds which messages by their keys, but for sessions: those whose locks end first.

        It looks at so many messages that have a time to come, which others have, too: they have no holder.
        As many more may be locked as ranges.
        """
        bounds = {"now": self._context.now, "limit": limit}
        return [(worker, key) for worker, key in self._context.run("select_lock_holders", bounds)]

    def session_holders(self, limit: int) -> list[tuple[str, int | None, int, str]]:
        """Return who holds sessions: worker, key of a message that was handed out or None, queue, session."""
        bounds = {"now": self._context.now, "limit": limit}
        rows = self._context.run("select_session_holders", bounds)
        return [(worker, key, queue_id, session) for worker, key, queue_id, session in rows]

    def note_lost(self, keys: Sequence[int], *, together: bool) -> None:
        """Record in locks on messages that the client that holds them is lost, maybe together with others."""
        holder = f"{self._context.identity.holder}{LOST_TOGETHER if together else LOST}"
        values = {"keys": self._context.ids(keys), "holder": holder}
        self._context.run("note_lost", values)

    def insert_lease(self, lease: LeaseRecord) -> None:
        """Record a service host's hand-over."""
        self._context.run(
            "insert_lease", {**msgspec.structs.asdict(lease), "keys": json.dumps(list(lease.keys))}
        )

    def start_lease(self, token: int) -> None:
        """Record that the handlers of a hand-over were started."""
        self._context.run("start_lease", (token,))

    def leases_of(self, worker: str) -> list[LeaseRecord]:
        """Return a worker's unfinished hand-overs."""
        rows = self._context.run("select_leases", (worker,))
        return [
            LeaseRecord(token, worker, queue_id, session_id, json.loads(keys), bool(started))
            for token, worker, queue_id, session_id, keys, started in rows
        ]

    def leased(self, token: int) -> list[int]:
        """Return the keys of a lease's messages; none if there is no such lease."""
        row = self._context.run("select_leased", (token,)).fetchone()
        return [] if row is None else list(json.loads(row[0]))

    def delete_lease(self, token: int) -> None:
        """Delete the lease of a hand-over."""
        self._context.run("delete_lease", (token,))
