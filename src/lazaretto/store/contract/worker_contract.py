"""Workers in the store: the processes that hold messages, and what is leased to service hosts."""

from __future__ import annotations

from typing import Final, Protocol

from lazaretto.store.contract.records import LeaseRecord, MessageRow, WorkerRecord

#: What follows a worker's name in locks that it takes for clients of a server. No worker has such a name, so
#: its death says nothing of what they hold: those locks run out, unless another server renews them.
FOR_CLIENTS: Final = "/clients"


class StoredWorkers(Protocol):
    """Operations on workers and leases within one commit."""

    def register(self) -> None:
        """Register this process as a worker."""
        ...

    def all(self) -> list[WorkerRecord]:
        """Return all known workers, by name."""
        ...

    def is_dead(self, worker: str) -> bool:
        """Return whether a worker is known to have died while registered."""
        ...

    def dead(self) -> list[str]:
        """Return the dead workers that `bury` has not recorded yet."""
        ...

    def bury(self, worker: str) -> None:
        """Record that a worker has died."""
        ...

    def needs_heartbeat(self) -> bool:
        """Return whether this process is registered as a worker."""
        ...

    def write_heartbeat(self) -> None:
        """Write a heartbeat, if this process is registered as a worker."""
        ...

    def delete(self) -> None:
        """Unregister this process as a worker: it has released its messages, or lets their locks expire."""
        ...

    def locked_by(self, queue_id: int, worker: str, until: int) -> list[MessageRow]:
        """Return a queue's messages that a worker holds under locks that expire by a given time."""
        ...

    def holders(self, limit: int) -> list[tuple[str | None, int]]:
        """Return who holds which messages by their keys, but for sessions: those whose locks end first.

        It looks at so many messages that have a time to come, which others have, too: they have no holder.
        As many more may be locked as ranges.
        """
        ...

    def session_holders(self, limit: int) -> list[tuple[str, int | None, int, str]]:
        """Return who holds sessions: worker, key of a message that was handed out or None, queue, session."""
        ...

    def insert_lease(self, lease: LeaseRecord) -> None:
        """Record a service host's hand-over."""
        ...

    def start_lease(self, token: int) -> None:
        """Record that the handlers of a hand-over were started."""
        ...

    def leases_of(self, worker: str) -> list[LeaseRecord]:
        """Return a worker's unfinished hand-overs."""
        ...

    def leased(self, token: int) -> list[int]:
        """Return the keys of a lease's messages; none if there is no such lease."""
        ...

    def delete_lease(self, token: int) -> None:
        """Delete the lease of a hand-over."""
        ...
