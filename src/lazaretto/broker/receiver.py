"""Receives messages from one queue, subqueue or session, and settles them."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from lazaretto.broker.settling import (
    NEXT_SESSION,
    Messages,
    MessageVerbs,
    Mode,
    NextSession,
    SuspectChoice,
    check_mode,
    settlements,
    settling,
)
from lazaretto.broker.steps import (
    Do,
    Look,
    Steps,
    outcome_of,
    place_of,
    return_or_raise,
    run_steps,
    verb,
    waiting_for,
)
from lazaretto.engine.command import check_numbers
from lazaretto.engine.maintenance import look
from lazaretto.engine.messages.locks import RenewLocks, messages_held
from lazaretto.engine.messages.peek import peek
from lazaretto.engine.messages.receive import Receive, ReceiveAndDelete
from lazaretto.engine.messages.receive_by_number import ReceiveByNumber, ReceiveDeferred
from lazaretto.engine.messages.sessions import (
    AcceptSession,
    ReleaseSession,
    RenewSession,
    SetSessionState,
    session_locked,
    session_state,
)
from lazaretto.engine.messages.settle import COMPLETE, RELEASE, Settle, Settled, Settlement
from lazaretto.engine.workers.leases import Handover, Take
from lazaretto.errors import (
    BrokerClosed,
    CommitUnknown,
    InvalidOption,
    NotAllowed,
    SessionCannotBeLocked,
)
from lazaretto.model.actors import RECEIVER, Taker
from lazaretto.model.checks import GivenDuration, flag, seconds, shown, text, whole
from lazaretto.model.clock import to_datetime
from lazaretto.model.entities import EntityPath
from lazaretto.model.headers import LONGEST_ID
from lazaretto.model.messages import MOST_MESSAGES, Lock, PeekedMessage, ReceivedMessage
from lazaretto.observe.traces import active
from lazaretto.store.runtime.processes import program
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.store import Store
from lazaretto.tools.closing import Closing

T = TypeVar("T")

#: Characters of the name under which a session's lock can be used.
LONGEST_NAME: Final = 256


class Receiver(MessageVerbs, Closing):
    """Receives from a queue, a subqueue, or one session. A context manager.

    Threads can share it. After closing, the locks on messages expire; the lock on a session is released
    at once.
    """

    def __init__(
        self,
        store: Store,
        path: EntityPath,
        mode: Mode = "peek_lock",
        session: str | NextSession | None = None,
        rotation: dict[str, str | None] | None = None,
        *,
        accept: bool = True,
    ) -> None:
        check_mode(mode)
        if session is not None and session is not NEXT_SESSION:
            text("session", session, LONGEST_ID, 0)
        self._store = store
        self._path = path
        self._mode: Mode = mode
        self._wanted = session
        self._rotation: dict[str, str | None] = {} if rotation is None else rotation
        self._lock: Lock | None = None
        self._maybe_locked: Lock | None = None
        #: Whether another receiver locked the session, and is to release it.
        self._joined = False
        self._locking = threading.Lock()
        self._place: int | None = None
        #: As whom it takes messages, where that is not this program; and whether it has entered.
        self._taker: Taker | None = None
        self._present = False
        self.in_doubt: Handover | None = None
        self._closed = False
        self._choice: SuspectChoice | None = None
        if accept and session is not None and session is not NEXT_SESSION:
            self._accept(0.0)

    # -- receiving ------------------------------------------------------------------------------

    @verb
    def receive(
        self, max_messages: int = 1, max_wait: GivenDuration | None = 0.0
    ) -> Steps[list[ReceivedMessage]]:
        """Return up to `max_messages`, in order, locked for this receiver.

        Waits up to `max_wait` seconds (None: forever) for the first message; then returns an empty
        list. Raises EntityNotFound, NotAllowed, QueueDisabled,
        PoisonMessageError (the queue is halted), SessionLockLost.
        """
        if self._closed:
            self._refuse_closed()
        whole("max_messages", max_messages, 1, MOST_MESSAGES)
        wait = None if max_wait is None else seconds("max_wait", max_wait)
        if not self._present:
            self._enter()
        return (yield from self._traced(self._asking(max_messages, wait)))

    def _enter(self) -> None:
        """Note once that this receiver takes messages."""
        self._present = True
        self._store.presence.enter(self, self._taker or Taker(str(self._path), RECEIVER, program()))

    def _asking(self, max_messages: int, wait: float | None) -> Steps[list[ReceivedMessage]]:
        end = time.monotonic() + wait if wait else None
        if self._wanted is not None and self._needs_session and not (yield from self._accepting(wait)):
            return []
        if self._mode == "peek_lock":
            receive = Receive(self._path, max_messages, self._lock)
            step = Do(receive, _release_all)
            if self._choice is not None:
                return (yield from self._choosing(self._choice, receive, step, wait, end))
        else:
            step = Do(ReceiveAndDelete(self._path, max_messages, self._lock))
        if wait == 0:
            # The same, without a look where to wait.
            return return_or_raise((yield step)) or []
        return (yield from self._waiting(lambda: outcome_of(step), end)) or []

    def _choosing(
        self, choice: SuspectChoice, receive: Receive, step: Do, wait: float | None, end: float | None
    ) -> Steps[list[ReceivedMessage]]:
        """Receive for a connection that tries suspects alone."""

        def attempt() -> Steps[list[ReceivedMessage] | tuple[None]]:
            receive.suspects = choice.choose()
            messages: list[ReceivedMessage] = return_or_raise((yield step)) or []
            return (None,) if receive.skipped and choice.wants_skipped() and not messages else messages

        answer = (yield from attempt()) if wait == 0 else (yield from self._waiting(attempt, end))
        return answer if isinstance(answer, list) else []

    def _traced(self, steps: Steps[T]) -> Steps[T]:
        """Return steps that receive, with a span if somebody traces."""
        tracing = active(self._store)
        return steps if tracing is None else tracing.receiving(self._path, steps)

    def take(
        self,
        max_messages: int,
        max_wait: GivenDuration,
        *,
        started: bool = True,
        most_bytes: int | None = None,
        sharers: Callable[[], int] | None = None,
    ) -> Handover | None:
        """Receive under a lease, for a service host, so that its death is noticed and attributed at once.

        `started`: the handlers start now, so that the hand-over counts as tried. `most_bytes`:
        of bodies and headers, if there is more than one message. `sharers`: among how many what waits
        is shared out, the caller being one. None: nothing came.
        After CommitUnknown, `in_doubt` is what may have been handed over.
        """
        self._refuse_closed()
        whole("max_messages", max_messages, 1, MOST_MESSAGES)
        flag("started", started)
        wait = seconds("max_wait", max_wait)
        end = time.monotonic() + wait
        if self._needs_session and not self._accept(wait):
            return None
        operation = Take(self._path, max_messages, self._lock, started, most_bytes, sharers)
        try:
            steps = self._waiting(lambda: outcome_of(Do(operation)), end)
            return run_steps(self._store, self._traced(steps))
        except CommitUnknown:
            self.in_doubt = operation.handed
            raise

    @property
    def _needs_session(self) -> bool:
        """Whether it is to lock a session first."""
        return self._wanted is not None and self._lock is None

    def _waiting(self, attempt: Callable[[], Steps[T | None]], end: float | None) -> Steps[T | None]:
        """Return the steps of an attempt, repeated whenever there may be news, until `end`."""
        if self._place is None:
            # Most find something at once, and need to know no place to wait at.
            answer = yield from attempt()
            if answer or (end is not None and time.monotonic() >= end):
                return answer or None
            self._place = yield Look(lambda tx: place_of(tx, self._path))
        # Any message, or any session, is what others may wait for; one session is not.
        alike = None if self._lock is not None or isinstance(self._wanted, str) else str(self._wanted is None)
        place = self._place or 1
        return (yield from waiting_for(self._store, place, attempt, end, self._refuse_closed, alike))

    @verb
    def receive_deferred(self, sequence_numbers: int | Iterable[int]) -> Steps[list[ReceivedMessage]]:
        """Return deferred messages by sequence number, locked: all, or none and MessageNotFound."""
        self._refuse_closed()
        if self._mode != "peek_lock":
            raise NotAllowed("deferred messages are received under a lock: use mode='peek_lock'")
        numbers = check_numbers(sequence_numbers)
        if not numbers:
            return []
        step = Do(ReceiveDeferred(self._path, numbers, self._lock), _release_all)
        return (yield from self._traced(outcome_of(step))) or []

    @verb
    def receive_by_number(self, sequence_numbers: int | Iterable[int]) -> Steps[list[ReceivedMessage]]:
        """Return active messages by sequence number, out of order, locked: all of them, or none.

        Each delivery counts as usual. A receiver of a session gets only messages of its session. Raises
        MessageNotFound, MessageNotReceivable (locked, deferred, scheduled, delayed), and what `receive` does.
        """
        self._refuse_closed()
        if self._mode != "peek_lock":
            raise NotAllowed("messages are received by number under a lock: use mode='peek_lock'")
        numbers = check_numbers(sequence_numbers)
        if self._needs_session:
            raise NotAllowed("this receiver has no session yet: specify one, or receive first")
        if not numbers:
            return []
        step = Do(ReceiveByNumber(self._path, numbers, self._lock), _release_all)
        return (yield from self._traced(outcome_of(step))) or []

    def peek(
        self, max_messages: int = 1, from_sequence_number: int = 0, *, session_id: str | None = None
    ) -> list[PeekedMessage]:
        """Return messages in every state, without locking them or counting an attempt.

        `session_id`: only messages of this session. Raises NotAllowed for one where there are none:
        a queue that does not require them, and dead letters.
        """
        self._refuse_closed()
        whole("max_messages", max_messages, 1, MOST_MESSAGES)
        whole("from_sequence_number", from_sequence_number, 0, 1 << 62)
        if session_id is not None:
            text("session_id", session_id, LONGEST_ID, 0)
        return look(
            self._store, lambda tx: peek(tx, self._path, max_messages, from_sequence_number, session_id)
        )

    # -- settling -------------------------------------------------------------------------------

    def messages_held(self, lock_tokens: uuid.UUID | Iterable[uuid.UUID]) -> list[ReceivedMessage]:
        """Return the messages that are held under lock tokens, whoever received them, to settle them here.

        So one process can settle what another one received. Raises MessageLockLost if any is not held.
        """
        self._refuse_closed()
        tokens = list(lock_tokens) if isinstance(lock_tokens, Iterable) else [lock_tokens]
        for token in tokens:
            if not isinstance(token, uuid.UUID):
                raise InvalidOption(f"expected lock tokens to be UUIDs, got {shown(token)}")
        return look(self._store, lambda tx: messages_held(tx, self._path, tokens))

    @verb
    def renew_lock(self, messages: Messages) -> Steps[datetime]:
        """Renew the locks for their queue's lock duration from now.

        Returns the new expiry time; for several messages, the earliest.
        """
        self._refuse_closed()
        ours = [e.message for e in settlements(messages, COMPLETE)]
        if not ours:
            raise InvalidOption("expected at least one message, got none")
        untils = yield Do(RenewLocks(ours))
        for message, until in zip(ours, untils, strict=True):
            assert message.lock is not None
            message.lock = msgspec.structs.replace(message.lock, until=until)
        return to_datetime(min(untils))

    def _settle(self, messages: Messages, settlement: Settlement) -> None:
        run_steps(self._store, self._settling(messages, settlement))

    def _settling(self, messages: Messages, settlement: Settlement) -> Steps[None]:
        """Return the steps of a verb that settles messages."""
        if self._closed:
            self._refuse_closed()
        return settling(self._store, settlements(messages, settlement))

    # -- the session ----------------------------------------------------------------------------

    @property
    def session_id(self) -> str | None:
        """The session this receiver holds; None until it has one."""
        return None if self._lock is None else self._lock.session_id

    @property
    def session_locked_until(self) -> datetime | None:
        """When the lock of the session ends, or None without one."""
        return None if self._lock is None else to_datetime(self._lock.until)

    @verb
    def accept_session(
        self, max_wait: GivenDuration | None = 0.0, *, name: str | None = None
    ) -> Steps[str | None]:
        """Lock the session without receiving from it, and return its id. `receive` does so by itself.

        Waits up to `max_wait` seconds (None: forever) for a NEXT_SESSION that has messages and is free; then
        returns None. `name`: with it other receivers can use the lock, see `join_session`; up to 256
        characters. Does nothing if the receiver holds its session. Raises NotAllowed for a receiver of no
        session, SessionCannotBeLocked, SessionHeld.
        """
        self._refuse_closed()
        if name is not None:
            text("name", name, LONGEST_NAME)
        wait = None if max_wait is None else seconds("max_wait", max_wait)
        if self._wanted is None:
            raise NotAllowed("expected a receiver of a session, got one of a queue: give it session=…")
        yield from self._accepting(wait, name)
        return self.session_id

    def join_session(self, session_id: str, name: str) -> None:
        """Use the lock that another receiver, of any process, took on a session under a name.

        To settle deferred messages, to renew the lock, and for the session's state. Closing leaves the lock
        as it is. Raises NotAllowed for a receiver of a session, SessionLockLost.
        """
        self._refuse_closed()
        text("session_id", session_id, LONGEST_ID, 0)
        text("name", name, LONGEST_NAME)
        if self._wanted is not None:
            raise NotAllowed("expected a receiver without a session, got one with session=…")
        with self._locking:
            self._lock = self._store.read(lambda tx: session_locked(tx, self._path, session_id, name))
            self._wanted, self._joined = session_id, True

    def renew_session_lock(self) -> datetime:
        """Renew the session's lock for the queue's lock duration from now."""
        self._lock = self._store.run(RenewSession(self._path, self._held()))
        return to_datetime(self._lock.until)

    def get_session_state(self) -> bytes | None:
        """Return the session's state, or None. Raises SessionLockLost."""
        lock = self._held()
        return self._store.read(lambda tx: session_state(tx, self._path, lock))

    def set_session_state(self, state: bytes | None) -> None:
        """Store the session's state, at most 256 KiB; None clears it. Raises SessionLockLost."""
        self._store.run(SetSessionState(self._path, self._held(), state))

    def _held(self) -> Lock:
        self._refuse_closed()
        if self._lock is None:
            raise NotAllowed("this receiver holds no session")
        return self._lock

    def _accept(self, max_wait: float | None) -> bool:
        return run_steps(self._store, self._accepting(max_wait))

    def _accepting(self, max_wait: float | None, name: str | None = None) -> Steps[bool]:
        """Lock the wanted session; return False if none became free within `max_wait` seconds."""
        end = None if max_wait is None else time.monotonic() + max_wait
        session = None if self._wanted is NEXT_SESSION else self._wanted
        assert not isinstance(session, NextSession)
        with self._locking:
            if self._lock is None:
                self._lock = yield from self._waiting(lambda: self._try_accept(session, name), end)
                if self._lock is not None:
                    self._rotation[self._path.key] = self._lock.session_id
        return self._lock is not None

    def _try_accept(self, session: str | None, name: str | None) -> Steps[Lock | None]:
        operation = AcceptSession(self._path, session, self._rotation.get(self._path.key), name)
        try:
            lock: Lock | None = yield from outcome_of(Do(operation, self._release_lock))
            return lock
        except CommitUnknown:
            self._maybe_locked = operation.locked
            raise
        except SessionCannotBeLocked:
            if session is not None:
                raise
            return None

    def _release_lock(self, lock: object) -> ReleaseSession | None:
        return ReleaseSession(self._path, lock) if isinstance(lock, Lock) else None

    # -- ending ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop receiving and release the session, if there is one. If this fails, call it again."""
        self._closed = True
        if self._present:
            self._store.presence.leave(self)
        with contextlib.suppress(BrokerClosed):
            self._release()

    def leave_session(self) -> None:
        """Release the current session of a NEXT_SESSION receiver; the next receive locks the next session."""
        if self._wanted is NEXT_SESSION:
            with self._locking:
                self._release()

    def _release(self) -> None:
        """Release the session that is locked, or that may be."""
        if self._store.forked:
            # It is its parent's.
            return
        if self._maybe_locked is not None:
            self._store.run(ReleaseSession(self._path, self._maybe_locked))
            self._maybe_locked = None
        if self._lock is not None and not self._joined:
            self._store.run(ReleaseSession(self._path, self._lock))
        self._lock = None

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BrokerClosed("this receiver is closed")


def _release_all(answer: object) -> Operation[Any] | None:
    """Return what gives back messages that were received for nobody."""
    return (
        Settle([Settled(message, RELEASE) for message in answer])
        if isinstance(answer, list) and answer
        else None
    )
