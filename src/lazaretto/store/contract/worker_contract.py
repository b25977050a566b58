"""Workers in the store: the processes that hold messages, and what is leased to service hosts."""

from __future__ import annotations

from typing import Protocol

from lazaretto.store.contract.records import LeaseRecord, MessageRow, WorkerRecord


class StoredWorkers(Protocol):
    """What an operation may do with workers and leases within one commit."""

    def register(self) -> None:
        """Make sure that this process is known as one that holds messages."""
        ...

    def all(self) -> list[WorkerRecord]:
        """Return all workers that are known, by name."""
        ...

    def is_dead(self, worker: str) -> bool:
        """Return whether a worker is known to have ended without giving up what it held."""
        ...

    def dead(self) -> list[str]:
        """Return the workers that have died and were not buried yet."""
        ...

    def bury(self, worker: str) -> None:
        """Note that a worker has died."""
        ...

    def needs_heartbeat(self) -> bool:
        """Return whether this process is known as a worker."""
        ...

    def write_heartbeat(self) -> None:
        """Note that this process lives, if it is known as a worker."""
        ...

    def delete(self) -> None:
        """Forget this process as a worker: it has given up what it held, or lets it run out."""
        ...

    def locked_by(self, queue_id: int, worker: str, until: int) -> list[MessageRow]:
        """Return a queue's messages that a worker holds under locks that run out until then."""
        ...

    def insert_lease(self, lease: LeaseRecord) -> None:
        """Note what a service host was handed."""
        ...

    def start_lease(self, token: int) -> None:
        """Note that the handlers of a hand-over are started."""
        ...

    def leases_of(self, worker: str) -> list[LeaseRecord]:
        """Return what a worker was handed and has not finished with."""
        ...

    def delete_lease(self, token: int) -> None:
        """Forget a hand-over."""
        ...
