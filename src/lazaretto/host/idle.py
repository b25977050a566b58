"""Tells whether a handler has work left, or why the rest cannot be delivered."""

from __future__ import annotations

from lazaretto.engine.entities.queues import describe, require_queue
from lazaretto.engine.entities.status import stop_error
from lazaretto.engine.messages.sessions import held_error
from lazaretto.engine.outcome.breakers import breaker_of
from lazaretto.errors import EntityError, QueueDisabled
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.descriptions import QueueDescription
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.keys import lower_bound, upper_bound
from lazaretto.store.records.messages import DEFERRED, QueueRecord
from lazaretto.store.sql.transaction import Transaction


def work_left(tx: Transaction, path: EntityPath, failing: int) -> bool | EntityError:
    """Return whether messages can still be delivered, or why the rest cannot be.

    `failing`: dead letters that failed and have no attempt limit.
    """
    queue = require_queue(tx, path)
    description = describe(tx, queue)
    if not _count(description, path, failing):
        return False
    if description.counts.locked:
        # Some receiver holds messages.
        return True
    return stop_error(queue, path.subqueue) or _kept_back(tx, queue, path, description) or True


def _count(description: QueueDescription, path: EntityPath, failing: int) -> int:
    counts = description.counts
    if path.subqueue is not Subqueue.MAIN:
        return max(0, counts.dead_letter - failing)
    return counts.active + counts.locked + counts.suspect + counts.delayed + counts.scheduled


def _kept_back(
    tx: Transaction, queue: QueueRecord, path: EntityPath, description: QueueDescription
) -> EntityError | None:
    if path.subqueue is not Subqueue.MAIN:
        return None
    breaker = breaker_of(queue)
    if breaker is not None and breaker.status is BreakerStatus.HELD_OPEN:
        return QueueDisabled(
            f"the breaker of {queue.path!r} is held open by an operator: set it to auto to resume delivery"
        )
    if not description.held_sessions or _has_open_session(tx, queue):
        return None
    first, *_ = tx.sessions.held(lower_bound(queue.queue_id), upper_bound(queue.queue_id), 1)
    return held_error(queue, first.session_id, first.held_by)


def _has_open_session(tx: Transaction, queue: QueueRecord) -> bool:
    """Return whether a session that is not held has messages other than deferred ones."""
    session = tx.sessions.next_id(queue.queue_id)
    while session is not None:
        if any(m.state != DEFERRED for m in tx.sessions.messages(queue.queue_id, session)):
            return True
        session = tx.sessions.next_id(queue.queue_id, session)
    return False
