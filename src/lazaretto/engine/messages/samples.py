"""Keeps some of the messages that complete, as examples of good ones."""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.engine.redaction import redaction_of
from lazaretto.model.headers import encode_headers
from lazaretto.model.reservoir import LONGEST_BODY, choose, is_time_to_look, superfluous
from lazaretto.store.records.messages import QueueRecord, SampleRecord
from lazaretto.store.sql.transaction import Transaction


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
