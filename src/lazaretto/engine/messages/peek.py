"""Peeks at messages in every state."""

from __future__ import annotations

import msgspec

from lazaretto.engine.entities.queues import refuse_topic, require_queue
from lazaretto.errors import NotAllowed
from lazaretto.model.entities import EntityPath, MessageState, Subqueue
from lazaretto.model.failure import short_error
from lazaretto.model.keys import lower_bound, main_key, upper_bound
from lazaretto.model.messages import PeekedMessage
from lazaretto.store.contract.transaction_contract import Transaction


def peek(
    tx: Transaction, path: EntityPath, limit: int, from_sequence_number: int, session_id: str | None = None
) -> list[PeekedMessage]:
    """Return messages in every state, starting at a sequence number. Counts no attempts.

    `session_id`: only those of a session; what others there are does not matter to how long it takes.
    """
    queue = require_queue(tx, path)
    if path.subqueue is not Subqueue.MAIN:
        refuse_topic(queue, "it has no subqueues; peek at those of its subscriptions")
    first = lower_bound(queue.queue_id, path.subqueue) + max(0, from_sequence_number - 1)
    last = upper_bound(queue.queue_id, path.subqueue)
    if first > last:
        return []
    delayed = path.subqueue is Subqueue.RETRY
    if session_id is None:
        found = tx.peek(first, last, limit, delayed=delayed)
    elif not queue.options.requires_session or path.subqueue not in (Subqueue.MAIN, Subqueue.RETRY):
        raise NotAllowed(f"{str(path)!r} has no sessions: peek without session_id")
    else:
        keys = tx.peeked_keys(queue.queue_id, session_id, first, last, limit, delayed=delayed)
        found = sorted(tx.peek_keys(keys), key=lambda message: message.key)
    return [
        _with_error(tx, message) if message.state is MessageState.DELAYED else message for message in found
    ]


def _with_error(tx: Transaction, message: PeekedMessage) -> PeekedMessage:
    latest = tx.history.last_error(main_key(message.key))
    if latest is None:
        return message
    return msgspec.structs.replace(message, error=short_error(latest.type, latest.message))
