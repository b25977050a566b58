"""Records what tasks read of a claim's shards, and blames messages when a task dies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from lazaretto.engine.claims.consumers import DriverOperation
from lazaretto.engine.claims.end_claims import open_claims
from lazaretto.engine.outcome.attempts import end_attempt, put_back
from lazaretto.engine.workers.workers import blame
from lazaretto.model.failure import Failure
from lazaretto.model.keys import queue_of
from lazaretto.model.policy import Outcome
from lazaretto.store.records.claims import (
    ShardRecord,
)
from lazaretto.store.records.messages import MessageRow
from lazaretto.store.sql.transaction import Transaction

_replace = msgspec.structs.replace


@dataclasses.dataclass(slots=True)
class StartShard(DriverOperation[bool | None]):
    """Record that a task reads a shard; return whether it must process one message at a time.

    It must if the shard was read before, because a message may have killed the reader. None: the claim has
    ended, and there is nothing to read. `begun`: the reader also processes the messages. `task`: the number
    of the reader, which tells it from others of this driver.
    """

    token: int
    worker: str
    begun: bool = True
    task: int = 0

    durable = False

    def run(self, tx: Transaction) -> bool | None:
        self.driver(tx)
        shard = tx.claims.shard(self.token)
        if shard is None:
            return None
        if shard.started is not None:
            # An earlier attempt of the same task: no other task was processing this message.
            blame_shards(tx, [shard], self.worker, alone=True)
        # Whoever only reads may do so several times, and be well.
        counts = self.begun or shard.read_epoch != -self.epoch
        read_epoch = self.epoch if self.begun else shard.read_epoch if shard.is_processed else -self.epoch
        tx.claims.save_shard(
            _replace(shard, reads=shard.reads + counts, read_epoch=read_epoch, started=None, task=self.task)
        )
        first = held_row(tx, shard, shard.first)
        return shard.careful or shard.reads > 0 or (first is not None and first.suspect > 0)


@dataclasses.dataclass(slots=True)
class BeginShard(DriverOperation[None]):
    """Record that processing of a shard's messages starts, which another process has read."""

    token: int
    task: int = 0

    durable = False

    def run(self, tx: Transaction) -> None:
        self.driver(tx)
        shard = tx.claims.shard(self.token)
        if shard is not None:
            tx.claims.save_shard(_replace(shard, read_epoch=self.epoch, task=self.task))


@dataclasses.dataclass(slots=True)
class MarkStarted(DriverOperation[None]):
    """Record the message of a shard in progress, to blame if the worker dies; or none.

    Without effect if the task is not the one that reads the shard now. `ended`: it ends with an error, and
    has died of nothing.
    """

    token: int
    key: int | None
    task: int = 0
    ended: bool = False

    durable = False

    def run(self, tx: Transaction) -> None:
        # What a task of an earlier driver is at must not be blamed for the deaths of a later one's.
        self.driver(tx)
        shard = tx.claims.shard(self.token)
        if shard is not None and shard.task == self.task:
            task = None if self.ended else self.task
            tx.claims.save_shard(_replace(shard, started=self.key, task=task))


@dataclasses.dataclass(slots=True)
class NoteCancellation(DriverOperation[None]):
    """Record that no task of a driver is at work any more, and that they died of nothing.

    What they have read counts as not read, and what they still note has no effect. `died`: the number of the
    one task that did die; what it was at stays to be judged.
    """

    died: int | None = None

    durable = False

    def run(self, tx: Transaction) -> None:
        _, record = self.driver(tx)
        for claim in open_claims(tx, record):
            for shard in tx.claims.shards(claim.token):
                if shard.task is not None and shard.task != self.died:
                    tx.claims.save_shard(
                        _replace(shard, reads=shard.reads - 1, read_epoch=None, started=None, task=None)
                    )


def blame_shards(
    tx: Transaction,
    shards: Sequence[ShardRecord],
    worker: str,
    *,
    alone: bool,
    failure: Failure | None = None,
) -> None:
    """Blame the messages in progress for the latest death, and for earlier ones in the same claim.

    `failure`: what they ended with, if that is known.
    """
    rows = []
    for shard in shards:
        row = held_row(tx, shard, shard.started)
        if row is not None:
            _release_behind(tx, shard, row)
            rows.append(_replace(row, suspect=max(row.suspect, 1) + shard.reads - 1))
    if rows:
        blame(tx, worker or "a driver", rows, alone=alone, failure=failure)


def _release_behind(tx: Transaction, shard: ShardRecord, culprit: MessageRow) -> None:
    """Release the messages of a session that follow one that leaves the claim."""
    if culprit.session_id is None:
        return
    for message in tx.sessions.messages(queue_of(culprit.key), culprit.session_id):
        row = held_row(tx, shard, message.key)
        if row is not None and row.key > culprit.key:
            put_back(tx, end_attempt(tx, row, Outcome.RELEASED))


def held_row(tx: Transaction, shard: ShardRecord, key: int | None) -> MessageRow | None:
    """Return a message that a shard holds."""
    row = None if key is None else tx.row(key)
    return row if row is not None and row.lock_token == shard.token else None
