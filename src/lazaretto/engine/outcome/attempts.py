"""Ends attempts: records them in the history, counts them, and returns messages to their places."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from lazaretto.engine.log import note
from lazaretto.engine.routing.forwards import active_due
from lazaretto.model.entities import QueueStatus
from lazaretto.model.failure import Failure
from lazaretto.model.keys import in_main, main_key, queue_of, sequence_of
from lazaretto.model.policy import Outcome, charges
from lazaretto.model.rates import FAILED
from lazaretto.model.site import site_in
from lazaretto.store.records.messages import (
    DEFERRED,
    DELAYED,
    READY,
    SUSPECT,
    AttemptRecord,
    MessageRow,
    QueueRecord,
)
from lazaretto.store.sql.transaction import Transaction

_replace = msgspec.structs.replace

#: How many of a message's latest attempts are kept: endless retries must not fill the disk.
HISTORY_LIMIT = 100

#: Outcomes that count as failed attempts.
_FAILED = (Outcome.FAILED, Outcome.INVALID, Outcome.LOST, Outcome.LOCK_EXPIRED)
#: Outcomes that do not show whether a suspect kills its worker.
_UNTRIED = (Outcome.LOST, Outcome.RELEASED)


def end_attempt(
    tx: Transaction, row: MessageRow, outcome: Outcome, failure: Failure | None = None
) -> MessageRow:
    """Record an attempt that did not complete, and return the row with the attempt counted."""
    record_attempt(tx, row, outcome, failure)
    if row.suspect and outcome not in _UNTRIED:
        queue = tx.queues.by_id(queue_of(row.key))
        if queue is not None:
            note_cleared(tx, queue, sequence_of(row.key), row.suspect)
        row = _replace(row, suspect=0)
    return _replace(row, **charges(row, outcome))


def note_cleared(tx: Transaction, queue: QueueRecord, sequence_number: int, suspect: int) -> None:
    """Note that a suspect ended an attempt alone without killing its worker."""
    if suspect > 1:
        note(tx, "suspect_cleared", queue, sequence_number, deaths=suspect - 1)


def record_attempt(
    tx: Transaction, row: MessageRow, outcome: Outcome, failure: Failure | None = None
) -> None:
    """Record an attempt that did not complete, without counting it."""
    tx.history.insert_attempts([(main_key(row.key), _attempt(tx, row, outcome, failure))])
    if outcome in _FAILED and in_main(row.key):
        tx.rates.count(queue_of(row.key), FAILED)
    if row.deliveries > HISTORY_LIMIT:
        tx.history.trim_attempts(main_key(row.key), row.deliveries - HISTORY_LIMIT)


def _attempt(tx: Transaction, row: MessageRow, outcome: Outcome, failure: Failure | None) -> AttemptRecord:
    return AttemptRecord(
        number=row.deliveries,
        started=row.locked_at,
        ended=tx.now,
        worker=row.locked_by,
        outcome=outcome.stored,
        error_type=failure.type if failure else None,
        error_message=failure.message if failure else None,
        stack=failure.stack if failure else None,
        site=(failure.site or site_in(failure.stack)) if failure else None,
    )


def is_simple(row: MessageRow) -> bool:
    """Return whether `return_all` can take a message: no suspect, and no history that is too long."""
    return not row.suspect and row.deliveries <= HISTORY_LIMIT


def return_all(tx: Transaction, outcomes: Sequence[tuple[MessageRow, Outcome]]) -> None:
    """End attempts of any number of messages that were released or deferred, as one by one, but together."""
    attempts = [(main_key(row.key), _attempt(tx, row, outcome, None)) for row, outcome in outcomes]
    rows: dict[int, MessageRow] = {}
    for row, outcome in outcomes:
        row = _replace(row, **charges(row, outcome))
        if row.deferred or outcome is Outcome.DEFERRED:
            rows[row.key] = _replace(row, state=DEFERRED, due=None, deferred=1)
        else:
            rows[row.key] = _replace(row, state=READY, due=active_due(tx, queue_of(row.key), row.expires))
    tx.history.insert_attempts(attempts)
    tx.save_rows(rows)


def put_back(
    tx: Transaction, row: MessageRow, delay: float | None = None, *, through_retry: bool = False
) -> None:
    """Make a message receivable again in its old place, after `delay` seconds if given.

    A message that was received as deferred stays deferred. A suspect waits to be delivered alone.
    """
    if row.deferred:
        tx.save_row(_replace(row, state=DEFERRED, due=None))
    elif delay:
        due = tx.now + round(delay * 1_000_000)
        if row.expires is not None:
            due = min(due, row.expires)
        tx.save_row(_replace(row, state=DELAYED, due=due, moves=row.moves + 1))
    else:
        moves = row.moves + 2 if through_retry else row.moves
        state = SUSPECT if row.suspect else READY
        again = active_due(tx, queue_of(row.key), row.expires)
        tx.save_row(_replace(row, state=state, due=again, moves=moves))


def note_rollback(tx: Transaction, queue: QueueRecord) -> None:
    """Count a rolled-back receive, and disable the queue after too many in a row."""
    limit = queue.options.policy.disable_after_rollbacks
    if limit is None:
        return
    count = tx.queues.rollbacks(queue.queue_id) + 1
    if count < limit:
        tx.queues.set_rollbacks(queue.queue_id, count)
        return
    tx.queues.set_rollbacks(queue.queue_id, 0)
    current = tx.queues.by_id(queue.queue_id)
    assert current is not None
    if current.status is not QueueStatus.DISABLED:
        tx.queues.save(dataclasses.replace(current, status=QueueStatus.DISABLED))
        note(tx, "queue_disabled", queue, rollbacks=count)


def note_commit(tx: Transaction, queue: QueueRecord) -> None:
    """Note that a receive was committed, which resets the count of consecutive rollbacks."""
    if queue.options.policy.disable_after_rollbacks is not None and tx.queues.rollbacks(queue.queue_id):
        tx.queues.set_rollbacks(queue.queue_id, 0)
