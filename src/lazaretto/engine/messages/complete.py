"""Removes completed messages, keeps them for the queue's hooks, or as examples of good ones."""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.engine.outcome.attempts import note_cleared
from lazaretto.engine.outcome.breakers import note_completed_by_client
from lazaretto.engine.queue_hooks import hooks_of
from lazaretto.engine.redaction import redaction_of
from lazaretto.engine.routing.deliver import resolve
from lazaretto.model.headers import encode_headers
from lazaretto.model.keys import QUEUE_BITS, in_main, main_key
from lazaretto.model.messages import Lock, ReceivedMessage
from lazaretto.model.rates import COMPLETED
from lazaretto.model.reservoir import LONGEST_BODY, choose, is_time_to_look, superfluous
from lazaretto.store.records.messages import QueueRecord, SampleRecord
from lazaretto.store.records.plain import PlainRemoval
from lazaretto.store.sql.transaction import Transaction


def delete_completed(tx: Transaction, queue: QueueRecord, messages: Sequence[ReceivedMessage]) -> bool:
    """Remove completed messages of a subqueue; return False if the lock on any is lost."""
    by_lock = _keys_by_lock(messages)
    hooks = hooks_of(queue)
    retained = hooks.retains(queue, messages)
    if retained:
        if any(tx.held(keys, token) != set(keys) for token, keys in by_lock.items()):
            return False
    elif not tx.delete_held(queue, by_lock):
        return False
    for message in messages:
        if message.suspect:
            note_cleared(tx, queue, message.sequence_number, message.suspect)
    main = bool(messages) and in_main(messages[0].key)
    if not retained:
        _forget(tx, messages, main=main)
    hooks.on_completed(tx, queue, messages)
    policy = queue.options.breaker
    if policy is not None and policy.clients:
        note_completed_by_client(tx, queue, [message.key for message in messages])
    if main:
        tx.rates.count(queue.queue_id, COMPLETED, len(messages))
    return True


def delete_plain(tx: Transaction, queue: QueueRecord, removal: PlainRemoval) -> bool:
    """Do the same for messages of a plain queue that were taken for the first time.

    Nobody suspects them, and no hook wants them: to ask that of each takes a tenth of its completion.
    """
    messages = removal.messages
    if not tx.delete_held(queue, removal.by_lock):
        return False
    bodies = [message.body_id for message in messages if message.body_id is not None]
    if bodies:
        tx.bodies.delete(bodies)
    policy = queue.options.breaker
    if policy is not None and policy.clients:
        note_completed_by_client(tx, queue, [message.key for message in messages])
    tx.rates.count(queue.queue_id, COMPLETED, len(messages))
    return True


def count_messages(tx: Transaction, kind: int, messages: Sequence[ReceivedMessage]) -> None:
    """Count messages of one queue, unless they are of a subqueue."""
    if messages and in_main(key := messages[0].key):
        tx.rates.count(key >> QUEUE_BITS, kind, len(messages))


def _keys_by_lock(messages: Sequence[ReceivedMessage]) -> dict[int, list[int]]:
    """Return the keys of messages by the tokens of their locks."""
    by_lock: dict[int, list[int]] = {}
    before: Lock | None = None
    keys: list[int] = []
    for message in messages:
        lock = message.lock
        assert lock is not None
        # Messages received together share one object.
        if lock is not before:
            before, keys = lock, by_lock.setdefault(lock.token, [])
        keys.append(message.key)
    return by_lock


def _forget(tx: Transaction, messages: Sequence[ReceivedMessage], *, main: bool) -> None:
    """Remove what is kept of messages beside their rows. `main`: they are in no subqueue."""
    bodies: list[int] = []
    dead: list[int] = []
    retried: list[int] = []
    for message in messages:
        if message.body_id is not None:
            bodies.append(message.body_id)
        if not main:
            dead.append(main_key(message.key))
        elif message.deliveries > 1:
            retried.append(message.key)
    if bodies:
        tx.bodies.delete(bodies)
    if dead:
        resolve(tx, dead, "completed")
    if retried:
        tx.history.delete_attempts(retried)


def keep_samples(tx: Transaction, queue: QueueRecord, keys: Sequence[int]) -> None:
    """Keep those of a queue's messages that are chosen, before they are removed as completed."""
    most = queue.options.kept_samples
    chosen = choose(keys) if most else []
    if not chosen:
        return
    if queue.redacted:
        _keep_redacted(tx, queue, chosen)
    else:
        tx.samples.keep(chosen, LONGEST_BODY)
    if is_time_to_look(chosen):
        gone = superfluous(tx.samples.standing(queue.queue_id), most, tx.now)
        if gone:
            tx.samples.remove(gone)


def _keep_redacted(tx: Transaction, queue: QueueRecord, keys: Sequence[int]) -> None:
    """Keep messages without what people may not read: what is gone from the queue is nowhere else."""
    redaction = redaction_of(tx, queue.path)
    rows = {key: tx.row(key) for key in keys}
    tx.samples.put([
        SampleRecord(
            one.key, one.message_id, one.enqueued, encode_headers(redaction.headers(one.headers)),
            redaction.body(one.body), None if (row := rows[one.key]) is None else row.locked_by,
        )
        for one in tx.peek_keys(keys)
        if len(one.body) <= LONGEST_BODY
    ])  # fmt: skip
