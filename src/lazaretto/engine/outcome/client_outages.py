"""Outages of clients of AMQP and HTTP: what a queue's breaker makes of what they settle, message by message.

A service host judges its own hand-overs. Clients name no error, so the engine goes by how many different
messages fail: see BreakerPolicy.clients.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.engine.log import note
from lazaretto.engine.outcome.breakers import breaker_of, refund, save_breaker
from lazaretto.model.breaker import (
    BreakerState,
    BreakerStatus,
    Passage,
    client_failed,
    clients_completed,
    opened,
    passage,
    probing,
)
from lazaretto.model.clock import MICROSECONDS
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.failure import Failure, short_error, shorten
from lazaretto.model.keys import in_main, lower_bound, upper_bound
from lazaretto.model.policy import COUNT_REASON, Outcome
from lazaretto.store.records.messages import FOR_CLIENTS, MessageRow, QueueRecord
from lazaretto.store.sql.transaction import Transaction

#: What stands for the fingerprint of failures that have none.
ANY_FAILURE = "clients"
#: Outcomes that many messages have in an outage. A lost connection is no sign of one.
_FAILURES = {
    Outcome.FAILED: "most messages are abandoned by their clients",
    Outcome.LOCK_EXPIRED: "the locks of most messages expire at their clients",
}
_OPEN = (BreakerStatus.OPEN, BreakerStatus.HELD_OPEN)


def is_for_clients(queue: QueueRecord) -> bool:
    """Return whether a queue's breaker is for clients too."""
    return queue.options.breaker is not None and queue.options.breaker.clients


def passage_of_client(tx: Transaction, queue: QueueRecord, path: EntityPath, limit: int) -> Passage | None:
    """Return what a receive for a client may take; None: nothing for now, as the breaker holds all back."""
    if queue.breaker is None or path.subqueue is not Subqueue.MAIN or not tx.context.identity.serves:
        return Passage(limit)
    if not is_for_clients(queue):
        return Passage(limit)
    state = breaker_of(queue)
    way = passage(state, limit, tx.now)
    if way is None and state is not None and state.status is BreakerStatus.OPEN:
        tx.look_again(lower_bound(queue.queue_id), state.probe_at)
    return way


def note_probe(tx: Transaction, queue: QueueRecord, key: int) -> None:
    """Note that a message was handed to a client as a probe."""
    state, policy = breaker_of(queue), queue.options.breaker
    if state is not None and policy is not None and state.status is BreakerStatus.OPEN:
        save_breaker(tx, queue, probing(policy, state, key, tx.now))


def note_completed_by_client(tx: Transaction, queue: QueueRecord, keys: Sequence[int]) -> None:
    """Report messages to the breaker that clients of this process have completed."""
    policy = queue.options.breaker
    if policy is None or not policy.clients or not keys or not in_main(keys[0]):
        return
    if not tx.context.identity.serves:
        return
    if queue.breaker is None:
        tx.context.identity.window(queue.queue_id, policy).note_completed(keys, tx.now / MICROSECONDS)
        return
    current = tx.queues.by_id(queue.queue_id)
    state = None if current is None else breaker_of(current)
    if current is None or state is None:
        return
    after = clients_completed(state, keys, tx.now)
    if after is state:
        return
    save_breaker(tx, current, after)
    if after is None:
        seconds = round((tx.now - state.since) / MICROSECONDS, 3)
        note(tx, "breaker_closed", current, fingerprint=state.fingerprint, seconds=seconds)
    elif after.status is not state.status:
        note(tx, "breaker_ramping", current, fingerprint=state.fingerprint, error=state.error)


def is_in_outage(
    tx: Transaction, queue: QueueRecord, row: MessageRow, outcome: Outcome, failure: Failure | None
) -> bool:
    """Report a failed attempt to the breaker; return whether it belongs to an outage, and costs nothing."""
    policy = queue.options.breaker
    if policy is None or not policy.clients or outcome not in _FAILURES or not in_main(row.key):
        return False
    if row.locked_by is None or FOR_CLIENTS not in row.locked_by:
        return False
    # It may have changed within this commit.
    current = tx.queues.by_id(queue.queue_id)
    if current is None:
        return False
    state = breaker_of(current)
    if state is None:
        window = tx.context.identity.window(queue.queue_id, policy)
        if window.note([(row.key, ANY_FAILURE)], tx.now / MICROSECONDS) is None:
            return False
        text = _FAILURES[outcome] if failure is None else short_error(failure.type, failure.message)
        since = tx.now - round(policy.window * MICROSECONDS)
        _open(tx, current, opened(policy, ANY_FAILURE, shorten(text, 200), tx.now), since)
        window.take_charges(ANY_FAILURE)
        return True
    if state.status in _OPEN:
        return True
    after = client_failed(policy, state, row.key, tx.now)
    if after.status is state.status:
        if after is not state:
            save_breaker(tx, current, after)
        return False
    _open(tx, current, after, state.ramping)
    return True


def _open(tx: Transaction, queue: QueueRecord, state: BreakerState, since: int) -> None:
    """Open the breaker, and undo what was charged since a time."""
    # First, as a commit that is planned ends here.
    save_breaker(tx, queue, state)
    charges: dict[int, int] = {}
    for lane in queue.lanes:
        charges |= tx.history.refundable(lower_bound(lane), upper_bound(lane), since)
    letters = tx.history.some_dead_letters(list(charges))
    counted = {
        key: count
        for key, count in charges.items()
        if (letter := letters.get(key)) is None or letter.resolution or letter.reason == COUNT_REASON
    }
    if counted:
        tx.history.refund(list(counted), since)
    refunded = refund(tx, queue, counted)
    note(
        tx, "breaker_opened", queue,
        fingerprint=state.fingerprint, error=state.error, given_back=refunded,
    )  # fmt: skip
