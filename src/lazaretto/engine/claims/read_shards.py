"""What is noted of the tasks that read a claim's shards, and whom it blames when one of them dies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from lazaretto.engine.claims.consumers import require_driver
from lazaretto.engine.outcome.attempts import end_attempt, put_back
from lazaretto.engine.workers.workers import blame
from lazaretto.model.entities import EntityPath
from lazaretto.model.keys import queue_of
from lazaretto.model.policy import Outcome
from lazaretto.store.contract.claim_contract import (
    ShardRecord,
)
from lazaretto.store.contract.records import MessageRow
from lazaretto.store.contract.transaction_contract import Operation, Transaction

_replace = msgspec.structs.replace


@dataclasses.dataclass(slots=True)
class StartShard(Operation[bool | None]):
    """Note that a task reads a shard; the answer is whether it is to go one message at a time.

    It is, when the shard was read before: then a message may have taken the reader down. None: the
    claim is not open any more, and there is nothing to read. `begun`: whoever reads works on the
    messages, too.
    """

    path: EntityPath
    consumer: str
    epoch: int
    token: int
    worker: str
    begun: bool = True

    durable = False

    def run(self, tx: Transaction) -> bool | None:
        require_driver(tx, self.path, self.consumer, self.epoch)
        shard = tx.claims.shard(self.token)
        if shard is None:
            return None
        if shard.started is not None:
            # An earlier attempt of the same task: nothing else was at work on this one.
            blame_shards(tx, [shard], self.worker, alone=True)
        read_epoch = self.epoch if self.begun else shard.read_epoch
        tx.claims.save_shard(_replace(shard, reads=shard.reads + 1, read_epoch=read_epoch, started=None))
        first = held_row(tx, shard, shard.first)
        return shard.careful or shard.reads > 0 or (first is not None and first.suspect > 0)


@dataclasses.dataclass(slots=True)
class BeginShard(Operation[None]):
    """Note that the messages of a shard, read by another process, are worked on from here on."""

    epoch: int
    token: int

    durable = False

    def run(self, tx: Transaction) -> None:
        shard = tx.claims.shard(self.token)
        if shard is not None:
            tx.claims.save_shard(_replace(shard, read_epoch=self.epoch))


@dataclasses.dataclass(slots=True)
class MarkStarted(Operation[None]):
    """Note which message of a shard is being worked on: the one to blame, should the worker die; or none."""

    token: int
    key: int | None

    durable = False

    def run(self, tx: Transaction) -> None:
        shard = tx.claims.shard(self.token)
        if shard is not None:
            tx.claims.save_shard(_replace(shard, started=self.key))


def blame_shards(tx: Transaction, shards: Sequence[ShardRecord], worker: str, *, alone: bool) -> None:
    """Blame what shards were at for the latest death, and for those before in the same claim."""
    rows = []
    for shard in shards:
        row = held_row(tx, shard, shard.started)
        if row is not None:
            _release_behind(tx, shard, row)
            rows.append(_replace(row, suspect=max(row.suspect, 1) + shard.reads - 1))
    if rows:
        blame(tx, worker or "a driver", rows, alone=alone)


def _release_behind(tx: Transaction, shard: ShardRecord, culprit: MessageRow) -> None:
    """Give back the messages of a session that stand behind one that leaves the claim."""
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
