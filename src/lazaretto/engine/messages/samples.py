"""Keeps some of the messages that complete, as examples of good ones."""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.model.reservoir import LONGEST_BODY, choose, is_time_to_look, superfluous
from lazaretto.store.contract.records import QueueRecord
from lazaretto.store.contract.transaction_contract import Transaction


def keep_samples(tx: Transaction, queue: QueueRecord, keys: Sequence[int]) -> None:
    """Keep those of a queue's messages that are chosen, before they are removed as completed."""
    most = queue.options.kept_samples
    chosen = choose(keys) if most else []
    if not chosen:
        return
    tx.samples.keep(chosen, LONGEST_BODY)
    if is_time_to_look(chosen):
        gone = superfluous(tx.samples.standing(queue.queue_id), most, tx.now)
        if gone:
            tx.samples.remove(gone)
