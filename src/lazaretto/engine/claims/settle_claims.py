"""Settles claims: applies the outcomes that their tasks have staged, in one commit."""

from __future__ import annotations

import array
import dataclasses
import itertools
import time
from collections.abc import Sequence

import msgspec

from lazaretto.engine.claims.consumers import (
    LONGEST_CONSUMER,
    ConsumerOperation,
    DriverOperation,
    require_claims,
    require_driver,
)
from lazaretto.engine.claims.end_claims import (
    LAST_CLAIM,
    REMOVED_WITHIN,
    ClaimSummary,
    give_back,
    move_on,
    revoke,
    summary_of,
)
from lazaretto.engine.command import OfPath
from lazaretto.engine.log import audit, note
from lazaretto.engine.messages.complete import keep_samples
from lazaretto.engine.messages.send import Send, check_send
from lazaretto.engine.messages.settle import Settlement, settle_row
from lazaretto.engine.outcome.attempts import note_commit
from lazaretto.errors import EntityError, LazarettoError
from lazaretto.model.checks import text, whole
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import Failure, failure_of
from lazaretto.model.keys import lane_of, runs_of
from lazaretto.model.policy import Final, Outcome
from lazaretto.model.rates import COMPLETED
from lazaretto.store.records.claims import OPEN, SETTLED, ClaimRecord, ConsumerRecord, ShardRecord
from lazaretto.store.records.messages import MessageRow, NewMessage, QueueRecord
from lazaretto.store.sql.transaction import Transaction

_replace = msgspec.structs.replace
#: Messages that are removed at once: they are read twice, and the second time are still in a cache.
_AT_ONCE = 2_000
#: Of claims of how many messages those that are completed are kept until later commits remove them.
_LARGE = 10_000
#: How many runs of messages are removed without a look at what stands between them.
_FEW_RUNS = 100


class StagedRow(msgspec.Struct, array_like=True, omit_defaults=True):
    """The outcome of a message that was not simply completed.

    `outcome`: the value of an Outcome. `sends`: its handler's messages, sent if the handler completes, defers
    or dead-letters the message.
    """

    key: int
    outcome: str
    failure: Failure | None = None
    reason: str | None = None
    description: str | None = None
    reject: bool = False
    sends: list[tuple[str, list[NewMessage]]] = []


class StagedRows(msgspec.Struct, array_like=True):
    """One task's outcomes for a shard: 8 bytes for each completed message, and rows for the others.

    `seconds`: what the task spent, by kind of work. `results`: how many it has written, None: to no place.
    """

    token: int
    completed: bytes
    others: list[StagedRow]
    seconds: dict[str, float]
    results: int | None = None

    def completed_keys(self) -> list[int]:
        """Return the keys of the messages that were completed."""
        keys = array.array("q")
        keys.frombytes(self.completed)
        return keys.tolist()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StagedRows).decode


def staged_rows(
    token: int,
    completed: Sequence[int],
    others: list[StagedRow],
    seconds: dict[str, float],
    results: int | None = None,
) -> StagedRows:
    """Return a task's outcomes, encoded for staging."""
    return StagedRows(token, array.array("q", completed).tobytes(), others, seconds, results)


@dataclasses.dataclass(slots=True)
class Stage(DriverOperation[None]):
    """Store a task's outcomes until the claim is settled."""

    stage: str
    rows: StagedRows

    durable = False

    def run(self, tx: Transaction) -> None:
        self.driver(tx)
        shard = tx.claims.shard(self.rows.token)
        if shard is not None:
            tx.claims.insert_staged(shard.claim_token, self.stage, _encode(self.rows))
            if shard.started is not None:
                # Who reads the shard again does so for another's sake.
                tx.claims.save_shard(msgspec.structs.replace(shard, started=None))


