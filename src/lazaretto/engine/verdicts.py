"""Charges failed attempts, asks the policy for its verdict, and carries the verdict out."""

from __future__ import annotations

import msgspec

from lazaretto.engine import conversations
from lazaretto.engine.attempts import end_attempt, put_back
from lazaretto.engine.dispositions import conclude, hold_session
from lazaretto.entities import PoisonSession
from lazaretto.failure import HANDLER_TIMEOUT, OUT_OF_MEMORY, WORKER_CRASHED, Failure
from lazaretto.keys import dead_key, in_main, subqueue_of
from lazaretto.policy import Disposition, Final, Outcome, Retry, Verdict, decide
from lazaretto.store.contract import Transaction
from lazaretto.store.records import MessageRow, QueueRecord

_replace = msgspec.structs.replace

#: Errors that are a dead letter's reason by themselves, when the last attempt ended with one.
REASONS = (WORKER_CRASHED, HANDLER_TIMEOUT, OUT_OF_MEMORY)


def fail(
    tx: Transaction,
    queue: QueueRecord,
    row: MessageRow,
    outcome: Outcome,
    failure: Failure | None = None,
    delay: float | None = None,
) -> Verdict:
    """End an attempt that failed, by the queue's policy, and return the verdict.

    `delay` is the consumer's wish, in seconds.

    A dead-letter subqueue without a policy of its own counts nothing, as in Service Bus.
    """
    policy = queue.options.policy_of(subqueue_of(row.key))
    if policy is None:
        end_attempt(tx, row, outcome, failure)
        put_back(tx, row, delay)
        return Retry()
    row = end_attempt(tx, row, outcome, failure)
    if queue.options.dialogs:
        conversations.failed(tx, row, outcome, failure)
    reason = failure.type if failure is not None and failure.type in REASONS else None
    verdict = decide(policy, row.counters, outcome, tx.random_fraction(), reason)
    carry_out(tx, queue, row, verdict, failure, delay)
    return verdict


def carry_out(
    tx: Transaction,
    queue: QueueRecord,
    row: MessageRow,
    verdict: Verdict,
    failure: Failure | None = None,
    delay: float | None = None,
) -> None:
    """Do to a message what the policy decided."""
    if isinstance(verdict, Retry):
        if verdict.new_cycle:
            row = _replace(row, cycle=row.cycle + 1, cycle_attempts=0)
        put_back(tx, row, verdict.delay if delay is None else delay, through_retry=verdict.new_cycle)
        return
    _finish(tx, queue, row, verdict, failure)


def _finish(
    tx: Transaction, queue: QueueRecord, row: MessageRow, verdict: Final, failure: Failure | None
) -> None:
    """Carry out a final verdict, and what it means for the message's session."""
    mode = queue.options.on_poison_session
    in_session = row.session_id is not None and in_main(row.key)
    if in_session and queue.options.dialogs and verdict.reason == conversations.INVALID_REASON:
        # What can never be processed is answered at once, however poison is dealt with.
        mode = PoisonSession.END
    if in_session and mode is PoisonSession.BLOCK and verdict.disposition is not Disposition.FAULT:
        put_back(tx, row)
        hold_session(tx, queue, row, mode, verdict.reason)
        return
    conclude(tx, queue, row, verdict, failure)
    if not in_session or verdict.disposition is Disposition.FAULT:
        return
    if mode is PoisonSession.PARK:
        # What was dropped or returned will not come back, so that there is nothing to wait for.
        if tx.row(dead_key(row.key)) is not None:
            hold_session(tx, queue, row, mode, verdict.reason)
    elif mode is PoisonSession.END:
        conversations.end_poisoned(tx, queue, row, verdict)
    elif queue.options.dialogs:
        conversations.went_aside(tx, queue, row, verdict.reason)
