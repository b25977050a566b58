"""Applies dispositions: moves, rejects or drops a poison message, or halts its queue."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec

from lazaretto.engine.log import note
from lazaretto.engine.outcome.attempts import end_attempt, put_back
from lazaretto.engine.outcome.session_holds import HeldRecord, hold, release_sessions
from lazaretto.engine.queue_admission import (
    HEADERS_REASON,
    HEADERS_TEXT,
    SESSION_REASON,
    SESSION_TEXT,
    admission_of,
)
from lazaretto.engine.routing.deliver import dead_letter, resolve
from lazaretto.engine.routing.forwards import active_due, touch
from lazaretto.engine.routing.router import refusal
from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE, EntityKind, PoisonSession, QueueStatus
from lazaretto.model.failure import Failure, short_error
from lazaretto.model.headers import (
    MAX_HEADERS_SIZE,
    NegativeAcknowledgement,
    decode_headers,
    encode_headers,
)
from lazaretto.model.keys import in_main, main_key, sequence_of
from lazaretto.model.partitions import chosen_key
from lazaretto.model.policy import DISPOSITIONS, Counters, Disposition, Final, Outcome
from lazaretto.model.rates import SENT
from lazaretto.store.records.messages import FRESH, LOCKED, READY, SCHEDULED, MessageRow, QueueRecord
from lazaretto.store.records.repairs import DeadLetterRecord
from lazaretto.store.sql.transaction import Transaction

#: Maximum size of the error text shown for a halted queue or a held session, in bytes.
_LONGEST_ERROR = 512


def _latest_error(tx: Transaction, row: MessageRow) -> str | None:
    """Return the error of a message's latest failed attempt, or None."""
    latest = tx.history.last_error(main_key(row.key))
    if latest is None:
        return None
    return short_error(latest.type, latest.message, _LONGEST_ERROR)


def hold_session(
    tx: Transaction, queue: QueueRecord, row: MessageRow, mode: PoisonSession, reason: str
) -> None:
    """Hold a session: deliver none of its messages until an operator decides on its poison message."""
    assert row.session_id is not None
    record = HeldRecord(mode, sequence_of(row.key), reason, tx.now, _latest_error(tx, row))
    hold(tx, queue, row.session_id, record)
    number = sequence_of(row.key)
    note(tx, "session_held", queue, number, session=row.session_id, mode=mode.value, reason=reason)


_replace = msgspec.structs.replace

EXPIRED_REASON = "TTLExpiredException"

EXPIRED_TEXT = "The message expired and was dead lettered."

SESSION_POISONED = "SessionPoisoned"

#: The acknowledgement code of a rejection by policy, in MSMQ's negative class.
REJECTED_CODE = 0xC004


class CulpritRecord(msgspec.Struct, frozen=True):
    """The message that halted a queue, as stored with the queue."""

    sequence_number: int
    delivery_count: int
    cycle: int
    reason: str
    time: int
    error: str | None = None


culprit_decoder = msgspec.json.Decoder(CulpritRecord)


def restore(tx: Transaction, queue: QueueRecord, row: MessageRow, record: DeadLetterRecord) -> MessageRow:
    """Return a dead letter to its former place in its queue; the result is its row there."""
    headers = decode_headers(row.headers)
    ttl, longest = headers.time_to_live, queue.longest_life
    if longest is not None:
        ttl = min(longest, ttl or 1 << 62)
    counters = msgspec.json.decode(record.counters, type=Counters)
    expires = None if ttl is None else max(row.enqueued + ttl, tx.now + 1)
    back = _replace(
        row.charged(counters),
        state=READY,
        due=active_due(tx, queue.queue_id, expires),
        expires=expires,
        session_id=headers.session_id if queue.options.requires_session else None,
    )
    key = main_key(row.key)
    tx.save_row(back, key)
    resolve(tx, [key], "restored")
    return _replace(back, key=key)


def expire(tx: Transaction, queue: QueueRecord, row: MessageRow) -> None:
    """Expire a message whose time to live has passed."""
    if queue.options.dead_letter_on_expiration:
        dead_letter(tx, queue, row, EXPIRED_REASON, EXPIRED_TEXT)
    else:
        remove(tx, row)
        tx.queues.count_discarded(queue.queue_id, expired=1)


def remove(tx: Transaction, row: MessageRow) -> None:
    """Delete a message with its body and its history."""
    tx.delete_messages([row.key])
    if row.body_id is not None:
        tx.bodies.delete([row.body_id])
    if row.deliveries:
        tx.history.delete_attempts([main_key(row.key)])
    if in_main(row.key):
        release_sessions(tx, [row.key])
    else:
        resolve(tx, [main_key(row.key)], "dropped")


def _move(
    tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: Final, failure: Failure | None
) -> None:
    dead_letter(tx, queue, row, verdict.reason, verdict.description, failure)


