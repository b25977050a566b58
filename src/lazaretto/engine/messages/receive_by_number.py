"""Receives active messages by their numbers, out of order: all of them, or none and the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lazaretto.engine.messages.receive import (
    Found,
    dispose_of_exhausted,
    hand_over,
    look_again,
    put_lock,
    receivable,
)
from lazaretto.engine.messages.sessions import held_error, require_session
from lazaretto.engine.timers import catch_up
from lazaretto.errors import LazarettoError, MessageNotFound, MessageNotReceivable, NotAllowed
from lazaretto.model.clock import to_datetime
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.keys import dead_key, lower_bound, main_key, sequence_of
from lazaretto.model.messages import Lock, ReceivedMessage
from lazaretto.store.records.messages import (
    AGAIN,
    DEFERRED,
    DELAYED,
    FRESH,
    LOCKED,
    READY,
    SCHEDULED,
    STATES,
    SUSPECT,
    Again,
    MessageRow,
    QueueRecord,
)
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: The messages, or the error. The error is returned, not raised, to keep the due work already done.
Chosen = list[ReceivedMessage] | LazarettoError


@dataclasses.dataclass(slots=True)
class ReceiveByNumber(Operation[Chosen]):
    """Lock active messages by sequence number and open their attempts: all of them, or none."""

    path: EntityPath
    sequence_numbers: Sequence[int]
    session: Lock | None = None

    durable = False

    def run(self, tx: Transaction) -> Chosen | Again:
        queue = receivable(tx, self.path, self.session is not None)
        if queue.options.whole_sessions and self.path.subqueue is Subqueue.MAIN:
            raise NotAllowed(
                f"the sessions of {queue.path!r} are settled as a unit (on_poison_session=whole): "
                "single messages cannot be received"
            )
        caught_up = catch_up(tx)
        first = lower_bound(queue.queue_id, self.path.subqueue)
        keys = sorted({first + number for number in self.sequence_numbers})
        while True:
            stopped = look_again(tx, self.path) or self._held_session(tx, queue)
            if stopped is not None:
                return stopped
            for key in keys:
                obstacle = self._find_obstacle(tx, queue, key, alone=len(keys) == 1)
                if obstacle is not None:
                    return obstacle if caught_up else AGAIN
            rows = _active(tx, keys)
            if not dispose_of_exhausted(tx, queue, rows):
                break
        return hand_over(tx, rows, _lock(tx, queue, self.path, keys, self.session))

    def _held_session(self, tx: Transaction, queue: QueueRecord) -> LazarettoError | None:
        if self.session is None or self.session.session_id is None:
            return None
        record = require_session(tx, queue, self.session)
        held_by = record.held_by
        return None if held_by is None else held_error(queue, self.session.session_id, held_by)

    def _find_obstacle(
        self, tx: Transaction, queue: QueueRecord, key: int, *, alone: bool
    ) -> LazarettoError | None:
        """Return why a message cannot be delivered, or None if it can."""
        row = tx.row(key)
        if row is None or (
            row.expires is not None and row.expires <= tx.now and row.state not in (LOCKED, DEFERRED)
        ):
            return MessageNotFound(_absence(tx, queue, self.path, key))
        why = self._strangeness(tx, queue, row) if row.state in (FRESH, READY) else _standing(row)
        if why is None or (row.state == SUSPECT and alone):
            return None
        number, path = sequence_of(key), str(self.path)
        return MessageNotReceivable(
            f"message {number} of {path!r} {why}. Nothing was locked", path, number, STATES[row.state]
        )

    def _strangeness(self, tx: Transaction, queue: QueueRecord, row: MessageRow) -> str | None:
        """Explain why an active message is not for the receiver of this session."""
        if self.session is None or self.session.session_id is None:
            return None
        if row.session_id != self.session.session_id:
            return f"is in session {row.session_id!r}, not in {self.session.session_id!r}"
        before = tx.sessions.first_delayed(queue.queue_id, self.session.session_id)
        if before is None or row.key < before:
            return None
        return f"waits behind message {sequence_of(before)} of its session, which waits for its retry"


def _standing(row: MessageRow) -> str:
    """Describe the state of a message that is not active."""
    if row.state == LOCKED:
        if row.due is None:
            return "is locked by the receiver of its session, or by a claim"
        return f"is locked by {row.locked_by} until {_time(row.due)}"
    if row.state == DEFERRED:
        return "is deferred; receive it with receive_deferred"
    if row.state == SCHEDULED:
        return f"is scheduled for {_time(row.due)}"
    if row.state == DELAYED:
        return f"waits for its next attempt until {_time(row.due)}"
    return "is suspected of crashing its worker; receive it alone"


def _time(micros: int | None) -> str:
    assert micros is not None
    return to_datetime(micros).strftime("%Y-%m-%d %H:%M:%SZ")


def _absence(tx: Transaction, queue: QueueRecord, path: EntityPath, key: int) -> str:
    """Describe what is known of a message that was not found in its place."""
    absence = f"no message {sequence_of(key)} in {str(path)!r}"
    for subqueue in (Subqueue.DEAD_LETTER, Subqueue.TRANSFER_DEAD_LETTER):
        if subqueue is not path.subqueue and tx.row(dead_key(key, subqueue)) is not None:
            return f"{absence}: it is a dead letter, in {str(EntityPath(queue.path, subqueue))!r}"
    if path.subqueue is not Subqueue.MAIN and tx.row(main_key(key)) is not None:
        return f"{absence}: it is in {queue.path!r}"
    record = tx.history.dead_letter(main_key(key))
    if record is not None and record.resolution is not None:
        return f"{absence}: it was a dead letter, and was {record.resolution}"
    return f"{absence}: it never existed, was completed, or has expired"


def _active(tx: Transaction, keys: Sequence[int]) -> list[ReceivedMessage]:
    """Return messages that were checked to be active, by number."""
    rows = [row for state in (FRESH, READY, SUSPECT) for row in tx.select_messages(keys, state)]
    return sorted(rows, key=lambda row: row.key)


@dataclasses.dataclass(slots=True)
class ReceiveDeferred(Operation[Found | MessageNotFound]):
    """Lock deferred messages by sequence number: all of them, or none and MessageNotFound."""

    path: EntityPath
    sequence_numbers: Sequence[int]
    session: Lock | None = None

    durable = False
    foreseeable = True

    def run(self, tx: Transaction) -> Found | MessageNotFound | Again:
        queue = receivable(tx, self.path, self.session is not None)
        caught_up = catch_up(tx)
        halted = look_again(tx, self.path)
        if halted is not None:
            return halted
        first = lower_bound(queue.queue_id, self.path.subqueue)
        keys = [first + number for number in dict.fromkeys(self.sequence_numbers)]
        while True:
            rows = tx.select_messages(keys, DEFERRED)
            missing = sorted({key - first for key in keys} - {row.key - first for row in rows})
            if not missing and self.session is not None:
                current = (tx.row(row.key) for row in rows)
                missing = [r.key - first for r in current if r and r.session_id != self.session.session_id]
            if missing and not caught_up:
                return AGAIN
            if missing:
                # Returned, not raised, because this commit may have dead-lettered one of them.
                return MessageNotFound(
                    f"no deferred message {', '.join(map(str, missing))} in {str(self.path)!r}; "
                    "nothing was locked"
                )
            if not dispose_of_exhausted(tx, queue, rows):
                break
            halted = look_again(tx, self.path)
            if halted is not None:
                return halted
        return put_lock(tx, rows, _lock(tx, queue, self.path, keys, self.session))


def _lock(
    tx: Transaction, queue: QueueRecord, path: EntityPath, keys: Sequence[int], session: Lock | None
) -> Lock:
    """Lock messages: by themselves, or with their session."""
    if session is None:
        until = tx.now + round(queue.options.lock_duration * 1_000_000)
        lock = Lock(path, tx.random_token(), until)
        tx.lock(keys, lock.token, until)
        return lock
    until = require_session(tx, queue, session).locked_until or 0
    tx.lock(keys, session.token, None)
    return Lock(path, session.token, until, session.session_id)