@dataclasses.dataclass(slots=True)
class SettleClaims(DriverOperation[list[ClaimSummary]]):
    """Settle claims with the outcomes staged under these names; return a summary of each.

    A claim that is already settled does not change, and its summary is returned again. Messages without a
    staged outcome are released, as are those of a task that completed a message which has left the claim, or
    that did a shard again which one named before it has done.

    A large claim keeps what it has completed, locked by ranges, until `RemoveCompleted` removes it, a part at
    a time, so that others can write. Not kept are messages of sessions, of a queue with `max_size`, of a
    shard that was read again, and those that are locked by themselves.

    `instead`: outcomes of messages that count instead of what the tasks have staged: the place of results
    has refused their results, or that of one before them in their session.
    """

    numbers: Sequence[int]
    stages: Sequence[str]
    instead: Sequence[StagedRow] = ()

    def run(self, tx: Transaction) -> list[ClaimSummary]:
        queue, record = self.driver(tx)
        numbers = set(self.numbers)
        first, last = min(numbers, default=1), max(numbers, default=0)
        listed = tx.claims.after(queue.queue_id, self.consumer, first - 1, last)
        claims = [claim for claim in listed if claim.number in numbers]
        summaries = [
            _settle(tx, queue, claim, self.stages, self.instead) if claim.state == OPEN else summary_of(claim)
            for claim in claims
        ]
        if self.numbers:
            move_on(tx, queue, record.consumer)
        _widen(tx, queue, record, sum(claim.rows for claim in claims if claim.state == OPEN))
        return summaries


def _widen(tx: Transaction, queue: QueueRecord, before: ConsumerRecord, settled: int) -> None:
    """Let claims grow again: double the limit after each success; remove it once the failed part is done."""
    if not before.narrow or not settled:
        return
    record = tx.claims.consumer(queue.queue_id, before.consumer)
    assert record is not None
    rest = max(record.narrow_left - settled, 0)
    tx.claims.save_consumer(_replace(record, narrow=record.narrow * 2 if rest else 0, narrow_left=rest))


def _settle(
    tx: Transaction,
    queue: QueueRecord,
    claim: ClaimRecord,
    stages: Sequence[str],
    instead: Sequence[StagedRow],
) -> ClaimSummary:
    begun = time.perf_counter()
    shards = tx.claims.shards(claim.token)
    used = []
    by_shard: dict[int, list[StagedRows]] = {}
    for stage in stages:
        staged = [_instead(_decode(blob), instead) for blob in tx.claims.staged(claim.token, stage)]
        # Of two that did the same shard, the first counts: the results are those of one, too.
        if staged and all(rows.token not in by_shard and _is_held(tx, shards, rows) for rows in staged):
            used += [(stage, rows) for rows in staged]
            for rows in staged:
                by_shard.setdefault(rows.token, []).append(rows)
    outcomes: dict[str, int] = {}
    seconds: dict[str, float] = {}
    finals = sent = 0
    keeps = False
    for shard in shards:
        parts = by_shard.get(shard.token, [])
        completed = [key for part in parts for key in part.completed_keys()]
        others = [row for part in parts for row in part.others]
        # A message of a session may take others along: each is looked at when its turn comes.
        apart = queue.options.requires_session or not others
        standing = None if apart else tx.rows([row.key for row in others])
        with tx.together(len(others)):
            for row in others:
                now = tx.row(row.key) if standing is None else standing.pop(row.key, None)
                got, final = _settle_one(tx, queue, shard, row, now)
                outcomes[got.value] = outcomes.get(got.value, 0) + 1
                finals += final
                sent += sum(len(messages) for _, messages in row.sends) if got is Outcome.COMPLETED else 0
        is_kept = claim.rows >= _LARGE and _can_keep(tx, queue, shard, completed, others)
        keeps = keeps or is_kept
        completions = _complete(tx, queue, shard, completed, keeps=is_kept)
        if completions:
            tx.rates.count(queue.queue_id, COMPLETED, completions)
            outcomes["completed"] = outcomes.get("completed", 0) + completions
        back = 0 if is_kept else give_back(tx, shard)
        if back:
            outcomes["released"] = outcomes.get("released", 0) + back
        for part in parts:
            for name, value in part.seconds.items():
                seconds[name] = round(seconds.get(name, 0.0) + value, 3)
    tx.claims.unlock_sessions(queue.queue_id, claim.token)
    tx.claims.forget_shards(claim.token, unlocks=not keeps)
    if outcomes.get("completed"):
        note_commit(tx, queue)
    seconds["settle"] = round(time.perf_counter() - begun, 3)
    results: dict[str, int] = {}
    for stage, rows in used:
        if rows.results is not None:
            results[stage] = results.get(stage, 0) + rows.results
    named = list(dict.fromkeys(stage for stage, _ in used))
    summary = ClaimSummary(claim.number, SETTLED, claim.rows, outcomes, finals, sent, seconds, named, results)
    encoded = msgspec.json.encode(summary).decode()
    until = tx.now + REMOVED_WITHIN if keeps else None
    tx.claims.save(_replace(claim, state=SETTLED, lease_until=until, ended=tx.now, summary=encoded))
    details = msgspec.to_builtins(summary)
    del details["stages"], details["results"], details["failure"]
    note(tx, "claim_settled", queue, consumer=claim.consumer, **details)
    return summary