def _fault(
    tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: Final, failure: Failure | None
) -> None:
    put_back(tx, row)
    halt(tx, queue, row, verdict.reason)


def halt(tx: Transaction, queue: QueueRecord, row: MessageRow, reason: str) -> None:
    """Halt a queue, or its dead-letter subqueue, because of a message."""
    current = tx.queues.by_id(queue.queue_id)
    assert current is not None
    error = _latest_error(tx, row)
    culprit = CulpritRecord(sequence_of(row.key), row.delivery_count, row.cycle, reason, tx.now, error)
    halted_by = msgspec.json.encode(culprit).decode()
    if not in_main(row.key):
        if current.dead_letter_halted_by is not None:
            return
        tx.queues.save(dataclasses.replace(current, dead_letter_halted_by=halted_by))
    else:
        # The first culprit remains the one to decide on. A disabled queue stays disabled.
        if current.halted_by is not None:
            return
        status = QueueStatus.HALTED if current.status is QueueStatus.ACTIVE else current.status
        tx.queues.save(dataclasses.replace(current, status=status, halted_by=halted_by))
    note(
        tx, "queue_halted", queue, sequence_of(row.key),
        delivery_count=row.delivery_count, cycle=row.cycle, reason=reason, dead_letter=not in_main(row.key),
    )  # fmt: skip


def _drop(
    tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: Final, failure: Failure | None
) -> None:
    tx.queues.count_discarded(queue.queue_id, dropped=1)
    error_type = failure.type if failure else None
    note(tx, "dropped", queue, sequence_of(row.key), reason=verdict.reason, error_type=error_type)
    if _is_expired(tx, row):
        target, why = _sender_queue(tx, queue, row)
        if target is not None:
            expired = Final(verdict.disposition, EXPIRED_REASON, EXPIRED_TEXT)
            return_to_sender(tx, queue, target, row, expired, why)
            return
    remove(tx, row)


def _reject(
    tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: Final, failure: Failure | None
) -> None:
    target, why = _sender_queue(tx, queue, row)
    if target is None and not in_main(row.key):
        # A dead letter cannot move further within its queue, and must not be lost.
        target = tx.queues.by_path(SYSTEM_DEAD_LETTER_QUEUE)
    if target is None:
        dead_letter(tx, queue, row, "Rejected", verdict.description, failure)
    else:
        return_to_sender(tx, queue, target, row, verdict, why)


def reject(
    tx: Transaction,
    queue: QueueRecord,
    row: MessageRow,
    reason: str | None,
    description: str | None,
    failure: Failure | None = None,
) -> None:
    """Return a message to its sender's dead-letter queue, at its receiver's request."""
    verdict = Final(Disposition.REJECT, reason or "Rejected", description or "Rejected by its receiver.")
    _reject(tx, queue, row, verdict, failure)


def _sender_queue(
    tx: Transaction, queue: QueueRecord, row: MessageRow
) -> tuple[QueueRecord | None, str | None]:
    """Return the queue the sender wants its undeliverable messages in.

    If it cannot take the message, return the system's queue, which takes everything, and the reason.
    """
    path = decode_headers(row.headers).dead_letter_queue
    if path is None:
        return None, None
    target, why = tx.queues.by_path(path.lower()), None
    if path.lower() != SYSTEM_DEAD_LETTER_QUEUE:
        trouble = refusal(tx, path, len(tx.body(row.key)) + len(row.headers or b""))
        if trouble is not None:
            why = trouble.text
        elif target is not None and not keeps_rejected(target):
            why = f"{target.path!r} cannot take rejected messages: it is not a plain queue."
        if why is not None:
            target = tx.queues.by_path(SYSTEM_DEAD_LETTER_QUEUE)
    return (None if target is None or target.queue_id == queue.queue_id else target), why


def destination_of(tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: str) -> str | None:
    """Return the path that a verdict sends a message to; None: it stays in its queue, or is deleted.

    Forwarding of that path is not looked through.
    """
    disposition = DISPOSITIONS.get(verdict)
    target: QueueRecord | None = None
    if disposition is Disposition.REJECT or (disposition is Disposition.DROP and _is_expired(tx, row)):
        target, _ = _sender_queue(tx, queue, row)
        if target is None and not in_main(row.key):
            target = tx.queues.by_path(SYSTEM_DEAD_LETTER_QUEUE)
    if target is not None:
        return target.path
    becomes_letter = disposition in (Disposition.MOVE, Disposition.REJECT) and in_main(row.key)
    return queue.options.forward_dead_lettered_messages_to if becomes_letter else None


def _is_expired(tx: Transaction, row: MessageRow) -> bool:
    return row.expires is not None and row.expires <= tx.now


def keeps_rejected(target: QueueRecord) -> bool:
    """Return whether an entity can take rejected messages: it must be a queue open to all receivers."""
    return target.kind is EntityKind.QUEUE and admission_of(target).undeliverable is None


