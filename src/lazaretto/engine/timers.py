"""Processes due timers: expired locks, delays, schedules and times to live."""

from __future__ import annotations

import dataclasses

import msgspec

from lazaretto.engine.claims.end_claims import end_due_claims
from lazaretto.engine.command import KEPT
from lazaretto.engine.entities.topics import end_idle
from lazaretto.engine.outcome.attempts import end_attempt, note_rollback, put_back
from lazaretto.engine.outcome.dispositions import expire
from lazaretto.engine.outcome.send_back import MOST_IN_UNIT, takes_units
from lazaretto.engine.outcome.set_aside import sweep_purged
from lazaretto.engine.outcome.verdicts import fail
from lazaretto.engine.routing.deliver import pass_all_on, pass_on_scheduled
from lazaretto.engine.routing.forwards import active_due, forwards
from lazaretto.engine.workers.workers import blame, blame_client, bury
from lazaretto.model.entities import EntityKind
from lazaretto.model.keys import in_main, queue_of, sequence_of
from lazaretto.model.policy import Outcome
from lazaretto.model.rates import KEPT as KEPT_RATES
from lazaretto.model.rates import SPANS, start_of
from lazaretto.store.records.messages import (
    DELAYED,
    FRESH,
    LOCKED,
    LOST,
    READY,
    SCHEDULED,
    SUSPECT,
    MessageRow,
    QueueRecord,
)
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

#: How long events and resolved dead letters are kept, in microseconds: 30 days.
HISTORY = 30 * 86_400 * 1_000_000

#: How many due timers a receive processes in its commit before it takes messages.
SWEEP = 256

#: The setting of the store that says when outdated history was last removed.
_CLEANED = "cleaned"

#: How many messages of a queue are forwarded at a time.
_BACKLOG = 100


def sweep(tx: Transaction, limit: int) -> int:
    """Process due timers, up to `limit`; return how many there were."""
    total, count = 0, 1
    # One timer triggers another: an expired lock frees a message that has itself expired.
    while count and total < limit and tx.anything_due():
        count = _sweep_once(tx, limit)
        total += count
        if tx.plans:
            # What this has changed is not there to be looked at.
            break
    return total


def catch_up(tx: Transaction) -> bool:
    """Process due timers before messages are taken, up to a limit; return whether that was all.

    If not, a receive that finds nothing tries again in another commit: more timers may free messages.
    """
    count = sweep(tx, SWEEP)
    return count < SWEEP and not (count and tx.plans)


def _sweep_once(tx: Transaction, limit: int) -> int:
    rows = tx.due(limit)
    passed = 0
    lost: set[tuple[int, int | None]] = set()
    judged: set[int] = set()
    clients: dict[int, list[MessageRow]] = {}
    for row in rows:
        if row.key in judged:
            continue
        queue = tx.queues.by_id(queue_of(row.key))
        if queue is None:
            # The queue was deleted. Its messages are removed in chunks, and this one needs no timer.
            tx.save_row(msgspec.structs.replace(row, due=None))
            continue
        if row.state == LOCKED:
            if row.locked_by is not None and row.locked_by.endswith(LOST):
                clients.setdefault(queue.queue_id, []).append(row)
                continue
            dead = row.locked_by is not None and tx.workers.is_dead(row.locked_by)
            if dead and row.locked_by is not None:
                # A host's leases tell what it had begun, and what it had only taken.
                judged |= bury(tx, row.locked_by)
                if row.key in judged:
                    continue
            # Expired locks of one delivery count as one rolled-back receive.
            if in_main(row.key) and (queue.queue_id, row.lock_token) not in lost:
                lost.add((queue.queue_id, row.lock_token))
                note_rollback(tx, queue)
            if dead and row.locked_by is not None:
                judged |= _bury_locks(tx, queue, row, row.locked_by)
            else:
                fail(tx, queue, row, Outcome.LOCK_EXPIRED)
        else:
            # A message that was forwarded together with others is gone.
            passed += _come_due(tx, queue, row) if not passed or tx.row(row.key) is not None else 0
    for queue_id, of_clients in clients.items():
        queue = tx.queues.by_id(queue_id)
        if queue is not None:
            blame_client(tx, queue, of_clients)
    sessions = tx.sessions.due(limit)
    for session in sessions:
        queue = tx.queues.by_id(session.queue_id)
        if queue is not None:
            release_held(tx, queue, session.session_id, Outcome.LOCK_EXPIRED)
        tx.sessions.unlock(session.queue_id, session.session_id)
    idle = tx.queues.idle(limit)
    for entity in idle:
        # A subscription may have gone with its topic.
        if tx.queues.by_id(entity.queue_id) is not None:
            end_idle(tx, entity)
    return max(len(rows) + passed, len(sessions), end_due_claims(tx, limit), len(idle))


