"""Locks of messages: renewed, and which of them a receiver still holds."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence

from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.messages.settle import Settled, group_by_lock, lock_error
from lazaretto.errors import NotAllowed
from lazaretto.model.entities import EntityPath
from lazaretto.model.keys import LAST_SEQUENCE, lower_bound, queue_of
from lazaretto.model.messages import Lock, ReceivedMessage, StoredMessage
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: The highest number that a lock has.
_LAST_LOCK = (1 << 63) - 1


@dataclasses.dataclass(slots=True)
class RenewLocks(Operation[list[int]]):
    """Renew message locks, each for its queue's lock duration from now. Returns the new expiries."""

    messages: Sequence[ReceivedMessage]

    durable = False
    foreseeable = True

    def run(self, tx: Transaction) -> list[int]:
        untils, lost = [], []
        for message in self.messages:
            lock = message.lock
            if lock is None or lock.session_id is not None:
                raise NotAllowed("this message has no lock of its own; renew its session's lock")
            queue = require_queue(tx, lock.path)
            until = tx.now + round(queue.options.lock_duration * 1_000_000)
            untils.append(until)
            here = queue_of(message.key) == queue.queue_id
            if not here or not tx.renew_lock(message.key, lock.token, until):
                lost.append(message)
        if lost:
            assert lost[0].lock is not None
            raise lock_error(lost[0].lock.path, [message.key for message in lost])
        return untils


def held_of(tx: Transaction, entries: Sequence[Settled]) -> set[int]:
    """Return the keys of those messages whose lock is held."""
    keys: set[int] = set()
    for locks in group_by_lock(entries).values():
        for token, group in locks.items():
            keys |= tx.held([entry.message.key for entry in group], token)
    return keys


def messages_held(tx: Transaction, path: EntityPath, tokens: Sequence[uuid.UUID]) -> list[ReceivedMessage]:
    """Return the messages of a subqueue that are held under lock tokens, in their order.

    Raises MessageLockLost if any is not.
    """
    queue = require_queue(tx, path)
    first = lower_bound(queue.queue_id, path.subqueue)
    keys = [first + (token.int & LAST_SEQUENCE) for token in tokens]
    by_lock: dict[int, list[int]] = {}
    for token, key in zip(tokens, keys, strict=True):
        by_lock.setdefault(token.int >> 64, []).append(key)
    lost = set(keys)
    for number, of_lock in by_lock.items():
        # What a forged token may hold is no number of a lock.
        lost -= tx.held(of_lock, number) if number <= _LAST_LOCK else set()
    if lost:
        raise lock_error(path, [key for key in keys if key in lost])
    rows, peeked = tx.rows(keys), {message.key: message for message in tx.peek_keys(keys)}
    received = []
    for token, key in zip(tokens, keys, strict=True):
        message, row = peeked[key], rows[key]
        until, session_id = message.locked_until_micros, None
        if until is None and row.session_id is not None:
            session = tx.sessions.find(queue.queue_id, row.session_id)
            until, session_id = None if session is None else session.locked_until, row.session_id
        lock = Lock(path, token.int >> 64, until or tx.now, session_id)
        fields = {name: getattr(message, name) for name in StoredMessage.__struct_fields__}
        received.append(
            ReceivedMessage(**fields, cycle_attempts=row.cycle_attempts, lock=lock, suspect=row.suspect)
        )
    return received