def return_to_sender(
    tx: Transaction,
    queue: QueueRecord,
    target: QueueRecord,
    row: MessageRow,
    verdict: Final,
    instead: str | None = None,
) -> None:
    """Put a message into its sender's dead-letter queue, with a negative acknowledgement.

    `instead`: why it does not go to the queue that the sender named.
    """
    headers = decode_headers(row.headers)
    system = target.path.lower() == SYSTEM_DEAD_LETTER_QUEUE
    returned = _replace(
        headers,
        # If rejected there, it goes to the system's queue; if rejected there too, it is quarantined.
        dead_letter_queue=None if system else SYSTEM_DEAD_LETTER_QUEUE,
        negative_acknowledgement=NegativeAcknowledgement(
            queue.path, sequence_of(row.key), REJECTED_CODE, f"{verdict.reason}: {verdict.description}"
        ),
    )
    encoded = encode_headers(returned)
    too_large = len(encoded) > MAX_HEADERS_SIZE
    key = tx.sequences.take_key(target, chosen_key(headers.session_id, headers.partition_key))
    body = None if row.body_id is not None else tx.body(row.key)
    moved = _replace(
        row,
        key=key,
        state=FRESH,
        due=active_due(tx, target.queue_id, None),
        expires=None,
        enqueued=tx.now,
        session_id=headers.session_id if target.options.requires_session else None,
        delivery_count=0,
        cycle_attempts=0,
        cycle=0,
        deferred=0,
        suspect=0,
        enqueued_sequence_number=sequence_of(row.key),
        headers=row.headers if too_large else encoded,
    )
    tx.delete_messages([row.key])
    tx.insert_row(moved, body)
    tx.rates.count(target.queue_id, SENT)
    tx.history.move_attempts(main_key(row.key), key)
    if in_main(row.key):
        release_sessions(tx, [row.key])
    else:
        resolve(tx, [main_key(row.key)], "rejected")
    touch(tx, target)
    instead_of = {} if instead is None else {"instead_of": headers.dead_letter_queue, "because": instead}
    note(
        tx, "rejected", queue, sequence_of(row.key), reason=verdict.reason, to=target.path, **instead_of
    )  # fmt: skip
    if too_large:
        dead_letter(tx, target, moved, HEADERS_REASON, HEADERS_TEXT)
    elif target.options.requires_session and headers.session_id is None:
        dead_letter(tx, target, moved, SESSION_REASON, SESSION_TEXT)


DISPOSITION_ACTIONS = {
    Disposition.MOVE: _move,
    Disposition.FAULT: _fault,
    Disposition.DROP: _drop,
    Disposition.REJECT: _reject,
}


def in_unit(queue: QueueRecord, row: MessageRow) -> bool:
    """Return whether a message belongs to a session that is one unit."""
    return queue.options.whole_sessions and row.session_id is not None and in_main(row.key)


def set_aside(
    tx: Transaction,
    queue: QueueRecord,
    row: MessageRow,
    act: Callable[[MessageRow], None],
    shared: Disposition,
    reason: str | None,
) -> None:
    """Dispose of a message by `act`, and of the rest of a session that is one unit, in order.

    `shared`: the action on the rest of the session.
    """
    if not in_unit(queue, row):
        act(row)
        return
    assert row.session_id is not None
    text = f"Message {sequence_of(row.key)} of its session was poison: {reason}."
    verdict = Final(shared, SESSION_POISONED, text)
    messages = tx.sessions.messages(queue.queue_id, row.session_id)
    # Read before anything is written: what a commit has written, its plan cannot read.
    rows = tx.rows([message.key for message in messages])
    if len(rows) > 1:
        tx.look_ahead(list(rows))
    for message in messages:
        if message.key == row.key:
            act(row)
        elif message.state != SCHEDULED and (other := rows.get(message.key)) is not None:
            if message.state == LOCKED:
                other = end_attempt(tx, other, Outcome.RELEASED)
            DISPOSITION_ACTIONS[shared](tx, queue, other, verdict, None)


def conclude(
    tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: Final, failure: Failure | None = None
) -> None:
    """Apply a final verdict to a message, and to its session if that is one unit."""

    action = DISPOSITION_ACTIONS[verdict.disposition]
    if verdict.disposition is Disposition.FAULT or not in_unit(queue, row):
        action(tx, queue, row, verdict, failure)
        return

    def act(row: MessageRow) -> None:
        action(tx, queue, row, verdict, failure)

    set_aside(tx, queue, row, act, verdict.disposition, verdict.reason)


def dispose(
    tx: Transaction, queue: QueueRecord, row: MessageRow, disposition: Disposition, reason: str
) -> None:
    """Apply a disposition to a message at an operator's request."""
    conclude(tx, queue, row, Final(disposition, reason, "By an operator's verdict."))
