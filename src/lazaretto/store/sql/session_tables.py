"""Sessions in SQL: the part of a transaction for their locks, what holds them, and their state."""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.model.keys import lower_bound
from lazaretto.store.records.messages import (
    HeldSessionRecord,
    MessageRow,
    MessageStanding,
    SessionAddress,
    SessionRecord,
)
from lazaretto.store.sql.commit_context import Part


class SessionTables(Part):
    """Operations on sessions within one commit."""

    def ids(self, queue_id: int, first: str, limit: int) -> list[str]:
        """Return the first sessions from one on, by name, that have messages, a lock or a state."""
        values = {"queue_id": queue_id, "first": first, "limit": limit}
        return [name for (name,) in self._context.run("select_sessions", values)]

    def active(self, queue_id: int, first: str, limit: int) -> list[str]:
        """Return the first sessions from one on, by name, that have active messages or a state."""
        values = {"queue_id": queue_id, "first": first, "limit": limit}
        return [name for (name,) in self._context.run("select_active_sessions", values)]

    def set_after(self, queue_id: int, after: int, first: str, limit: int) -> list[str]:
        """Return the first sessions from one on, by name, whose state was set after a time."""
        values = {"queue_id": queue_id, "after": after, "first": first, "limit": limit}
        return [name for (name,) in self._context.run("select_sessions_set", values)]

    def next_id(self, queue_id: int, after: str | None = None) -> str | None:
        """Return the next session by name that has messages. `after`: behind this one; None: the first."""
        values: dict[str, object] = {"queue_id": queue_id}
        if after is None:
            row = self._context.run("first_session_id", values).fetchone()
        else:
            row = self._context.run("next_session_id", {**values, "after": after}).fetchone()
        return row[0] if row else None

    def first_receivable(self, queue_id: int, session_id: str) -> int | None:
        """Return the key of a session's first message that no delayed message blocks."""
        (first,) = self._context.run(
            "first_receivable_key", (queue_id, session_id, self._context.now)
        ).fetchone()
        delayed = self.first_delayed(queue_id, session_id)
        return None if first is None or (delayed is not None and delayed < first) else first

    def first_delayed(self, queue_id: int, session_id: str) -> int | None:
        """Return the key of a session's first message that waits for a retry."""
        (key,) = self._context.run("first_delayed_key", (queue_id, session_id)).fetchone()
        return None if key is None else int(key)

    def waits(self, queue_id: int, session_id: str) -> bool:
        """Return whether a session has messages in its turn, or is held: what comes now waits behind them."""
        (waits,) = self._context.run(
            "select_session_waits", {"queue_id": queue_id, "session_id": session_id}
        ).fetchone()
        return bool(waits)

    def find(self, queue_id: int, session_id: str) -> SessionRecord | None:
        """Return a session's lock and state."""
        row = self._context.run("select_session", (queue_id, session_id)).fetchone()
        return SessionRecord(*row) if row else None

    def lock(self, queue_id: int, session_id: str, token: int, until: int, name: str | None = None) -> None:
        """Lock a session. `name`: under which others find the lock."""
        values = {
            "queue_id": queue_id,
            "session_id": session_id,
            "token": token,
            "until": until,
            "worker": self._context.identity.holder,
            "name": name,
        }
        self._context.run("lock_session", values)

    def renew(self, queue_id: int, session_id: str, until: int) -> None:
        """Renew a session's lock."""
        self._context.run("renew_session", {"queue_id": queue_id, "session_id": session_id, "until": until})

    def unlock(self, queue_id: int, session_id: str) -> None:
        """Release a session's lock, and delete the session if it has no state."""
        values = {"queue_id": queue_id, "session_id": session_id}
        self._context.run("unlock_session", values)
        self._context.run("delete_idle_session", values)
        self._context.wake(lower_bound(queue_id))

    def hold(self, queue_id: int, session_id: str, key: int, held_by: str) -> None:
        """Hold a session because of messages, of which this key is the first; `held_by` is JSON."""
        values = {"queue_id": queue_id, "session_id": session_id, "key": key, "held_by": held_by}
        self._context.run("hold_session", values)

    def release(self, keys: Sequence[int]) -> list[HeldSessionRecord]:
        """Release the sessions that messages hold as the first ones; return them as they were held."""
        released = self._held_by(keys)
        if released:
            self._context.run("release_sessions", (self._context.ids(keys),))
        for session in released:
            values = {"queue_id": session.queue_id, "session_id": session.session_id}
            self._context.run("delete_idle_session", values)
            self._context.wake(lower_bound(session.queue_id))
        return released

    def _held_by(self, keys: Sequence[int]) -> list[HeldSessionRecord]:
        rows = self._context.run("select_sessions_held_by", (self._context.ids(keys),)).fetchall()
        return [HeldSessionRecord(*row) for row in rows]

    def held(self, first: int, last: int, limit: int) -> list[HeldSessionRecord]:
        """Return the sessions held by messages between two keys."""
        values = {"first": first, "last": last, "limit": limit}
        return [HeldSessionRecord(*row) for row in self._context.run("select_held_sessions", values)]

    def messages(self, queue_id: int, session_id: str) -> list[MessageStanding]:
        """Return the key and state of each message of a session, in order."""
        rows = self._context.run("select_session_keys", (queue_id, session_id))
        return [MessageStanding(*row) for row in rows]

    def set_state(self, queue_id: int, session_id: str, state: bytes | None) -> None:
        """Store a session's state."""
        now = self._context.now
        values = {"queue_id": queue_id, "session_id": session_id, "state": state, "now": now}
        self._context.run("set_session_state", values)
        if state is None:
            self._context.run("delete_idle_session", {"queue_id": queue_id, "session_id": session_id})

    def locked_messages(self, queue_id: int, session_id: str) -> list[MessageRow]:
        """Return the messages that a session's receiver holds."""
        rows = self._context.run("select_session_locked", (queue_id, session_id)).fetchall()
        return [MessageRow.of(row) for row in rows]

    def due(self, limit: int) -> list[SessionAddress]:
        """Return the sessions whose lock has expired."""
        rows = self._context.run("select_due_sessions", {**self._context.by_now(), "limit": limit})
        return [SessionAddress(queue_id, session_id) for queue_id, session_id, _token in rows]