def _instead(staged: StagedRows, others: Sequence[StagedRow]) -> StagedRows:
    """Return a task's outcomes with others for some messages, whose results are taken away."""
    changed = {row.key: row for row in others}
    keys = staged.completed_keys() if changed else []
    mine = changed.keys() & {*keys, *(row.key for row in staged.others)}
    if not mine:
        return staged
    return staged_rows(
        staged.token,
        [key for key in keys if key not in mine],
        [*(row for row in staged.others if row.key not in mine), *(changed[key] for key in sorted(mine))],
        staged.seconds,
        None if staged.results is None else max(0, staged.results - len(mine)),
    )


def _is_held(tx: Transaction, shards: Sequence[ShardRecord], staged: StagedRows) -> bool:
    """Return whether the claim still holds all that a task has completed.

    It does not if another attempt of the task took the first for dead and blamed a message. That message
    will be delivered again, but its result stands among those of this stage: so none of them may be seen.
    """
    shard = next((one for one in shards if one.token == staged.token), None)
    if shard is None or shard.reads < 2:
        return True
    keys = set(tx.claims.shard_keys(shard, shard.rows))
    completed = [row.key for row in staged.others if row.outcome == Outcome.COMPLETED.value]
    return keys.issuperset(staged.completed_keys()) and keys.issuperset(completed)


def _can_keep(
    tx: Transaction,
    queue: QueueRecord,
    shard: ShardRecord,
    completed: Sequence[int],
    others: Sequence[StagedRow],
) -> bool:
    """Return whether what is completed can be kept: all that the shard holds, in ranges."""
    if not completed or not shard.ranges or shard.reads > 1 or queue.options.requires_session:
        return False
    topic = None if queue.topic_id is None else tx.queues.by_id(queue.topic_id)
    if (topic or queue).options.max_size is not None:
        # Whoever waits for room gets it now.
        return False
    keys = {*completed, *(row.key for row in others)}
    return len(keys) == shard.rows and shard.first <= min(keys) and max(keys) <= shard.last


def _settle_one(
    tx: Transaction, queue: QueueRecord, shard: ShardRecord, staged: StagedRow, row: MessageRow | None
) -> tuple[Outcome, bool]:
    """Settle one message, which stands like this, as staged; return the outcome, and whether it is final."""
    if row is None or row.lock_token != shard.token:
        # It was blamed and removed from the claim, or removed with its session.
        return Outcome.RELEASED, False
    settlement = settlement_of(tx, staged)
    verdict = settle_row(tx, queue, row, settlement)
    return settlement.outcome, isinstance(verdict, Final)


