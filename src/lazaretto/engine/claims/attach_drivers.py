"""Attaches a driver to a consumer: fences off the previous one, and attributes its death to messages."""

from __future__ import annotations

import dataclasses

import msgspec

from lazaretto.engine.claims.consumers import ConsumerOperation, DriverOperation, identified, require_claims
from lazaretto.engine.claims.end_claims import open_claims, revoke, summary_of
from lazaretto.engine.claims.read_shards import blame_shards
from lazaretto.engine.timers import catch_up
from lazaretto.errors import NotAllowed
from lazaretto.model.failure import Failure
from lazaretto.store.records.claims import ClaimRecord
from lazaretto.store.records.messages import QueueRecord
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
