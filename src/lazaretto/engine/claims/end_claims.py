"""Ends claims that nobody settles, and removes what settled ones have completed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import msgspec

from lazaretto.engine.claims.consumers import ConsumerOperation, require_claims
from lazaretto.engine.log import note
from lazaretto.engine.outcome.attempts import end_attempt, note_rollback, put_back
from lazaretto.engine.outcome.verdicts import fail
from lazaretto.model.failure import Failure
from lazaretto.model.keys import lower_bound, upper_bound
from lazaretto.model.policy import Outcome
from lazaretto.store.records.claims import (
    OPEN,
    REVOKED,
    SETTLED,
    ClaimRecord,
    ConsumerRecord,
    ShardRecord,
)
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.transaction import Transaction

_replace = msgspec.structs.replace

#: Kept messages that one commit removes: all others that write wait for it.
_AT_ONCE = 10_000
#: The same of those that a timer removes, which whoever receives may have to wait for.
_AT_ONCE_BY_TIMER = 2_000
#: How long whoever removes them has for the next ones before others do it, in microseconds.
REMOVED_WITHIN = 30_000_000
#: Completed messages that are counted one by one.
_FEW_KEPT = 1_000
#: An upper bound above all claim numbers, for queries by range.
LAST_CLAIM = 1 << 62


class ClaimSummary(msgspec.Struct, frozen=True):
    """The end of a claim: messages by outcome, messages sent, and seconds by kind of work.

    `stages`: the names of what tasks staged and the claim was settled with; `results`: how many results each
    of them has at least, of those that have a place for results. `failure`: of an open claim, what its tasks
    ended with at last.
    """

    number: int
    state: str
    rows: int
    outcomes: dict[str, int] = {}
    finals: int = 0
    sent: int = 0
    seconds: dict[str, float] = {}
    stages: list[str] = []
    results: dict[str, int] = {}
    failure: Failure | None = None


def summary_of(claim: ClaimRecord) -> ClaimSummary:
    """Return the summary of an open or ended claim."""
    if claim.summary is not None:
        return msgspec.json.decode(claim.summary, type=ClaimSummary)
    return ClaimSummary(claim.number, claim.state, claim.rows)


def open_claims(tx: Transaction, consumer: ConsumerRecord) -> list[ClaimRecord]:
    """Return a consumer's claims that are not settled, in order."""
    claims = tx.claims.after(consumer.queue_id, consumer.consumer, consumer.settled, LAST_CLAIM)
    return [claim for claim in claims if claim.state == OPEN]


def move_on(tx: Transaction, queue: QueueRecord, consumer: str) -> None:
    """Record the number up to which all claims have ended."""
    record = tx.claims.consumer(queue.queue_id, consumer)
    assert record is not None
    claims = open_claims(tx, record)
    settled = claims[0].number - 1 if claims else record.last_claim
    if settled != record.settled:
        tx.claims.save_consumer(_replace(record, settled=settled))


def give_back(tx: Transaction, shard: ShardRecord) -> int:
    """Release the messages that a shard still holds, without counting an attempt; return how many."""
    released = tx.claims.release_shard(shard)
    keys = tx.claims.shard_keys(shard, shard.rows)
    for key in keys:
        row = tx.row(key)
        assert row is not None
        put_back(tx, end_attempt(tx, row, Outcome.RELEASED))
    return released + len(keys)


def keeping_claims(tx: Transaction, queue: QueueRecord, consumer: str) -> list[ClaimRecord]:
    """Return a consumer's settled claims that keep messages which they have completed."""
    own = (queue.queue_id, consumer)
    return [claim for claim in tx.claims.keeping() if (claim.queue_id, claim.consumer) == own]


def kept_ranges(tx: Transaction, queue: QueueRecord, consumer: str) -> list[ShardRecord]:
    """Return what a consumer's settled claims keep: ranges, in the order of claims and of their keys."""
    return [shard for claim in keeping_claims(tx, queue, consumer) for shard in tx.claims.kept(claim.token)]


def count_kept(tx: Transaction, kept: Sequence[ShardRecord]) -> int:
    """Return how many messages stand in ranges: exactly if they are few."""
    count = 0
    for shard in kept:
        count += len(tx.claims.shard_keys(shard, _FEW_KEPT))
        if count >= _FEW_KEPT:
            return sum(shard.last - shard.first + 1 for shard in kept)
    return count