def _bury_locks(tx: Transaction, queue: QueueRecord, row: MessageRow, worker: str) -> set[int]:
    """Blame all messages of a queue that a dead worker held, also under locks that have not expired."""
    until = tx.now + round(queue.options.lock_duration * 1_000_000)
    rows = tx.workers.locked_by(queue.queue_id, worker, until)
    blame(tx, worker, rows, alone=len(rows) == 1)
    return {row.key for row in rows}


def _come_due(tx: Transaction, queue: QueueRecord, row: MessageRow) -> int:
    """Process a message whose time has come; return how many others were processed with it."""
    replace = msgspec.structs.replace
    if row.expires is not None and row.expires <= tx.now:
        expire(tx, queue, row)
    elif row.state == SCHEDULED:
        if queue.kind is EntityKind.TOPIC or forwards(queue):
            pass_on_scheduled(tx, queue, row)
            return 0
        # It enters the queue now: at the end, with a new number, as in Service Bus.
        active = replace(
            row,
            state=FRESH,
            due=row.expires,
            enqueued=tx.now,
            enqueued_sequence_number=sequence_of(row.key),
        )
        tx.save_row(active, tx.sequences.take_key_beside(row.key))
    elif row.state == DELAYED:
        due = active_due(tx, queue.queue_id, row.expires) if in_main(row.key) else None
        state = SUSPECT if row.suspect else READY
        tx.save_row(replace(row, state=state, due=due, moves=row.moves + 1))
    elif forwards(queue) and in_main(row.key):
        # A part of a unit would be taken for a unit.
        return pass_all_on(tx, queue, MOST_IN_UNIT if takes_units(tx, queue) else _BACKLOG)
    else:
        # It was to be forwarded, but its queue is now disabled.
        tx.save_row(replace(row, due=row.expires))
    return 0


def release_held(tx: Transaction, queue: QueueRecord, session_id: str, outcome: Outcome) -> None:
    """End the attempts on all messages that a session's former receiver still holds."""
    rows = tx.sessions.locked_messages(queue.queue_id, session_id)
    if rows and outcome is Outcome.LOCK_EXPIRED:
        note_rollback(tx, queue)
        worker = rows[0].locked_by
        if worker is not None and tx.workers.is_dead(worker):
            blame(tx, worker, rows, alone=len(rows) == 1)
            return
    for suspect in rows:
        # A poison message may have removed the rest of its session.
        row = tx.row(suspect.key)
        if row is None or row.state != LOCKED:
            continue
        if outcome is Outcome.LOCK_EXPIRED:
            fail(tx, queue, row, outcome)
        else:
            put_back(tx, end_attempt(tx, row, outcome))


@dataclasses.dataclass(slots=True)
class Sweep(Operation[bool]):
    """Process due timers; return whether there may be more."""

    limit: int = 500

    # If this work is lost, the next process to look repeats it.
    durable = False
    foreseeable = True

    def run(self, tx: Transaction) -> bool:
        count = sweep(tx, self.limit)
        return count >= self.limit or (tx.plans and count > 0)


def cleaned_at(tx: Transaction) -> int | None:
    """Return when outdated history was last removed, by whichever process."""
    value = tx.access.setting(_CLEANED)
    return int(value) if value else None


@dataclasses.dataclass(slots=True)
class CleanUp(Operation[bool]):
    """Remove some outdated history; return whether there may be more."""

    limit: int = 1000

    durable = False

    def run(self, tx: Transaction) -> bool:
        more = tx.queues.remove_deleted(self.limit)
        more = tx.repairs.forget(tx.now - HISTORY) or more
        more = tx.commands.forget(tx.now - KEPT, self.limit) or more
        more = tx.access.forget(tx.now, self.limit) or more
        more = sweep_purged(tx, self.limit) or more
        for span, minutes in SPANS.items():
            before = start_of(tx.now, minutes) - KEPT_RATES[span] * minutes
            more = tx.rates.forget(minutes, before, self.limit) or more
        more = tx.history.forget_old(tx.now - HISTORY, self.limit) or more
        if not more:
            tx.access.save_setting(_CLEANED, str(tx.now))
        return more