def settlement_of(tx: Transaction, staged: StagedRow) -> Settlement:
    """Send what a handler has sent; return how its attempt ends."""
    if staged.sends:
        try:
            _send(tx, staged.sends)
        except LazarettoError as error:
            # Its messages cannot be sent: only this message has failed.
            return Settlement(Outcome.FAILED, failure_of(error))
    return Settlement(
        Outcome(staged.outcome),
        staged.failure,
        reason=staged.reason,
        description=staged.description,
        reject=staged.reject,
    )


def _send(tx: Transaction, sends: Sequence[tuple[str, list[NewMessage]]]) -> None:
    """Send a handler's messages: all, or none and an error."""
    together: dict[str, Send] = {}
    for path, messages in sends:
        target = EntityPath.parse(path)
        before = together.get(target.key)
        together[target.key] = Send(target, [*before.messages, *messages] if before else messages)
    # Those to one queue as one: each alone may find room that there is not for all.
    checked = [(send, check_send(tx, send.path, send.messages)) for send in together.values()]
    for send, target_queue in checked:
        send.insert(tx, target_queue)


def _complete(
    tx: Transaction, queue: QueueRecord, shard: ShardRecord, keys: list[int], *, keeps: bool
) -> int:
    """Remove completed messages; return how many were held. `keeps`: not those in ranges."""
    if not keys:
        return 0
    keys.sort()
    keep_samples(tx, queue, keys)
    if keeps:
        tx.sequences.keep_highest(keys)
        tx.claims.delete_held(shard, [(shard.first, shard.last)], ranges=False)
        return len(keys)
    runs = runs_of(keys, _AT_ONCE)
    if len(runs) > _FEW_RUNS + len(keys) // _AT_ONCE:
        # Most of what parts the runs has been settled, or was never claimed: it need not part them.
        completions = set(keys)
        shard_keys = tx.claims.shard_keys(shard, shard.rows)

        def run_of(key: int) -> tuple[bool, int]:
            # The highest number of each partition is kept by the end of its last run.
            return key in completions, lane_of(key, queue.partitions)

        key_runs = [list(some) for (is_done, _), some in itertools.groupby(shard_keys, run_of) if is_done]
        runs = [
            (some[start], some[min(start + _AT_ONCE, len(some)) - 1])
            for some in key_runs
            for start in range(0, len(some), _AT_ONCE)
        ]
    return tx.claims.delete_held(shard, runs)


@dataclasses.dataclass(slots=True)
class RevokeClaims(ConsumerOperation[int]):
    """Release all messages of open claims without counting an attempt; return the number of claims.

    `number`: one claim; None: all of the consumer. `epoch`: of the calling driver; None: an operator calls,
    named by `actor`.
    """

    number: int | None = None
    epoch: int | None = None
    actor: str | None = None
    why: str = ""

    def run(self, tx: Transaction) -> int:
        queue = require_claims(tx, self.path)
        if self.epoch is not None:
            require_driver(tx, self.path, self.consumer, self.epoch)
        after, last = (0, LAST_CLAIM) if self.number is None else (self.number - 1, self.number)
        claims = [c for c in tx.claims.after(queue.queue_id, self.consumer, after, last) if c.state == OPEN]
        if not claims and self.number is not None:
            raise EntityError(f"consumer {self.consumer!r} of {queue.path!r} has no open claim {self.number}")
        for claim in claims:
            revoke(tx, queue, claim, why=self.why or "by an operator")
        if self.actor is not None and claims:
            numbers = [claim.number for claim in claims]
            audit(tx, self.actor, "revoke_claim", queue.path, consumer=self.consumer, claims=numbers)
        return len(claims)


class RevokeClaim(OfPath[int], frozen=True, kw_only=True):
    """Release the messages of an open claim.

    No attempt is counted; the pipeline goes on without them. Raises EntityError if it is not open.
    """

    action = "revoke_claim"
    consumer: str
    number: int

    def run(self, tx: Transaction, actor: str) -> int:
        path, consumer = EntityPath.parse(self.path), text("consumer", self.consumer, LONGEST_CONSUMER)
        number = whole("number", self.number, 1, LAST_CLAIM)
        return RevokeClaims(path, consumer, number, actor=actor).run(tx)
