"""Settles messages as their receiver asks."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.messages.complete import delete_completed, delete_plain, keep_samples
from lazaretto.engine.messages.sessions import require_session
from lazaretto.engine.outcome.attempts import (
    end_attempt,
    is_simple,
    note_cleared,
    note_commit,
    note_rollback,
    put_back,
    return_all,
)
from lazaretto.engine.outcome.dispositions import in_unit, reject, remove, set_aside
from lazaretto.engine.outcome.verdicts import fail
from lazaretto.engine.queue_admission import HEADERS_REASON, HEADERS_TEXT
from lazaretto.engine.queue_hooks import hooks_of
from lazaretto.engine.routing.deliver import dead_letter
from lazaretto.errors import MessageLockLost, NotAllowed
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.failure import Failure
from lazaretto.model.headers import (
    MAX_HEADERS_SIZE,
    PropertyValue,
    decode_headers,
    encode_headers,
)
from lazaretto.model.keys import in_main, queue_of, queues_of, sequence_of
from lazaretto.model.messages import Lock, ReceivedMessage
from lazaretto.model.policy import Disposition, Final, Outcome, PoisonVerdict, Verdict
from lazaretto.model.rates import COMPLETED
from lazaretto.model.reservoir import choose
from lazaretto.store.records.messages import DEFERRED, FRESH, SCHEDULED, MessageRow, QueueRecord
from lazaretto.store.records.plain import PlainRemoval
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction


class Settlement(msgspec.Struct, frozen=True):
    """The end of one attempt at a message, with details from the receiver.

    `delay`: seconds until a failed message is tried again. `reason` and `description`: a dead letter's.
    `poison`: the error handler's decision if this is the last attempt; None leaves it to the policy.
    `reject`: dead-letter it to its sender's dead-letter queue, if there is one, instead of this queue's.
    `properties`: application properties to add or change (Service Bus's propertiesToModify). `types`: their
    types in AMQP.
    """

    outcome: Outcome
    failure: Failure | None = None
    delay: float | None = None
    reason: str | None = None
    description: str | None = None
    reject: bool = False
    properties: Mapping[str, PropertyValue] | None = None
    poison: PoisonVerdict | None = None
    types: Mapping[str, int | str] = {}


#: Outcomes that leave the completions of a session that is one unit intact; any other undoes them.
_KEPT = (Outcome.COMPLETED, Outcome.DEFERRED)
#: Outcomes that the automatic detection counts as a rolled-back receive.
_ROLLED_BACK = {Outcome.FAILED, Outcome.LOST, Outcome.LOCK_EXPIRED}

#: Outcomes that mostly make a dead letter of a message at once.
_SET_ASIDE = (Outcome.DEAD_LETTERED, Outcome.INVALID)

COMPLETE = Settlement(Outcome.COMPLETED)
RELEASE = Settlement(Outcome.RELEASED)


class Settled(msgspec.Struct, frozen=True):
    """One message of a settlement, and how its attempt ended."""

    message: ReceivedMessage
    settlement: Settlement

    @property
    def lock(self) -> Lock:
        lock = self.message.lock
        if lock is None:
            raise NotAllowed(
                f"message {self.message.sequence_number} was received and deleted; there is nothing to settle"
            )
        return lock


def as_unit(settlements: Iterable[Settlement]) -> list[Settlement]:
    """Return the settlements of a session that is one unit: no message completes unless all do."""
    entries = list(settlements)
    if all(one.outcome in _KEPT for one in entries):
        return entries
    return [RELEASE if one.outcome in _KEPT else one for one in entries]


@dataclasses.dataclass(slots=True)
class Settle(Operation[list[tuple[int, Final]]]):
    """Settle messages of one or several queues: all of them, or none. Raises MessageLockLost.

    Returns the policy's final verdicts, each with the message's key.
    """

    entries: Sequence[Settled]

    foreseeable = True
    mergeable: ClassVar[bool] = True

    @classmethod
    def run_all(cls, tx: Transaction, operations: Sequence[Any]) -> Iterable[list[tuple[int, Final]]]:
        """Remove the completed messages of several callers together."""
        entries = [entry for operation in operations for entry in operation.entries]
        if all(e.settlement.outcome is Outcome.COMPLETED for e in entries) and _stand_alone(tx, entries):
            cls(entries).run(tx)
            return [[] for _ in operations]
        return [operation.run(tx) for operation in operations]

    def plain(self) -> PlainRemoval | None:
        removal = self._removal()
        # Examples are kept of some, and fewer the more there are.
        return None if removal is None or choose([m.key for m in removal.messages]) else removal

    def _removal(self) -> PlainRemoval | None:
        """Return the messages if all are completed, of one queue, and were taken for the first time."""
        messages: list[ReceivedMessage] = []
        keys: list[int] = []
        by_lock: dict[int, list[int]] = {}
        path: EntityPath | None = None
        before: Lock | None = None
        for entry in self.entries:
            message = entry.message
            if entry.settlement is not COMPLETE or message.deliveries > 1 or message.suspect:
                return None
            lock = message.lock
            # Messages received together share one object.
            if lock is not before or lock is None:
                if lock is None or lock.session_id is not None or lock.path.subqueue is not Subqueue.MAIN:
                    return None
                if path is not None and lock.path != path:
                    return None
                before, path = lock, lock.path
                keys = by_lock.setdefault(lock.token, [])
            messages.append(message)
            keys.append(message.key)
        return None if path is None else PlainRemoval(path, messages, by_lock)

    def run(self, tx: Transaction) -> list[tuple[int, Final]]:
        removal = self._removal()
        if removal is not None and (queue := require_queue(tx, removal.path)).plain:
            _remove_plain(tx, queue, removal)
            return []
        finals: list[tuple[int, Final]] = []
        watched: dict[int, set[Outcome]] = {}
        settled: list[tuple[QueueRecord, Sequence[Settled]]] = []
        for path, locks in group_by_lock(self.entries).items():
            queue = require_queue(tx, path)
            entries = list(itertools.chain.from_iterable(locks.values()))
            keys: list[int] = []
            completed: list[ReceivedMessage] = []
            for entry in entries:
                keys.append(entry.message.key)
                if entry.settlement.outcome is Outcome.COMPLETED:
                    completed.append(entry.message)
            if queues_of(keys) != {queue.queue_id}:
                # The queue was deleted, and a new one has its path.
                raise lock_error(path, keys)
            if queue.plain and len(completed) == len(entries):
                # Each is gone by itself, and nothing follows from it.
                _complete(tx, queue, path, completed, keys)
                continue
            # Sessions are settled one after the other; the first lost lock is the error.
            if queue.options.requires_session and len(locks) > 1:
                for token, each in locks.items():
                    finals += self._settle_part(tx, queue, path, {token: each}, each)
            else:
                finals += self._settle_part(tx, queue, path, locks, entries)
            if path.subqueue is Subqueue.MAIN:
                settled.append((queue, entries))
                if queue.options.policy.disable_after_rollbacks is not None:
                    watched.setdefault(queue.queue_id, set()).update(e.settlement.outcome for e in entries)
        for queue, of_queue in settled:
            # Runs after all settlements: a conversation that ends here removes what is left of it.
            hooks_of(queue).after_settle(tx, queue, _completed(of_queue))
        if watched:
            self._note_consecutive(tx, watched)
        return finals

    def _settle_part(
        self,
        tx: Transaction,
        queue: QueueRecord,
        path: EntityPath,
        locks: Mapping[int, Sequence[Settled]],
        entries: Sequence[Settled],
    ) -> list[tuple[int, Final]]:
        """Settle entries of a queue, given by their locks too; completed messages are removed together."""
        finals: list[tuple[int, Final]] = []
        for of_lock in locks.values():
            lock = of_lock[0].lock
            if lock.session_id is not None and not hooks_of(queue).locks_each:
                require_session(tx, queue, lock)
        completed = _completed(entries)
        # Read before anything is written: what a commit has written, its plan cannot read.
        rest = _others_held(tx, path, locks) if len(completed) < len(entries) else []
        if completed:
            _complete(tx, queue, path, completed, [message.key for message in completed])
        for others, rows in rest:
            with tx.together(len(others)):
                finals += _settle_each(tx, queue, others, rows)
        if queue.options.whole_sessions and path.subqueue is Subqueue.MAIN:
            _refuse_part(tx, queue, entries)
        return finals

    def _note_consecutive(self, tx: Transaction, watched: Mapping[int, set[Outcome]]) -> None:
        """Report a commit or a rollback to each queue with automatic detection."""
        for queue_id, outcomes in watched.items():
            queue = tx.queues.by_id(queue_id)
            if queue is None:
                continue
            if outcomes - _ROLLED_BACK - {Outcome.INVALID, Outcome.RELEASED}:
                note_commit(tx, queue)
            elif outcomes & _ROLLED_BACK:
                note_rollback(tx, queue)


def _completed(entries: Iterable[Settled]) -> list[ReceivedMessage]:
    """Return the messages that are completed."""
    return [entry.message for entry in entries if entry.settlement.outcome is Outcome.COMPLETED]


def _complete(
    tx: Transaction,
    queue: QueueRecord,
    path: EntityPath,
    completed: Sequence[ReceivedMessage],
    keys: Sequence[int],
) -> None:
    if path.subqueue is Subqueue.MAIN:
        keep_samples(tx, queue, keys)
    if not delete_completed(tx, queue, completed):
        raise lock_error(path, keys)


def _remove_plain(tx: Transaction, queue: QueueRecord, removal: PlainRemoval) -> None:
    keys = [key for some in removal.by_lock.values() for key in some]
    if not queue_of(min(keys)) == queue_of(max(keys)) == queue.queue_id:
        # The queue was deleted, and a new one has its path.
        raise lock_error(removal.path, keys)
    keep_samples(tx, queue, keys)
    if not delete_plain(tx, queue, removal):
        raise lock_error(removal.path, keys)


def _stand_alone(tx: Transaction, entries: Iterable[Settled]) -> bool:
    """Return whether these settlements are independent of each other."""
    for path, locks in group_by_lock(entries).items():
        queue = tx.queues.by_path(path.key)
        if queue is None or queue.options.policy.disable_after_rollbacks is not None:
            return False
        if any(of_lock[0].lock.session_id is not None for of_lock in locks.values()):
            return False
    return True


def group_by_lock(entries: Iterable[Settled]) -> dict[EntityPath, dict[int, list[Settled]]]:
    groups: dict[EntityPath, dict[int, list[Settled]]] = {}
    before: Lock | None = None
    group: list[Settled] = []
    for entry in entries:
        lock = entry.message.lock or entry.lock
        # Messages received together share one object.
        if lock is not before:
            before, group = lock, groups.setdefault(lock.path, {}).setdefault(lock.token, [])
        group.append(entry)
    return groups


def _others_held(
    tx: Transaction, path: EntityPath, locks: Mapping[int, Sequence[Settled]]
) -> list[tuple[Sequence[Settled], Mapping[int, MessageRow]]]:
    """Return what is settled otherwise than by completing it, by lock, with its messages as they stand."""
    groups: list[tuple[Sequence[Settled], Mapping[int, MessageRow]]] = []
    for token, of_lock in locks.items():
        others = [e for e in of_lock if e.settlement.outcome is not Outcome.COMPLETED]
        if others:
            keys = [entry.message.key for entry in others]
            rows = tx.held_rows(keys, token)
            missing = set(keys) - rows.keys()
            if missing or len(set(keys)) < len(keys):
                raise lock_error(path, sorted(missing) or keys)
            groups.append((others, rows))
    return groups


def _settle_each(
    tx: Transaction, queue: QueueRecord, entries: Sequence[Settled], rows: Mapping[int, MessageRow]
) -> list[tuple[int, Final]]:
    finals: list[tuple[int, Final]] = []
    together: list[tuple[MessageRow, Outcome]] = []
    if len(letters := [e.message.key for e in entries if e.settlement.outcome in _SET_ASIDE]) > 1:
        tx.look_ahead(letters)
    for entry in entries:
        row, settlement = rows[entry.message.key], entry.settlement
        if _goes_back(queue, row, settlement):
            together.append((row, settlement.outcome))
            continue
        if row.session_id is not None and hooks_of(queue).ends_sessions:
            # An earlier message may have taken this one along.
            now = tx.row(row.key)
            if now is None:
                continue
            row = now
        verdict = settle_row(tx, queue, row, settlement)
        if isinstance(verdict, Final):
            finals.append((row.key, verdict))
        if in_unit(queue, row) and _is_gone(tx, row, settlement, verdict):
            # The rest of its session has gone with it.
            return finals
    if together:
        return_all(tx, together)
    return finals


def _goes_back(queue: QueueRecord, row: MessageRow, settlement: Settlement) -> bool:
    """Return whether a message goes back as it is, which any number do together."""
    returned = settlement.outcome in (Outcome.RELEASED, Outcome.DEFERRED)
    return returned and not settlement.properties and not hooks_of(queue).ends_sessions and is_simple(row)


def _is_gone(tx: Transaction, row: MessageRow, settlement: Settlement, verdict: Verdict | None) -> bool:
    """Return whether a message is no longer in its queue, now that it is settled."""
    if settlement.properties:
        # They may have been too large for it.
        return tx.row(row.key) is None
    if isinstance(verdict, Final):
        return verdict.disposition is not Disposition.FAULT
    return settlement.outcome is Outcome.DEAD_LETTERED


def settle_row(
    tx: Transaction, queue: QueueRecord, row: MessageRow, settlement: Settlement
) -> Verdict | None:
    """Settle one message whose lock is held; return the policy's verdict if the policy applied."""
    if settlement.properties:
        headers = decode_headers(row.headers)
        properties = {**headers.properties, **settlement.properties}
        types = {**headers.types, **settlement.types}
        encoded = encode_headers(msgspec.structs.replace(headers, properties=properties, types=types))
        if len(encoded) > MAX_HEADERS_SIZE and in_main(row.key):
            row = end_attempt(tx, row, settlement.outcome, settlement.failure)
            large = Settlement(Outcome.DEAD_LETTERED, settlement.failure, None, HEADERS_REASON, HEADERS_TEXT)
            _set_aside(tx, queue, row, large)
            return None
        row = msgspec.structs.replace(row, headers=encoded)
    match settlement.outcome:
        case Outcome.COMPLETED:
            note_cleared(tx, queue, sequence_of(row.key), row.suspect)
            if in_main(row.key):
                tx.rates.count(queue.queue_id, COMPLETED)
            remove(tx, row)
        case Outcome.RELEASED:
            put_back(tx, end_attempt(tx, row, Outcome.RELEASED))
        case Outcome.DEFERRED:
            row = end_attempt(tx, row, Outcome.DEFERRED)
            tx.save_row(msgspec.structs.replace(row, state=DEFERRED, due=None, deferred=1))
        case Outcome.DEAD_LETTERED:
            if not in_main(row.key):
                raise NotAllowed(f"message {sequence_of(row.key)} of {queue.path!r} is already a dead letter")
            row = end_attempt(tx, row, Outcome.DEAD_LETTERED, settlement.failure)
            _set_aside(tx, queue, row, settlement)
            hooks_of(queue).on_dead_lettered(tx, queue, row, settlement.reason)
        case outcome:
            return fail(tx, queue, row, outcome, settlement.failure, settlement.delay, settlement.poison)
    return None


def _set_aside(tx: Transaction, queue: QueueRecord, row: MessageRow, settlement: Settlement) -> None:
    """Dead-letter a message at its receiver's request, or return it to its sender."""
    put = reject if settlement.reject else dead_letter

    def act(row: MessageRow) -> None:
        put(tx, queue, row, settlement.reason, settlement.description, settlement.failure)

    shared = Disposition.REJECT if settlement.reject else Disposition.MOVE
    set_aside(tx, queue, row, act, shared, settlement.reason)


def _refuse_part(tx: Transaction, queue: QueueRecord, entries: Sequence[Settled]) -> None:
    """Raise NotAllowed if only some messages of a session that is one unit were completed.

    Messages sent after the delivery do not matter, nor do deferred ones.
    """
    session_id = entries[0].lock.session_id
    if session_id is None or all(e.settlement.outcome is not Outcome.COMPLETED for e in entries):
        return
    rest = [
        message.key
        for message in tx.sessions.messages(queue.queue_id, session_id)
        if message.state not in (FRESH, DEFERRED, SCHEDULED)
    ]
    others = [e for e in entries if e.settlement.outcome not in _KEPT]
    if rest or others:
        raise NotAllowed(
            f"session {session_id!r} of {queue.path!r} is settled as a unit (on_poison_session=whole): "
            "complete all messages received from it in one call, or none. Nothing was changed"
        )


def lock_error(path: EntityPath, keys: Sequence[int]) -> MessageLockLost:
    numbers = [sequence_of(key) for key in keys]
    named = ", ".join(map(str, numbers[:5])) + (" …" if len(numbers) > 5 else "")
    return MessageLockLost(
        f"the lock on message {named} of {str(path)!r} is no longer held: it expired, or the message was "
        "already settled. Nothing was changed",
        numbers,
    )
