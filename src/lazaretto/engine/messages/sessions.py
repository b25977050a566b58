"""Sessions: each locked by one receiver, delivered in order, with its own state."""

from __future__ import annotations

import dataclasses

from lazaretto.engine.command import SESSION, OfPath
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.entities.status import refuse_receiving, stop_error
from lazaretto.engine.log import audit
from lazaretto.engine.outcome.session_holds import held_decoder
from lazaretto.engine.timers import catch_up, release_held
from lazaretto.errors import (
    EntityError,
    InvalidMessage,
    MessageTooLarge,
    NotAllowed,
    SessionCannotBeLocked,
    SessionHeld,
    SessionLockLost,
)
from lazaretto.model.checks import shown, text
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.headers import LONGEST_ID
from lazaretto.model.messages import Lock
from lazaretto.model.policy import Outcome
from lazaretto.store.records.messages import AGAIN, Again, QueueRecord, SessionRecord
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: Service Bus's limit for a session's state, in bytes.
MAX_STATE_SIZE = 262_144


def require_session(tx: Transaction, queue: QueueRecord, lock: Lock) -> SessionRecord:
    """Return the session if the lock on it is held. Raises SessionLockLost."""
    assert lock.session_id is not None
    record = tx.sessions.find(queue.queue_id, lock.session_id)
    if record is None or record.lock_token != lock.token or not record.is_locked(tx.now):
        raise SessionLockLost(f"the lock on session {lock.session_id!r} of {queue.path!r} is no longer held")
    return record


def held_error(queue: QueueRecord, session_id: str, held_by: str) -> SessionHeld:
    """Return the error that receiving from a held session raises."""
    hold = held_decoder.decode(held_by)
    return SessionHeld(queue.path, session_id, hold.sequence_number, hold.mode.value, hold.reason, hold.error)


@dataclasses.dataclass(slots=True)
class AcceptSession(Operation[Lock | EntityError | None]):
    """Lock a session by its id, or the next one after `after` that has something to receive.

    None: no session is available. A named session need not have messages.
    """

    path: EntityPath
    session_id: str | None
    after: str | None = None
    #: Under which others find the lock.
    name: str | None = None
    #: What the last run locked, for a caller that does not know whether the commit succeeded.
    locked: Lock | None = None

    foreseeable = True

    def run(self, tx: Transaction) -> Lock | EntityError | Again | None:
        lock = self._accept(tx)
        self.locked = lock if isinstance(lock, Lock) else None
        return lock

    def _accept(self, tx: Transaction) -> Lock | EntityError | Again | None:
        queue = require_queue(tx, self.path)
        if self.path.subqueue is not Subqueue.MAIN or not queue.options.requires_session:
            raise NotAllowed(f"{str(self.path)!r} has no sessions: receive from it without session=…")
        refuse_receiving(queue, Subqueue.MAIN)
        caught_up = catch_up(tx)
        queue = require_queue(tx, self.path)
        stopped = stop_error(queue, Subqueue.MAIN)
        if stopped is not None:
            return stopped
        if self.session_id is None:
            session_id = self._next(tx, queue)
            if session_id is None:
                return None if caught_up else AGAIN
        else:
            session_id = self.session_id
            record = tx.sessions.find(queue.queue_id, session_id)
            if record is not None and record.held_by is not None:
                return held_error(queue, session_id, record.held_by)
            if not _free(tx, queue, session_id):
                raise SessionCannotBeLocked(
                    f"session {session_id!r} of {queue.path!r} is locked by another receiver"
                )
        until = tx.now + round(queue.options.lock_duration * 1_000_000)
        lock = Lock(self.path, tx.random_token(), until, session_id)
        release_held(tx, queue, session_id, Outcome.LOCK_EXPIRED)
        tx.sessions.lock(queue.queue_id, session_id, lock.token, lock.until, self.name)
        return lock

    def _next(self, tx: Transaction, queue: QueueRecord) -> str | None:
        """Search sessions by name, starting after the last one found, so that none starves."""
        start, wrapped = self.after, False
        while True:
            session_id = tx.sessions.next_id(queue.queue_id, start)
            if session_id is None or (wrapped and self.after is not None and session_id > self.after):
                if wrapped or self.after is None:
                    return None
                start, wrapped = None, True
                continue
            if _receivable(tx, queue, session_id) and _free(tx, queue, session_id):
                return session_id
            start = session_id


def _receivable(tx: Transaction, queue: QueueRecord, session_id: str) -> bool:
    """Return whether a session has a receivable message; a unit waits for its retry as a whole."""
    waits = queue.options.whole_sessions and tx.sessions.first_delayed(queue.queue_id, session_id) is not None
    return not waits and tx.sessions.first_receivable(queue.queue_id, session_id) is not None


