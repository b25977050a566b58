"""A consumer of claims: takes numbered sets of messages, reads them in shards, and settles each as one."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

import msgspec

from lazaretto.engine.claims.consumers import Identify, RenewClaims, TrimClaims, require_claims
from lazaretto.engine.claims.drivers import (
    Attach,
    BeginShard,
    ChargeFailure,
    MarkStarted,
    NoteCancellation,
    StartShard,
)
from lazaretto.engine.claims.end_claims import (
    LAST_CLAIM,
    ClaimSummary,
    NoteFailure,
    RemoveCompleted,
    count_kept,
    keeping_claims,
    kept_ranges,
    oldest_behind,
    open_claims,
    summary_of,
)
from lazaretto.engine.claims.settle_claims import (
    RevokeClaims,
    SettleClaims,
    Stage,
    StagedRow,
    StagedRows,
    staged_rows,
)
from lazaretto.engine.claims.take_claims import TakeClaim
from lazaretto.errors import EntityError, LazarettoError
from lazaretto.model.actors import PIPELINE, Taker
from lazaretto.model.checks import seconds, whole
from lazaretto.model.clock import to_datetime
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import Failure
from lazaretto.model.keys import lane_of, lower_bound, sequence_of
from lazaretto.model.policy import Outcome
from lazaretto.store.records.claims import (
    DEFAULT_LEASE,
    MOST_ROWS,
    MOST_SHARDS,
    OPEN,
    ClaimRecord,
    ConsumerRecord,
    ShardRecord,
)
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.records.overview import Waiting
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")


class Claim(msgspec.Struct, frozen=True):
    """A claim as users see it.

    `state`: "open", "settled" or "revoked". `reads`: the highest number of reads of one shard; more
    than one means that a reader died. `outcomes`: of its messages, once the claim has ended.
    """

    queue: str
    consumer: str
    number: int
    state: str
    rows: int
    bytes: int
    shards: int
    reads: int
    created: datetime
    lease_until: datetime | None
    ended: datetime | None
    outcomes: dict[str, int]


class Lag(NamedTuple):
    """A consumer's lag behind its queue.

    `messages`: in the queue, in any state, besides those of open claims and completed ones; exact up to 100,
    and above that an estimate that gaps make too high. `seconds`: since the oldest message in the queue was
    sent; about, while a claim keeps messages that it has completed.
    """

    messages: int
    seconds: float


class ClaimConsumer:
    """Takes claims of a queue under a persistent name. Threads can share it.

    `lease`: seconds for which a claim stays open without a heartbeat. `epoch`: the driver's epoch; None
    until `attach`. `task`: in a task, its number, which tells it from the driver's others.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        name: str,
        *,
        lease: float = DEFAULT_LEASE,
        epoch: int | None = None,
        task: int = 0,
    ) -> None:
        self._store = store
        self.path = EntityPath.parse(path)
        self.name = name
        self._lease = seconds("lease", lease, 1.0, 86_400.0)
        self.epoch = epoch if epoch is not None else 0
        self._task = task
        #: Tells it from consumers of the same name in other queues and stores; known when it was asked for.
        self.identity = 0

    def _look(self, query: Callable[[Transaction, QueueRecord], T]) -> T:
        """Return what a query reads of the queue, which must allow claims."""
        return self._store.read(lambda tx: query(tx, require_claims(tx, self.path)))

    def identify(self) -> int:
        """Return what tells it from consumers of the same name in other queues and stores."""
        self.identity = self._store.run(Identify(self.path, self.name))
        return self.identity

    def attach(self) -> int:
        """Become the only driver and fence off the previous one; return the last claim that has ended."""
        driver = f"{socket.gethostname()}:{os.getpid()}"
        self._store.presence.enter(self, Taker(str(self.path), PIPELINE, self.name))
        attached = self._store.run(Attach(self.path, self.name, driver, self._lease))
        self.epoch = attached.epoch
        self.identity = attached.identity
        # The driver before may have died over it.
        self._remove_if_possible()
        return attached.settled

    def take(
        self,
        after: int,
        *,
        max_rows: int = 100_000,
        max_bytes: int = 1 << 30,
        shards: int = 1,
        last: Sequence[int] | None = None,
    ) -> int | None:
        """Take the claim after a number, unless it is already taken; return its number, or None.

        `max_rows`, `max_bytes`: of it, at least one message. `shards`: parts that can be read at the
        same time. `last`: the highest sequence number to take of each partition. Raises ClaimFenced,
        PoisonMessageError, QueueDisabled.
        """
        whole("max_rows", max_rows, 1, MOST_ROWS)
        whole("max_bytes", max_bytes, 1, 1 << 50)
        whole("shards", shards, 1, MOST_SHARDS)
        taken = self._store.run(
            TakeClaim(
                self.path,
                self.name,
                self.epoch,
                after,
                max_rows,
                max_bytes,
                shards,
                self._lease,
                None if last is None else tuple(last),
            )
        )
        if isinstance(taken, EntityError):
            raise taken
        return taken

    def shards(self, after: int, last: int) -> list[tuple[ClaimRecord, ShardRecord]]:
        """Return what there is to read of the open claims above `after` up to `last`."""

        def find(tx: Transaction, queue: QueueRecord) -> list[tuple[ClaimRecord, ShardRecord]]:
            claims = tx.claims.after(queue.queue_id, self.name, after, last)
            return [
                (claim, shard)
                for claim in claims
                if claim.state == OPEN
                for shard in tx.claims.shards(claim.token)
            ]

        return self._look(find)

    def start(self, shard: int, worker: str, *, begun: bool = True) -> bool | None:
        """Begin to read a shard; return whether to go one message at a time, None if it is not open.

        `begun`: its messages are worked on, too, and charged if that never ends.
        """
        return self._store.run(StartShard(self.path, self.name, self.epoch, shard, worker, begun, self._task))

    def begin(self, shard: int) -> None:
        """Note that the messages of a shard that another process reads are worked on. Raises ClaimFenced."""
        self._store.run(BeginShard(self.path, self.name, self.epoch, shard, self._task))

    def mark(self, shard: int, key: int | None) -> None:
        """Note which message is about to be worked on, where it is one at a time; None when it is done.

        Without effect if another task reads the shard meanwhile. Raises ClaimFenced.
        """
        self._store.run(MarkStarted(self.path, self.name, self.epoch, shard, key, self._task))

    def note_error(self, shard: int) -> None:
        """Note that the task ends with an error, and has died of no message. Raises ClaimFenced."""
        self._store.run(MarkStarted(self.path, self.name, self.epoch, shard, None, self._task, ended=True))

    def note_cancellation(self, died: int | None = None) -> None:
        """Note that the driver's tasks were cancelled, but for one that died. Raises ClaimFenced."""
        self._store.run(NoteCancellation(self.path, self.name, self.epoch, died))

    def stage(self, stage: str, rows: StagedRows) -> None:
        """Keep what a task has done under a name, until the claim is settled."""
        self._store.run(Stage(self.path, self.name, self.epoch, stage, rows))

    def settle(
        self,
        numbers: Sequence[int],
        stages: Sequence[str],
        *,
        keeps: bool = False,
        instead: Sequence[StagedRow] = (),
    ) -> list[ClaimSummary]:
        """Settle claims with their staged outcomes; skip those already settled.

        `keeps`: what is completed of large claims is kept, locked, until `remove_completed`. `instead`:
        outcomes of messages that count instead of the staged ones.
        """
        summaries = self._store.run(SettleClaims(self.path, self.name, self.epoch, numbers, stages, instead))
        if not keeps:
            self._remove_if_possible()
        return summaries

    def with_behind(self, number: int, refused: Mapping[int, Failure]) -> list[StagedRow]:
        """Return the outcomes of messages whose results were refused, by sequence number.

        Those behind one in its session are released, as behind any other failure.
        """

        def find(tx: Transaction, queue: QueueRecord) -> list[StagedRow]:
            base = lower_bound(queue.queue_id)
            failed = [StagedRow(base + one, Outcome.FAILED.value, refused[one]) for one in sorted(refused)]
            if not queue.options.requires_session:
                return failed
            first: dict[str, int] = {}
            for staged in failed:
                row = tx.row(staged.key)
                if row is not None and row.session_id is not None:
                    first.setdefault(row.session_id, staged.key)
            behind = []
            for claim in tx.claims.after(queue.queue_id, self.name, number - 1, number):
                for shard in tx.claims.shards(claim.token):
                    for key in tx.claims.shard_keys(shard, shard.rows):
                        row = tx.row(key)
                        if row is not None and row.session_id in first and key > first[row.session_id]:
                            behind.append(StagedRow(key, Outcome.RELEASED.value))
            keys = {row.key for row in behind}
            return [*(row for row in failed if row.key not in keys), *behind]

        return self._look(find)

    def note_failure(self, failure: Failure) -> None:
        """Note what the tasks of the open claims ended with."""
        self._store.run(NoteFailure(self.path, self.name, failure))

    def charge(self, failure: Failure, claim: int | None = None) -> int:
        """Charge what the tasks of the open claim ended with to its message. See ChargeFailure."""
        return self._store.run(ChargeFailure(self.path, self.name, self.epoch, failure, claim))

    def _record(self) -> ConsumerRecord | None:
        return self._look(lambda tx, queue: tx.claims.consumer(queue.queue_id, self.name))

    def attached_as(self) -> int:
        """Return the epoch of the driver that is attached now."""
        record = self._record()
        return 0 if record is None else record.epoch

    def is_at_work(self) -> bool:
        """Return whether a task of the driver is noted as at work, and nobody has noted how it ended."""

        def find(tx: Transaction, queue: QueueRecord) -> bool:
            record = tx.claims.consumer(queue.queue_id, self.name)
            claims = [] if record is None else open_claims(tx, record)
            return any(shard.task is not None for claim in claims for shard in tx.claims.shards(claim.token))

        return self._look(find)

    def keeps(self) -> bool:
        """Return whether settled claims keep messages that they have completed."""

        return self._look(lambda tx, queue: bool(keeping_claims(tx, queue, self.name)))

    def is_followed(self) -> bool:
        """Return whether messages stand behind those that settled claims keep."""

        def find(tx: Transaction, queue: QueueRecord) -> bool:
            ends = {lane_of(s.last, queue.partitions): s.last for s in kept_ranges(tx, queue, self.name)}
            return any((tx.claims.last_message(lane) or 0) > ends.get(lane, 0) for lane in queue.lanes)

        return self._look(find)

    def remove_completed(self) -> None:
        """Remove what settled claims keep: in several commits, so that others can write."""
        any_left = self.keeps()
        while any_left:
            any_left = self._store.run(RemoveCompleted(self.path, self.name))

    def _remove_if_possible(self) -> None:
        # The store's timers go on with it.
        with contextlib.suppress(LazarettoError):
            self.remove_completed()

    def settle_whole(self, number: int, failed: Mapping[int, tuple[Outcome, Failure]]) -> ClaimSummary | None:
        """Complete all of a claim but what failed, by sequence number; None: it is known no more."""
        stage = uuid.uuid4().hex
        for _, shard in self.shards(number - 1, number):
            keys = self._store.read(functools.partial(_keys_of, shard))
            others = [
                StagedRow(key, failed[one][0].value, failed[one][1])
                for key in keys
                if (one := sequence_of(key)) in failed
            ]
            completed = [key for key in keys if sequence_of(key) not in failed]
            self.stage(stage, staged_rows(shard.token, completed, others, {}))
        summaries = self.settle([number], [stage])
        return summaries[0] if summaries else None

    def renew(self) -> None:
        """Send a heartbeat. Raises ClaimFenced."""
        self._store.run(RenewClaims(self.path, self.name, self.epoch, self._lease))

    def revoke(self, number: int | None = None, why: str = "") -> int:
        """Release a claim, or all open ones, without counting an attempt; return how many."""
        return self._store.run(RevokeClaims(self.path, self.name, number, self.epoch, why=why))

    def trim(self, last: int) -> None:
        """Delete the ended claims up to a number."""
        self._store.run(TrimClaims(self.path, self.name, last))

    def base_key(self) -> int:
        """Return the key that sequence numbers of the queue are added to."""
        return self._look(lambda tx, queue: lower_bound(queue.queue_id))

    def last_sequences(self) -> list[int]:
        """Return the highest sequence number there is now in each partition: one of any other queue."""

        return self._look(
            lambda tx, queue: [sequence_of(tx.claims.last_message(e) or lower_bound(e)) for e in queue.lanes]
        )

    def last_claim(self) -> int:
        """Return the number of the last claim that was taken, 0 if there is none."""
        record = self._record()
        return 0 if record is None else record.last_claim

    def last_ended(self) -> int:
        """Return the number up to which all claims have ended."""
        record = self._record()
        return 0 if record is None else record.settled

    def lag(self) -> Lag:
        """Return how far the consumer is behind."""

        def find(tx: Transaction, queue: QueueRecord) -> Lag:
            waiting = tx.overview.waiting([queue]).get(queue.queue_id, Waiting())
            claims = tx.claims.after(queue.queue_id, self.name, 0, LAST_CLAIM)
            rows = sum(claim.rows for claim in claims if claim.state == OPEN)
            oldest = waiting.oldest
            if kept := kept_ranges(tx, queue, self.name):
                rows += count_kept(tx, kept)
                oldest = oldest_behind(tx, queue, kept)
            age = 0 if oldest is None else max(0, tx.now - oldest)
            return Lag(max(0, waiting.messages - rows), age / 1_000_000)

        return self._look(find)

    def summaries(self, after: int = 0, last: int = LAST_CLAIM) -> list[ClaimSummary]:
        """Return summaries of the claims above `after` up to `last`."""

        def find(tx: Transaction, queue: QueueRecord) -> list[ClaimSummary]:
            return [summary_of(claim) for claim in tx.claims.after(queue.queue_id, self.name, after, last)]

        return self._look(find)


def describe_claims(tx: Transaction, path: EntityPath, limit: int) -> list[Claim]:
    """Return a queue's claims, newest first."""
    queue = require_claims(tx, path)
    return [_described(tx, queue.path, claim) for claim in tx.claims.latest(queue.queue_id, limit)]


def _described(tx: Transaction, path: str, claim: ClaimRecord) -> Claim:
    shards = tx.claims.shards(claim.token)
    return Claim(
        queue=path,
        consumer=claim.consumer,
        number=claim.number,
        state=claim.state,
        rows=claim.rows,
        bytes=claim.bytes,
        shards=len(shards),
        reads=max((shard.reads for shard in shards), default=0),
        created=to_datetime(claim.created),
        lease_until=to_datetime(claim.lease_until)
        if claim.lease_until is not None and claim.state == OPEN
        else None,
        ended=None if claim.ended is None else to_datetime(claim.ended),
        outcomes=summary_of(claim).outcomes,
    )


def _keys_of(shard: ShardRecord, tx: Transaction) -> list[int]:
    return tx.claims.shard_keys(shard, shard.rows)
