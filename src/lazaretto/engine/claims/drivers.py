"""Attaches drivers to consumers, records what their tasks read, and blames messages when they die.

A driver fences off the one before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from lazaretto.engine.claims.consumers import ConsumerOperation, DriverOperation, identified, require_claims
from lazaretto.engine.claims.end_claims import open_claims, revoke, summary_of
from lazaretto.engine.outcome.attempts import end_attempt, put_back
from lazaretto.engine.timers import catch_up
from lazaretto.engine.workers.workers import blame
from lazaretto.errors import NotAllowed
from lazaretto.model.failure import Failure
from lazaretto.model.keys import queue_of
from lazaretto.model.policy import Outcome
from lazaretto.store.records.claims import ClaimRecord, ShardRecord
from lazaretto.store.records.messages import MessageRow, QueueRecord
from lazaretto.store.sql.transaction import Transaction

_replace = msgspec.structs.replace
#: How many readers may die on a claim before a message was started, and into how many claims it is then
#: split.
_MOST_READS = 3
_NARROWER = 32


class Attached(msgspec.Struct, frozen=True):
    """A driver's attachment to a consumer: its epoch, the last ended claim, and the consumer's identity."""

    epoch: int
    settled: int
    identity: int


@dataclasses.dataclass(slots=True)
class Attach(ConsumerOperation[Attached]):
    """Become the only driver of a consumer, creating it if needed; `lease`: of its claims, in seconds."""

    driver: str
    lease: float

    def run(self, tx: Transaction) -> Attached:
        queue = require_claims(tx, self.path)
        if queue.options.whole_sessions:
            raise NotAllowed(
                f"sessions of {queue.path!r} are settled as a unit (on_poison_session=whole), but claims are "
                "settled by message: use a receiver, or set another on_poison_session"
            )
        before = identified(tx, queue, self.consumer)
        catch_up(tx)
        record = _replace(before, epoch=before.epoch + 1, driver=self.driver, attached=tx.now)
        tx.claims.save_consumer(record)
        tx.claims.renew(queue.queue_id, self.consumer, tx.now + round(self.lease * 1_000_000))
        for claim in open_claims(tx, record):
            for shard in tx.claims.shards(claim.token):
                if shard.task is not None:
                    # The tasks of this driver have numbers of their own.
                    tx.claims.save_shard(_replace(shard, task=None))
            if _unreadable(tx, claim):
                reads = max(shard.reads for shard in tx.claims.shards(claim.token))
                _narrow(tx, queue, self.consumer, claim, f"its readers went away {reads} times")
            else:
                _judge(tx, claim, before.driver)
        record = tx.claims.consumer(queue.queue_id, self.consumer) or record
        return Attached(record.epoch, record.settled, record.identity)


@dataclasses.dataclass(slots=True)
class ChargeFailure(DriverOperation[int]):
    """Charge what a driver's tasks ended with to its message; return how many messages its claim had.

    A message that is alone in its claim is charged. A larger claim is released, and its messages come again
    in smaller ones, until it is. `number`: of the claim; None: the only one, else nothing is done and the
    answer is 0.
    """

    failure: Failure
    number: int | None = None

    def run(self, tx: Transaction) -> int:
        queue, record = self.driver(tx)
        claims = [claim for claim in open_claims(tx, record) if self.number in (None, claim.number)]
        if len(claims) != 1:
            return 0
        (claim,) = claims
        if claim.rows > 1:
            _narrow(tx, queue, self.consumer, claim, f"its tasks ended with {self.failure.type}")
        else:
            shards = [_replace(shard, started=shard.first) for shard in tx.claims.shards(claim.token)]
            blame_shards(tx, shards, record.driver, alone=True, failure=self.failure)
        return claim.rows


def _unreadable(tx: Transaction, claim: ClaimRecord) -> bool:
    """Return whether a claim repeatedly killed its readers before they started a message."""
    shards = tx.claims.shards(claim.token)
    most = 1 if claim.rows > 1 and any(shard.careful for shard in shards) else _MOST_READS
    return all(shard.started is None for shard in shards) and any(shard.reads >= most for shard in shards)


def _narrow(tx: Transaction, queue: QueueRecord, consumer: str, claim: ClaimRecord, why: str) -> None:
    """Release a claim that cannot be read: its messages are redelivered in smaller claims."""
    revoke(tx, queue, claim, why)
    record = tx.claims.consumer(queue.queue_id, consumer)
    assert record is not None
    narrow = max(claim.rows // _NARROWER, 1)
    tx.claims.save_consumer(_replace(record, narrow=narrow, narrow_left=max(record.narrow_left, claim.rows)))


def _judge(tx: Transaction, claim: ClaimRecord, driver: str) -> None:
    """Blame the messages that a driver's tasks were processing, one each, when the driver died.

    If a message was the whole claim, the death counts as an attempt. For other messages the cause is
    uncertain, so each is tried alone, in its own claim. A message that is alone because larger claims could
    not be read is also blamed if it was only being read.
    """
    shards = [
        _replace(shard, started=shard.first) if shard.careful and shard.reads and claim.rows == 1 else shard
        for shard in tx.claims.shards(claim.token)
    ]
    started = [shard for shard in shards if shard.started is not None]
    for shard in started:
        tx.claims.save_shard(_replace(shard, started=None))
    alone = claim.rows == 1
    # Of several messages nobody knows whose error it is.
    blame_shards(tx, started, driver, alone=alone, failure=summary_of(claim).failure if alone else None)


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
