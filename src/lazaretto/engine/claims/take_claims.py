"""Claims: numbered, frozen sets of locked messages, which a consumer reads in shards and settles as one.

The consumer only has to remember a claim's number: while the claim is open, asking for it again returns the
same messages. A driver attaches before it takes claims. This fences off the previous driver, and attributes
its death to messages.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterator, Sequence

import msgspec

from lazaretto.engine.claims.consumers import DriverOperation
from lazaretto.engine.claims.end_claims import open_claims
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.entities.status import refuse_receiving, stop_error
from lazaretto.engine.outcome.breakers import breaker_of
from lazaretto.engine.routing.forwards import touch
from lazaretto.engine.timers import catch_up
from lazaretto.errors import EntityError, NotAllowed
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import lane_of, lower_bound, upper_bound
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.rates import RECEIVED
from lazaretto.store.records.claims import (
    MOST_SHARDS,
    OPEN,
    WITH_CLAIM,
    ClaimableMessage,
    ClaimRecord,
    ConsumerRecord,
    FreshRun,
    ShardRecord,
)
from lazaretto.store.records.messages import AGAIN, SUSPECT, Again, QueueRecord
from lazaretto.store.sql.transaction import Transaction

_replace = msgspec.structs.replace
_KEY = operator.attrgetter("key")


@dataclasses.dataclass(slots=True)
class TakeClaim(DriverOperation[int | EntityError | None]):
    """Take the next claim after a number, or find the one already taken; return its number.

    None: there is nothing to take. `last`: the highest sequence number to take. A session is never split
    between shards. A suspect is a claim of its own. The caller is done with all claims up to `after`: one
    that is not settled was only read, and counts no attempts.
    """

    after: int
    max_rows: int
    max_bytes: int
    shards: int
    lease: float
    last: tuple[int, ...] | None = None

    def run(self, tx: Transaction) -> int | EntityError | Again | None:
        queue, record = self.driver(tx)
        if record.last_claim > self.after:
            return self.after + 1
        if record.last_claim < self.after:
            raise NotAllowed(
                f"consumer {self.consumer!r} of {queue.path!r} is at claim {record.last_claim}, but claims "
                f"after {self.after} were requested: the store is older, or a different one"
            )
        _pass_over(tx, record)
        refuse_receiving(queue, Subqueue.MAIN)
        touch(tx, queue)
        caught_up = catch_up(tx)
        queue = require_queue(tx, self.path)
        stopped = stop_error(queue, Subqueue.MAIN)
        if stopped is not None:
            return stopped
        breaker = breaker_of(queue)
        if breaker is not None and breaker.status is BreakerStatus.HELD_OPEN:
            return None
        token = tx.random_token() & ~(MOST_SHARDS - 1)
        most = min(self.max_rows, record.narrow) if record.narrow else self.max_rows
        taken = _Taker(tx, queue, token, dataclasses.replace(self, max_rows=most)).take()
        if not taken:
            return None if caught_up else AGAIN
        claim = ClaimRecord(
            queue.queue_id,
            self.consumer,
            record.last_claim + 1,
            OPEN,
            token,
            tx.now,
            tx.now + round(self.lease * 1_000_000),
            sum(shard.rows for shard, _ in taken),
            sum(size for _, size in taken),
        )
        tx.claims.save(claim)
        tx.rates.count(queue.queue_id, RECEIVED, claim.rows)
        for shard, _size in taken:
            tx.claims.save_shard(_replace(shard, careful=record.narrow > 0))
        tx.claims.save_consumer(_replace(record, last_claim=claim.number))
        return claim.number


def _pass_over(tx: Transaction, record: ConsumerRecord) -> None:
    """Forget that open claims were read: their reader lives, and processes none of their messages."""
    if record.settled == record.last_claim:
        return
    for claim in open_claims(tx, record):
        for shard in tx.claims.shards(claim.token):
            if shard.reads and not shard.is_processed:
                tx.claims.save_shard(_replace(shard, reads=0, read_epoch=None, task=None))


def _claimed(message: ReceivedMessage) -> ClaimableMessage:
    return ClaimableMessage(message.key, len(message.body or b""))


class _Taker:
    """Locks messages for one claim."""

    def __init__(self, tx: Transaction, queue: QueueRecord, token: int, operation: TakeClaim) -> None:
        self._tx = tx
        self._queue = queue
        self._token = token
        self._wanted = operation
        self._first = lower_bound(queue.queue_id)
        #: Up to which key each lane is taken from.
        self._lasts = dict(zip(queue.lanes, map(upper_bound, queue.lanes), strict=True))
        if operation.last is not None:
            # Partitions that the queue has got meanwhile had none.
            self._lasts = dict(zip(queue.lanes, map(lower_bound, queue.lanes), strict=True))
            for lane, last in zip(queue.lanes, operation.last, strict=False):
                self._lasts[lane] = self._first + last

    def take(self) -> list[tuple[ShardRecord, int]]:
        """Return the shards, each with its bytes."""
        return self._sessions() if self._queue.options.requires_session else self._messages()

    def _shard(self, number: int, keys: Sequence[ClaimableMessage]) -> tuple[ShardRecord, int]:
        token = self._token + number
        shard = ShardRecord(token, self._token, keys[0].key, keys[-1].key, len(keys))
        return shard, sum(message.size for message in keys)

    def _within(self, keys: Sequence[ClaimableMessage], room: int) -> int:
        """Return how many of these messages, in order, fit into a size; the first always does."""
        total = 0
        for index, message in enumerate(keys):
            total += message.size
            if index and total > room:
                return index
        return len(keys)

    def _messages(self) -> list[tuple[ShardRecord, int]]:
        tx, operation = self._tx, self._wanted
        suspect = next(self._suspects(), None)
        if suspect is not None:
            # Messages before it go first, as for any receiver; then it goes alone.
            lane = lane_of(suspect.key, self._queue.partitions)
            ready, _ = tx.claims.claimable(lane, suspect.key, operation.max_rows)
            if not ready:
                tx.lock([suspect.key], self._token, None)
                return [self._shard(0, [_claimed(suspect)])]
            chosen = ready
        else:
            whole = self._whole_runs()
            if whole is not None:
                return whole
            ready, chosen = self._next_of_lanes()
        chosen = chosen[: self._within(chosen, operation.max_bytes)]
        again = {message.key for message in ready}
        chosen.sort(key=_KEY)
        size = -(-len(chosen) // operation.shards) if chosen else 1
        shards = []
        for number, start in enumerate(range(0, len(chosen), size)):
            part = chosen[start : start + size]
            shards.append(self._shard(number, part))
            token = self._token + number
            ready_keys = [message.key for message in part if message.key in again] if again else []
            fresh = [message for message in part if message.key not in again] if again else part
            if ready_keys:
                tx.lock(ready_keys, token, None)
            for lane, messages in self._by_lane(fresh):
                timed = [message.key for message in messages if message.timed]
                some = None if len(timed) == len(messages) else timed
                tx.claims.lock_fresh(lane, messages[0].key, messages[-1].key, token, some)
        return shards

    def _whole_runs(self) -> list[tuple[ShardRecord, int]] | None:
        """Take fresh messages without a look at each; None: they must be looked at."""
        tx, queue, operation = self._tx, self._queue, self._wanted
        if queue.partitions > 1:
            return None
        lane, last = queue.queue_id, self._lasts[queue.queue_id]
        if tx.claims.claimable(lane, last, 1)[0]:
            return None
        runs = self._runs(lane, last, -(-operation.max_rows // operation.shards))
        rows = sum(run.rows for run in runs)
        if rows < operation.max_rows and runs and operation.shards > 1:
            # Fewer than wanted: each shard gets its part of them.
            runs = self._runs(lane, last, -(-rows // operation.shards))
        if sum(run.bytes for run in runs) > operation.max_bytes or any(run.timed for run in runs):
            return None
        shards = []
        for number, run in enumerate(runs):
            token = self._token + number
            tx.claims.lock_fresh(lane, run.first, run.last, token)
            shards.append((ShardRecord(token, self._token, run.first, run.last, run.rows), run.bytes))
        return shards

    def _runs(self, lane: int, last: int, size: int) -> list[FreshRun]:
        """Return the next fresh messages, in runs of this many, as many as are wanted."""
        runs: list[FreshRun] = []
        room = self._wanted.max_rows
        while room > 0 and (
            run := self._tx.claims.fresh_run(lane, runs[-1].last if runs else None, last, min(size, room))
        ):
            runs.append(run)
            room -= run.rows
            if run.rows < size:
                break
        return runs

    def _by_lane(self, messages: list[ClaimableMessage]) -> Iterator[tuple[int, Sequence[ClaimableMessage]]]:
        """Yield messages, which are in order, by their lanes."""
        queue = self._queue
        if queue.partitions == 1:
            if messages:
                yield queue.queue_id, messages
            return
        for lane, some in itertools.groupby(messages, lambda one: lane_of(one.key, queue.partitions)):
            yield lane, list(some)

    def _next_of_lanes(self) -> tuple[list[ClaimableMessage], list[ClaimableMessage]]:
        """Return the next messages, in the order of their turn: those that were handed out before, and all.

        Of partitions, each gives its share, and one that has more fills up what others leave.
        """
        most = self._wanted.max_rows
        lanes = list(dict.fromkeys(self._tx.partitions.waiting(self._queue)))
        share = -(-most // max(1, len(lanes)))
        by_lane = {lane: self._next_of(lane, share) for lane in lanes}
        for lane in lanes:
            ready, fresh = by_lane[lane]
            room = most - sum(len(one) + len(other) for one, other in by_lane.values())
            if room > 0 and len(ready) + len(fresh) == share:
                by_lane[lane] = self._next_of(lane, share + room)
        again = [message for ready, _ in by_lane.values() for message in ready]
        # Locked in the order of their turn, read in the order of their numbers.
        return again, [message for ready, fresh in by_lane.values() for message in (*ready, *fresh)][:most]

    def _next_of(self, lane: int, limit: int) -> tuple[list[ClaimableMessage], list[ClaimableMessage]]:
        return self._tx.claims.claimable(lane, self._lasts[lane], limit)

    def _sessions(self) -> list[tuple[ShardRecord, int]]:
        tx, operation, queue_id = self._tx, self._wanted, self._queue.queue_id
        suspect = self._suspect_of_sessions()
        if suspect is not None:
            return [suspect]
        batches: list[list[ClaimableMessage]] = []
        rows = room = 0
        names: list[str] = []
        after: str | None = None
        room = operation.max_bytes
        while rows < operation.max_rows and (not batches or room > 0):
            name = tx.sessions.next_id(queue_id, after)
            if name is None:
                break
            after = name
            keys = self._of_session(name, operation.max_rows - rows)
            if keys:
                keys = keys[: self._within(keys, room)] if not batches else keys[: self._fit(keys, room)]
            if keys:
                batches.append(keys)
                names.append(name)
                rows += len(keys)
                room -= sum(message.size for message in keys)
        parts: list[list[ClaimableMessage]] = [[] for _ in range(min(operation.shards, len(batches)))]
        for name, keys in zip(names, batches, strict=True):
            # Goes to the smallest shard so far.
            number = min(range(len(parts)), key=lambda n: len(parts[n]))
            parts[number] += keys
            tx.sessions.lock(queue_id, name, self._token + number, WITH_CLAIM)
            tx.lock([message.key for message in keys], self._token + number, None)
        return [self._shard(number, sorted(part, key=_KEY)) for number, part in enumerate(parts)]

    def _suspect_of_sessions(self) -> tuple[ShardRecord, int] | None:
        """Take a suspect alone if it is the next message of its session."""
        tx, queue_id = self._tx, self._queue.queue_id
        for suspect in self._suspects():
            row = tx.row(suspect.key)
            name = None if row is None else row.session_id
            if name and self._is_free(name) and tx.sessions.first_receivable(queue_id, name) == suspect.key:
                tx.sessions.lock(queue_id, name, self._token, WITH_CLAIM)
                tx.lock([suspect.key], self._token, None)
                return self._shard(0, [_claimed(suspect)])
        return None

    def _suspects(self) -> Iterator[ReceivedMessage]:
        """Yield the suspects that may be taken, lane by lane."""
        limits = self._lasts
        if self._wanted.last is None:
            # One search finds those of all lanes.
            limits = {self._queue.queue_id: upper_bound(self._queue.queue_id)}
        for lane, last in limits.items():
            first = lower_bound(lane)
            while (suspect := self._tx.select_suspect(first, last)) is not None:
                yield suspect
                first = suspect.key

    def _is_free(self, name: str) -> bool:
        record = self._tx.sessions.find(self._queue.queue_id, name)
        return record is None or (record.locked_until is None and record.held_by is None)

    def _fit(self, keys: Sequence[ClaimableMessage], room: int) -> int:
        return 0 if keys[0].size > room else self._within(keys, room)

    def _of_session(self, name: str, limit: int) -> list[ClaimableMessage]:
        """Return the messages that can be taken from a session, if it is not locked."""
        tx, queue_id = self._tx, self._queue.queue_id
        if not self._is_free(name):
            return []
        before = tx.sessions.first_delayed(queue_id, name) or upper_bound(queue_id)
        suspect = tx.select_session_messages(queue_id, name, SUSPECT, before, 1)
        if suspect:
            before = suspect[0].key
        lane = tx.partitions.lane(self._queue, name)
        return tx.claims.claimable_session(queue_id, name, min(before, self._lasts[lane] + 1), limit)
