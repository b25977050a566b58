"""Claims: numbered, frozen sets of locked messages, which a consumer reads in shards and settles as one.

A claim's number is all that the consumer has to remember: whoever asks for the same claim again
gets the same messages, as long as it is open. A driver attaches before it takes claims; the one
attached before is fenced off then, and what its death says about messages is judged.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence

import msgspec

from lazaretto.engine.claims.end_claims import open_claims, revoke
from lazaretto.engine.entities.queues import refuse_topic, require_queue
from lazaretto.engine.entities.status import refuse_receiving, stop_error
from lazaretto.engine.outcome.attempts import end_attempt, put_back
from lazaretto.engine.outcome.breakers import breaker_of
from lazaretto.engine.routing.forwards import touch
from lazaretto.engine.timers import catch_up
from lazaretto.engine.workers.workers import blame
from lazaretto.errors import ClaimFenced, EntityError, InvalidOption, NotAllowed
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.checks import shown
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.keys import lower_bound, queue_of, upper_bound
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.policy import Outcome
from lazaretto.store.contract.claim_contract import (
    MOST_SHARDS,
    OPEN,
    WITH_CLAIM,
    ClaimableMessage,
    ClaimRecord,
    ConsumerRecord,
    ShardRecord,
)
from lazaretto.store.contract.records import SUSPECT, MessageRow, QueueRecord
from lazaretto.store.contract.transaction_contract import AGAIN, Again, Operation, Transaction

_replace = msgspec.structs.replace
_KEY = operator.attrgetter("key")

LONGEST_CONSUMER = 128
#: Readers that a claim may take down before a message was begun, and how many claims it becomes then.
_MOST_READS = 3
_NARROWER = 32


class Attached(msgspec.Struct, frozen=True):
    """A driver's hold on a consumer: its epoch, the last claim that has ended, and which consumer it is."""

    epoch: int
    settled: int
    identity: int


def require_claims(tx: Transaction, path: EntityPath) -> QueueRecord:
    """Return the queue if claims can be taken of it."""
    queue = require_queue(tx, path)
    if path.subqueue is not Subqueue.MAIN:
        raise NotAllowed(f"claims are taken of a queue, not of its subqueue {str(path)!r}")
    refuse_topic(queue, "take claims of one of its subscriptions")
    return queue


def require_driver(
    tx: Transaction, path: EntityPath, consumer: str, epoch: int
) -> tuple[QueueRecord, ConsumerRecord]:
    """Return queue and consumer if this is the driver attached last. Raises ClaimFenced."""
    queue = require_claims(tx, path)
    record = tx.claims.consumer(queue.queue_id, consumer)
    if record is None or record.epoch != epoch:
        raise ClaimFenced(
            f"another driver has taken over consumer {consumer!r} of {queue.path!r} "
            f"({record.driver if record else 'which no longer exists'}); stop this driver"
        )
    return queue, record


@dataclasses.dataclass(slots=True)
class Attach(Operation[Attached]):
    """Become the one driver of a consumer, made if there is none; `lease`: of its claims, in seconds."""

    path: EntityPath
    consumer: str
    driver: str
    lease: float

    def run(self, tx: Transaction) -> Attached:
        queue = require_claims(tx, self.path)
        if queue.options.whole_sessions:
            raise NotAllowed(
                f"sessions of {queue.path!r} are settled as a unit (on_poison_session=whole), but claims are "
                "settled by message: use a receiver, or set another on_poison_session"
            )
        before = _identified(tx, queue, self.consumer)
        catch_up(tx)
        record = _replace(before, epoch=before.epoch + 1, driver=self.driver, attached=tx.now)
        tx.claims.save_consumer(record)
        tx.claims.renew(queue.queue_id, self.consumer, tx.now + round(self.lease * 1_000_000))
        for claim in open_claims(tx, record):
            if _unreadable(tx, claim):
                _narrow(tx, queue, self.consumer, claim)
            else:
                _judge(tx, claim, before.driver)
        record = tx.claims.consumer(queue.queue_id, self.consumer) or record
        return Attached(record.epoch, record.settled, record.identity)


@dataclasses.dataclass(slots=True)
class Identify(Operation[int]):
    """Find a consumer, made if there is none; the answer is its identity."""

    path: EntityPath
    consumer: str

    def run(self, tx: Transaction) -> int:
        return _identified(tx, require_claims(tx, self.path), self.consumer).identity


def _identified(tx: Transaction, queue: QueueRecord, consumer: str) -> ConsumerRecord:
    """Return a consumer that has an identity."""
    if not consumer or len(consumer) > LONGEST_CONSUMER:
        raise InvalidOption(
            f"expected a consumer's name of 1 to {LONGEST_CONSUMER} characters, got {shown(consumer)}"
        )
    record = tx.claims.consumer(queue.queue_id, consumer) or ConsumerRecord(queue.queue_id, consumer)
    if not record.identity:
        record = _replace(record, identity=tx.random_token())
        tx.claims.save_consumer(record)
    return record