def _free(tx: Transaction, queue: QueueRecord, session_id: str) -> bool:
    record = tx.sessions.find(queue.queue_id, session_id)
    return record is None or not record.is_locked(tx.now)


def session_locked(tx: Transaction, path: EntityPath, session_id: str, name: str) -> Lock:
    """Return the lock on a session that was taken under a name. Raises SessionLockLost."""
    queue = require_queue(tx, path)
    record = tx.sessions.find(queue.queue_id, session_id)
    if record is None or record.locked_as != name or not record.is_locked(tx.now):
        raise SessionLockLost(f"session {session_id!r} of {queue.path!r} is not locked under this name")
    assert record.lock_token is not None and record.locked_until is not None
    return Lock(path, record.lock_token, record.locked_until, session_id)


@dataclasses.dataclass(slots=True)
class RenewSession(Operation[Lock]):
    """Renew a session's lock for the queue's lock duration from now."""

    path: EntityPath
    lock: Lock

    durable = False
    foreseeable = True

    def run(self, tx: Transaction) -> Lock:
        queue = require_queue(tx, self.path)
        require_session(tx, queue, self.lock)
        assert self.lock.session_id is not None
        until = tx.now + round(queue.options.lock_duration * 1_000_000)
        tx.sessions.renew(queue.queue_id, self.lock.session_id, until)
        return Lock(self.path, self.lock.token, until, self.lock.session_id)


@dataclasses.dataclass(slots=True)
class ReleaseSession(Operation[None]):
    """Release a session; unsettled messages become receivable again, without counting an attempt."""

    path: EntityPath
    lock: Lock

    foreseeable = True

    def run(self, tx: Transaction) -> None:
        queue = tx.queues.by_path(self.path.key)
        if queue is None:
            return
        try:
            require_session(tx, queue, self.lock)
        except SessionLockLost:
            return
        assert self.lock.session_id is not None
        release_held(tx, queue, self.lock.session_id, Outcome.RELEASED)
        tx.sessions.unlock(queue.queue_id, self.lock.session_id)


class FreeSession(OfPath[None], frozen=True, kw_only=True):
    """Take a session's lock from its receiver.

    What it has not settled can be received again.
    """

    action = "free_session"
    former = SESSION
    session_id: str

    def run(self, tx: Transaction, actor: str) -> None:
        # No attempt is counted.
        session = text("session_id", self.session_id, LONGEST_ID, 0)
        queue = require_queue(tx, EntityPath.parse(self.path))
        record = tx.sessions.find(queue.queue_id, session)
        if record is None or not record.is_locked(tx.now):
            raise EntityError(f"session {session!r} of {queue.path!r} is not locked; nothing to release")
        release_held(tx, queue, session, Outcome.RELEASED)
        tx.sessions.unlock(queue.queue_id, session)
        audit(tx, actor, self.action, queue.path, session=session, locked_by=record.locked_by)


@dataclasses.dataclass(slots=True)
class SetSessionState(Operation[None]):
    """Store a session's state; None clears it."""

    path: EntityPath
    lock: Lock
    state: bytes | None

    foreseeable = True

    def run(self, tx: Transaction) -> None:
        if self.state is not None:
            if not isinstance(self.state, bytes):
                raise InvalidMessage(
                    f"expected a session's state to be bytes or None, got {shown(self.state)}"
                )
            if len(self.state) > MAX_STATE_SIZE:
                raise MessageTooLarge(
                    f"expected a session's state of at most {MAX_STATE_SIZE} bytes, got {len(self.state)}"
                )
        queue = require_queue(tx, self.path)
        require_session(tx, queue, self.lock)
        assert self.lock.session_id is not None
        tx.sessions.set_state(queue.queue_id, self.lock.session_id, self.state)


def list_sessions(
    tx: Transaction, path: EntityPath, set_after: int | None, after: str | None, limit: int, *, active: bool
) -> list[str]:
    """Return up to `limit` of a queue's sessions by name: all, active ones, or those set after a time.

    `after`: those behind this one.
    """
    queue_id = require_queue(tx, path).queue_id
    # One more, as that one may still be there.
    first, most = after or "", limit if after is None else limit + 1
    if set_after is not None:
        ids = tx.sessions.set_after(queue_id, set_after, first, most)
    elif active:
        ids = tx.sessions.active(queue_id, first, most)
    else:
        ids = tx.sessions.ids(queue_id, first, most)
    return [one for one in ids if one != after][:limit]


def stored_session_state(tx: Transaction, path: EntityPath, session_id: str) -> bytes | None:
    """Return a session's state as it is stored, whoever holds the session."""
    record = tx.sessions.find(require_queue(tx, path).queue_id, session_id)
    return None if record is None else record.state


def session_state(tx: Transaction, path: EntityPath, lock: Lock) -> bytes | None:
    """Return a session's state. Raises SessionLockLost."""
    return require_session(tx, require_queue(tx, path), lock).state
