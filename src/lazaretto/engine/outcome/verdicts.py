"""Counts failed attempts, asks the policy for its verdict, and applies it."""

from __future__ import annotations

import logging

import msgspec

from lazaretto.engine.log import tell
from lazaretto.engine.outcome.attempts import end_attempt, put_back
from lazaretto.engine.outcome.breakers import is_in_outage
from lazaretto.engine.outcome.dispositions import conclude, hold_session
from lazaretto.engine.queue_hooks import hooks_of
from lazaretto.model.entities import PoisonSession
from lazaretto.model.failure import HANDLER_TIMEOUT, OUT_OF_MEMORY, WORKER_CRASHED, Failure, short_error
from lazaretto.model.keys import dead_key, in_main, queue_of, sequence_of, subqueue_of
from lazaretto.model.policy import (
    RETRY,
    Disposition,
    Final,
    Outcome,
    PoisonVerdict,
    Retry,
    Verdict,
    charge,
    decide,
)
from lazaretto.store.records.messages import MessageRow, QueueRecord
from lazaretto.store.sql.transaction import Transaction

_replace = msgspec.structs.replace

#: Errors whose name becomes the reason of the dead letter if the last attempt ended with one.
REASONS = (WORKER_CRASHED, HANDLER_TIMEOUT, OUT_OF_MEMORY)


def fail(
    tx: Transaction,
    queue: QueueRecord,
    row: MessageRow,
    outcome: Outcome,
    failure: Failure | None = None,
    delay: float | None = None,
    poison: PoisonVerdict | None = None,
) -> Verdict:
    """End an attempt that failed, by the queue's policy, and return the verdict.

    `delay`: the retry delay that the consumer asks for, in seconds; `poison`: the decision of its error
    handler, if this was the last attempt.

    A dead-letter subqueue without its own policy counts no attempts, as in Service Bus.
    """
    policy = queue.options.policy_of(subqueue_of(row.key))
    if policy is None:
        _tell(tx, queue, row, f"attempt {row.deliveries}", outcome, failure)
        end_attempt(tx, row, outcome, failure)
        put_back(tx, row, delay)
        return Retry()
    if is_in_outage(tx, queue, row, outcome, failure):
        # A commit that opens a breaker is not planned, and may have refunded attempts at this message.
        row = row if tx.plans else tx.row(row.key) or row
        put_back(tx, end_attempt(tx, row, Outcome.RELEASED, failure))
        return Retry()
    row = end_attempt(tx, row, outcome, failure)
    _tell(tx, queue, row, policy.shown_attempt(row), outcome, failure)
    hooks_of(queue).on_failed(tx, row, outcome, failure)
    verdict = decide(policy, row, outcome, tx.random_fraction(), _reason(failure))
    if isinstance(verdict, Final) and poison is not None and allowed(poison, row.key):
        return _overrule(tx, queue, row, verdict, poison, failure, delay)
    carry_out(tx, queue, row, verdict, failure, delay)
    return verdict


def _tell(
    tx: Transaction,
    queue: QueueRecord,
    row: MessageRow,
    attempt: str,
    outcome: Outcome,
    failure: Failure | None,
) -> None:
    """Log a failed attempt and its error, but no content of the message."""
    error = outcome.value if failure is None else short_error(failure.type, failure.message)
    number = sequence_of(row.key)
    tell(
        tx, logging.WARNING, queue.path,
        f"{attempt} at message {number} ({row.message_id!r}) failed: {error}",
        event="attempt_failed", sequence_number=number, message_id=row.message_id, attempt=row.deliveries,
        outcome=outcome.value, error_type=None if failure is None else failure.type,
    )  # fmt: skip


def _reason(failure: Failure | None) -> str | None:
    return failure.type if failure is not None and failure.type in REASONS else None


def foretell(tx: Transaction, key: int, outcome: Outcome, failure: Failure | None) -> Final | None:
    """Return the final verdict if the current attempt ends like this, None if a retry follows."""
    row, queue = tx.row(key), tx.queues.by_id(queue_of(key))
    policy = None if queue is None else queue.options.policy_of(subqueue_of(key))
    if row is None or policy is None:
        return None
    verdict = decide(policy, charge(row.counters, outcome), outcome, 0.0, _reason(failure))
    return verdict if isinstance(verdict, Final) else None


def allowed(poison: PoisonVerdict, key: int) -> bool:
    """Return whether an error handler may decide this: a dead letter cannot be moved further."""
    return poison is not Disposition.MOVE or in_main(key)


def _overrule(
    tx: Transaction,
    queue: QueueRecord,
    row: MessageRow,
    verdict: Final,
    poison: PoisonVerdict,
    failure: Failure | None,
    delay: float | None,
) -> Verdict:
    """Apply an error handler's decision instead of the policy's; return it as the verdict."""
    if poison == RETRY:
        put_back(tx, _replace(row, cycle_attempts=0, cycle=0), delay)
        return Retry()
    assert isinstance(poison, Disposition)
    verdict = verdict._replace(disposition=poison)
    carry_out(tx, queue, row, verdict, failure, decided=True)
    return verdict


def carry_out(
    tx: Transaction,
    queue: QueueRecord,
    row: MessageRow,
    verdict: Verdict,
    failure: Failure | None = None,
    delay: float | None = None,
    *,
    decided: bool = False,
) -> None:
    """Apply a verdict to a message, and a final one to its session, too.

    `decided`: an error handler has decided on this message, so its session need not wait.
    """
    if isinstance(verdict, Retry):
        if verdict.new_cycle:
            row = _replace(row, cycle=row.cycle + 1, cycle_attempts=0)
        put_back(tx, row, verdict.delay if delay is None else delay, through_retry=verdict.new_cycle)
        return
    hooks = hooks_of(queue)
    mode = hooks.poison_session(queue, verdict)
    in_session = row.session_id is not None and in_main(row.key)
    blocks = mode is PoisonSession.BLOCK and not decided
    if in_session and blocks and verdict.disposition is not Disposition.FAULT:
        put_back(tx, row)
        hold_session(tx, queue, row, mode, verdict.reason)
        return
    conclude(tx, queue, row, verdict, failure)
    if not in_session or verdict.disposition is Disposition.FAULT:
        return
    if mode is PoisonSession.PARK:
        # A dropped or returned message does not come back, so the session need not wait.
        if tx.row(dead_key(row.key)) is not None:
            hold_session(tx, queue, row, mode, verdict.reason)
    else:
        hooks.on_poison(tx, queue, row, verdict)
