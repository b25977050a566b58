"""Sessions in the store: their locks, what holds them, and their state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lazaretto.store.contract.records import (
    HeldSessionRecord,
    MessageRow,
    MessageStanding,
    SessionAddress,
    SessionRecord,
)


class StoredSessions(Protocol):
    """Operations on sessions within one commit."""

    def ids(self, queue_id: int, first: str, limit: int) -> list[str]:
        """Return the first sessions from one on, by name, that have messages, a lock or a state."""
        ...

    def active(self, queue_id: int, first: str, limit: int) -> list[str]:
        """Return the first sessions from one on, by name, that have active messages or a state."""
        ...

    def set_after(self, queue_id: int, after: int, first: str, limit: int) -> list[str]:
        """Return the first sessions from one on, by name, whose state was set after a time."""
        ...

    def next_id(self, queue_id: int, after: str) -> str | None:
        """Return the next session by name that has messages."""
        ...

    def first_receivable(self, queue_id: int, session_id: str) -> int | None:
        """Return the key of a session's first message that no delayed message blocks."""
        ...

    def first_delayed(self, queue_id: int, session_id: str) -> int | None:
        """Return the key of a session's first message that waits for a retry."""
        ...

    def find(self, queue_id: int, session_id: str) -> SessionRecord | None:
        """Return a session's lock and state."""
        ...

    def lock(self, queue_id: int, session_id: str, token: int, until: int, name: str | None = None) -> None:
        """Lock a session. `name`: under which others find the lock."""
        ...

    def renew(self, queue_id: int, session_id: str, until: int) -> None:
        """Renew a session's lock."""
        ...

    def unlock(self, queue_id: int, session_id: str) -> None:
        """Release a session's lock, and delete the session if it has no state."""
        ...

    def hold(self, queue_id: int, session_id: str, key: int, held_by: str) -> None:
        """Hold a session because of messages, of which this key is the first; `held_by` is JSON."""
        ...

    def release(self, keys: Sequence[int]) -> list[HeldSessionRecord]:
        """Release the sessions that messages hold as the first ones; return them as they were held."""
        ...

    def held(self, first: int, last: int, limit: int) -> list[HeldSessionRecord]:
        """Return the sessions held by messages between two keys."""
        ...

    def messages(self, queue_id: int, session_id: str) -> list[MessageStanding]:
        """Return the key and state of each message of a session, in order."""
        ...

    def set_state(self, queue_id: int, session_id: str, state: bytes | None) -> None:
        """Store a session's state."""
        ...

    def locked_messages(self, queue_id: int, session_id: str) -> list[MessageRow]:
        """Return the messages that a session's receiver holds."""
        ...

    def due(self, limit: int) -> list[SessionAddress]:
        """Return the sessions whose lock has expired."""
        ...