def _unreadable(tx: Transaction, claim: ClaimRecord) -> bool:
    """Return whether a claim took its readers down again and again, before they began on a message."""
    shards = tx.claims.shards(claim.token)
    most = 1 if claim.rows > 1 and any(shard.careful for shard in shards) else _MOST_READS
    return all(shard.started is None for shard in shards) and any(shard.reads >= most for shard in shards)


def _narrow(tx: Transaction, queue: QueueRecord, consumer: str, claim: ClaimRecord) -> None:
    """Give a claim back that nobody can read: its messages come again, fewer at a time."""
    revoke(
        tx,
        queue,
        claim,
        why=f"its readers went away {max(s.reads for s in tx.claims.shards(claim.token))} times",
    )
    record = tx.claims.consumer(queue.queue_id, consumer)
    assert record is not None
    narrow = max(claim.rows // _NARROWER, 1)
    tx.claims.save_consumer(_replace(record, narrow=narrow, narrow_left=max(record.narrow_left, claim.rows)))


def _judge(tx: Transaction, claim: ClaimRecord, driver: str) -> None:
    """Blame what a driver's tasks worked on, one message at a time each, when it went away.

    A message that was the whole claim is charged. Of others it is not sure: they may have been the
    last before it was noticed; they are tried alone, in claims of their own. One that is alone because
    claims with it could not be read is charged for being read, too.
    """
    shards = [
        _replace(shard, started=shard.first) if shard.careful and shard.reads and claim.rows == 1 else shard
        for shard in tx.claims.shards(claim.token)
    ]
    started = [shard for shard in shards if shard.started is not None]
    for shard in started:
        tx.claims.save_shard(_replace(shard, started=None))
    _blame(tx, started, driver, alone=claim.rows == 1)


def _blame(tx: Transaction, shards: Sequence[ShardRecord], worker: str, *, alone: bool) -> None:
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


@dataclasses.dataclass(slots=True)
class TakeClaim(Operation[int | EntityError | None]):
    """Take the next claim after a number, or find the one that was taken; the answer is its number.

    None: there is nothing to take. `last`: the highest sequence number to take. A session stands
    in one shard as a whole. A suspect is a claim of its own. Who asks is done with all claims up to `after`:
    one of them that nobody settled was only looked at, and nothing is held against its messages.
    """

    path: EntityPath
    consumer: str
    epoch: int
    after: int
    max_rows: int
    max_bytes: int
    shards: int
    lease: float
    last: int | None = None

    def run(self, tx: Transaction) -> int | EntityError | Again | None:
        queue, record = require_driver(tx, self.path, self.consumer, self.epoch)
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
        for shard, _size in taken:
            tx.claims.save_shard(_replace(shard, careful=record.narrow > 0))
        tx.claims.save_consumer(_replace(record, last_claim=claim.number))
        return claim.number


def _pass_over(tx: Transaction, record: ConsumerRecord) -> None:
    """Forget that open claims were read: whoever did it lives, and works on none of their messages."""
    if record.settled == record.last_claim:
        return
    for claim in open_claims(tx, record):
        for shard in tx.claims.shards(claim.token):
            if shard.reads and shard.read_epoch is None:
                tx.claims.save_shard(_replace(shard, reads=0))


def _claimed(message: ReceivedMessage) -> ClaimableMessage:
    return ClaimableMessage(message.key, len(message.body or b""))


class _Taker:
    """Locks messages for one claim."""

    def __init__(self, tx: Transaction, queue: QueueRecord, token: int, wanted: TakeClaim) -> None:
        self._tx = tx
        self._queue = queue
        self._token = token
        self._wanted = wanted
        self._first = lower_bound(queue.queue_id)
        self._last = upper_bound(queue.queue_id) if wanted.last is None else self._first + wanted.last

    def take(self) -> list[tuple[ShardRecord, int]]:
        """Return the shards, each with its bytes."""
        return self._sessions() if self._queue.options.requires_session else self._messages()

    def _shard(self, number: int, keys: Sequence[ClaimableMessage]) -> tuple[ShardRecord, int]:
        token = self._token + number
        shard = ShardRecord(token, self._token, keys[0].key, keys[-1].key, len(keys))
        return shard, sum(message.size for message in keys)

    def _within(self, keys: Sequence[ClaimableMessage], room: int) -> int:
        """Return how many of these, in order, fit into so many bytes; the first always does."""
        total = 0
        for index, message in enumerate(keys):
            total += message.size
            if index and total > room:
                return index
        return len(keys)

    def _messages(self) -> list[tuple[ShardRecord, int]]:
        tx, wanted = self._tx, self._wanted
        suspect = tx.select_suspect(self._first, self._last)
        if suspect is not None:
            # Those before it go first, as they would to any receiver; then it goes alone.
            ready, _ = tx.claims.claimable(self._queue.queue_id, suspect.key, wanted.max_rows)
            fresh: list[ClaimableMessage] = []
            if not ready:
                tx.lock([suspect.key], self._token, None)
                return [self._shard(0, [_claimed(suspect)])]
        else:
            ready, fresh = tx.claims.claimable(self._queue.queue_id, self._last, wanted.max_rows)
        # Locked in the order of their turn, read in the order of their numbers.
        chosen = [*ready, *fresh]
        chosen = chosen[: self._within(chosen, wanted.max_bytes)]
        again = {message.key for message in ready}
        chosen.sort(key=_KEY)
        size = -(-len(chosen) // wanted.shards) if chosen else 1
        shards = []
        for number, start in enumerate(range(0, len(chosen), size)):
            part = chosen[start : start + size]
            shards.append(self._shard(number, part))
            token = self._token + number
            ready_keys = [message.key for message in part if message.key in again]
            fresh_keys = [message.key for message in part if message.key not in again]
            if ready_keys:
                tx.lock(ready_keys, token, None)
            if fresh_keys:
                tx.claims.lock_fresh_range(self._queue.queue_id, fresh_keys[0], fresh_keys[-1], token)
        return shards

    def _sessions(self) -> list[tuple[ShardRecord, int]]:
        tx, wanted, queue_id = self._tx, self._wanted, self._queue.queue_id
        suspect = self._suspect_of_sessions()
        if suspect is not None:
            return [suspect]
        found: list[list[ClaimableMessage]] = []
        rows = room = 0
        names: list[str] = []
        after = ""
        room = wanted.max_bytes
        while rows < wanted.max_rows and (not found or room > 0):
            name = tx.sessions.next_id(queue_id, after)
            if name is None:
                break
            after = name
            keys = self._of_session(name, wanted.max_rows - rows)
            if keys:
                keys = keys[: self._within(keys, room)] if not found else keys[: self._fit(keys, room)]
            if keys:
                found.append(keys)
                names.append(name)
                rows += len(keys)
                room -= sum(message.size for message in keys)
        parts: list[list[ClaimableMessage]] = [[] for _ in range(min(wanted.shards, len(found)))]
        for name, keys in zip(names, found, strict=True):
            # To the shard that has least so far.
            number = min(range(len(parts)), key=lambda n: len(parts[n]))
            parts[number] += keys
            tx.sessions.lock(queue_id, name, self._token + number, WITH_CLAIM)
            tx.lock([message.key for message in keys], self._token + number, None)
        return [self._shard(number, sorted(part, key=_KEY)) for number, part in enumerate(parts)]

    def _suspect_of_sessions(self) -> tuple[ShardRecord, int] | None:
        """Take a suspect alone that is the next of its session."""
        tx, queue_id = self._tx, self._queue.queue_id
        first = self._first
        while (found := tx.select_suspect(first, self._last)) is not None:
            first = found.key
            row = tx.row(first)
            name = None if row is None else row.session_id
            if name and self._is_free(name) and tx.sessions.first_receivable(queue_id, name) == first:
                tx.sessions.lock(queue_id, name, self._token, WITH_CLAIM)
                tx.lock([first], self._token, None)
                return self._shard(0, [_claimed(found)])
        return None

    def _is_free(self, name: str) -> bool:
        record = self._tx.sessions.find(self._queue.queue_id, name)
        return record is None or (record.locked_until is None and record.held_by is None)

    def _fit(self, keys: Sequence[ClaimableMessage], room: int) -> int:
        return 0 if keys[0].size > room else self._within(keys, room)

    def _of_session(self, name: str, limit: int) -> list[ClaimableMessage]:
        """Return what can be taken of a session, if nobody has it."""
        tx, queue_id = self._tx, self._queue.queue_id
        if not self._is_free(name):
            return []
        before = tx.sessions.first_delayed(queue_id, name) or upper_bound(queue_id)
        suspect = tx.select_session_messages(queue_id, name, SUSPECT, before, 1)
        if suspect:
            before = suspect[0].key
        return tx.claims.claimable_session(queue_id, name, min(before, self._last + 1), limit)


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
            _blame(tx, [shard], self.worker, alone=True)
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


@dataclasses.dataclass(slots=True)
class RenewClaims(Operation[None]):
    """Prolong the leases of a consumer's open claims. Raises ClaimFenced."""

    path: EntityPath
    consumer: str
    epoch: int
    lease: float

    durable = False

    def run(self, tx: Transaction) -> None:
        queue, _ = require_driver(tx, self.path, self.consumer, self.epoch)
        tx.claims.renew(queue.queue_id, self.consumer, tx.now + round(self.lease * 1_000_000))


@dataclasses.dataclass(slots=True)
class TrimClaims(Operation[None]):
    """Forget a consumer's claims up to a number, those that have ended."""

    path: EntityPath
    consumer: str
    last: int

    durable = False

    def run(self, tx: Transaction) -> None:
        queue = require_claims(tx, self.path)
        tx.claims.delete(queue.queue_id, self.consumer, self.last)