def oldest_behind(tx: Transaction, queue: QueueRecord, kept: Sequence[ShardRecord]) -> int | None:
    """Return when the first message was sent that stands in none of these ranges."""
    moments = []
    for lane in queue.lanes:
        after, last = lower_bound(lane), upper_bound(lane)
        while first := tx.peek(after + 1, last, 1, delayed=False):
            after = next((one.last for one in kept if one.first <= first[0].key <= one.last), 0)
            if not after:
                moments.append(first[0].enqueued)
                break
    return min(moments, default=None)


@dataclasses.dataclass(slots=True)
class RemoveCompleted(ConsumerOperation[bool]):
    """Remove some of what a consumer's settled claims have completed; return whether any may be left."""

    durable = False

    def run(self, tx: Transaction) -> bool:
        queue = require_claims(tx, self.path)
        mine = keeping_claims(tx, queue, self.consumer)
        if not mine:
            return False
        any_left = tx.claims.remove_completed(mine[0], _AT_ONCE, tx.now + REMOVED_WITHIN)
        return any_left or len(mine) > 1


@dataclasses.dataclass(slots=True)
class NoteFailure(ConsumerOperation[None]):
    """Note what the tasks of a consumer's open claims ended with: a message that is alone is told of it."""

    failure: Failure

    durable = False

    def run(self, tx: Transaction) -> None:
        queue = require_claims(tx, self.path)
        record = tx.claims.consumer(queue.queue_id, self.consumer)
        for claim in open_claims(tx, record) if record is not None else ():
            summary = ClaimSummary(claim.number, claim.state, claim.rows, failure=self.failure)
            tx.claims.save(_replace(claim, summary=msgspec.json.encode(summary).decode()))


def revoke(tx: Transaction, queue: QueueRecord, claim: ClaimRecord, why: str) -> None:
    """Release all messages of a claim without counting an attempt."""
    released = sum(give_back(tx, shard) for shard in tx.claims.shards(claim.token))
    _end(tx, queue, claim, {"released": released}, why)


def end_due_claims(tx: Transaction, limit: int) -> int:
    """Revoke claims whose lease has expired, a part at a time; return how much was done.

    What a settled claim keeps is removed, if whoever settled it has not done so by then: a part is a round.
    Messages in progress count a lock expiry. Messages that were not started, or only read, are released.
    """
    count = 0
    for claim in tx.claims.due(limit):
        queue = tx.queues.by_id(claim.queue_id)
        # The claims of a deleted queue are deleted with it.
        assert queue is not None
        if claim.state == SETTLED:
            # The next round goes on.
            tx.claims.remove_completed(claim, _AT_ONCE_BY_TIMER, tx.now)
            return limit
        if claim.state == OPEN:
            claim = _replace(claim, state=REVOKED)
            tx.claims.save(claim)
            if any(_is_charged(shard) for shard in tx.claims.shards(claim.token)):
                note_rollback(tx, queue)
        more = False
        for shard in tx.claims.shards(claim.token):
            if not _is_charged(shard):
                count += give_back(tx, shard)
                continue
            keys = tx.claims.shard_keys(shard, limit)
            for key in keys:
                row = tx.row(key)
                if row is not None and row.lock_token == shard.token:
                    fail(tx, queue, row, Outcome.LOCK_EXPIRED)
            count += len(keys)
            more = more or len(keys) == limit
        if not more:
            _end(tx, queue, claim, {Outcome.LOCK_EXPIRED.value: claim.rows}, "its lease expired")
        count += 1
        if count >= limit:
            break
    return count


def _is_charged(shard: ShardRecord) -> bool:
    return shard.reads > 0 and shard.is_processed


def _end(
    tx: Transaction, queue: QueueRecord, claim: ClaimRecord, outcomes: Mapping[str, int], why: str
) -> None:
    tx.claims.unlock_sessions(queue.queue_id, claim.token)
    tx.claims.forget_shards(claim.token)
    summary = ClaimSummary(claim.number, REVOKED, claim.rows, dict(outcomes))
    encoded = msgspec.json.encode(summary).decode()
    tx.claims.save(_replace(claim, state=REVOKED, lease_until=None, ended=tx.now, summary=encoded))
    note(tx, "claim_revoked", queue, consumer=claim.consumer, number=claim.number, why=why)
    move_on(tx, queue, claim.consumer)
