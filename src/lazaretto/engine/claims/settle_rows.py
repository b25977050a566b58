"""Settles micro-batches of rows of other sources: those that failed enter the queue, beside claims."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lazaretto.engine.claims.consumers import ClaimOperation, identified, require_claims
from lazaretto.engine.claims.end_claims import ClaimSummary
from lazaretto.engine.claims.settle_claims import SettleClaims, StagedRow, settlement_of
from lazaretto.engine.log import note
from lazaretto.engine.messages.settle import settle_row
from lazaretto.errors import ClaimFenced, InvalidOption
from lazaretto.model.entities import EntityPath, PoisonSession, QueueOptions
from lazaretto.model.keys import sequence_of
from lazaretto.model.policy import Counters, Outcome
from lazaretto.store.records.claims import SETTLED, ClaimRecord
from lazaretto.store.records.messages import FRESH, READY, MessageRow, NewMessage, QueueRecord
from lazaretto.store.sql.transaction import Transaction

_encode = msgspec.msgpack.Encoder().encode
#: How long it is known where rows that failed came from, in microseconds: ten years.
_REMEMBERED = 10 * 365 * 86_400 * 1_000_000


class OtherRow(msgspec.Struct, array_like=True):
    """A row that was not simply completed, as a message, with how its first attempt ended.

    `staged`: its key counts for nothing. `origin`: where it came from; `content`: that and what it was. Both
    are ids that nothing else has.
    """

    message: NewMessage
    staged: StagedRow
    origin: str
    content: str


_decode = msgspec.msgpack.Decoder(list[OtherRow]).decode


class RowBatch(msgspec.Struct, frozen=True):
    """A micro-batch of rows: its number among those of the consumer, and whether it is settled already."""

    number: int
    is_settled: bool


def check_sessions(options: QueueOptions, path: str, has_session: bool) -> None:
    """Raise InvalidOption unless rows have a session if, and only if, the queue's messages have one."""
    if options.requires_session and not has_session:
        raise InvalidOption(
            f"queue {path!r} has sessions: name the column that says which a row is of, as "
            "session='customer', or use a queue without sessions"
        )
    if has_session and not options.requires_session:
        raise InvalidOption(f"session needs a queue with sessions, and {path!r} has none: omit session")
    if has_session and options.on_poison_session not in (PoisonSession.SKIP, PoisonSession.PARK):
        raise InvalidOption(
            f"rows of a session need a queue whose on_poison_session is 'skip' or 'park', and that of "
            f"{path!r} is {options.on_poison_session.value!r}"
        )


#: How many sessions of a queue are read at once to see which of them wait; beyond, each is looked up.
_FEW = 1_000


def waiting_sessions(tx: Transaction, path: EntityPath, sessions: Iterable[str]) -> set[str]:
    """Return those of some sessions behind whose messages in the queue a row has to wait."""
    queue_id = require_claims(tx, path).queue_id
    present = tx.sessions.ids(queue_id, "", _FEW + 1)
    among = sessions if len(present) > _FEW else set(present).intersection(sessions)
    return {session for session in among if tx.sessions.waits(queue_id, session)}


@dataclasses.dataclass(slots=True)
class BeginRows(ClaimOperation[RowBatch]):
    """Return the number of a micro-batch of rows. `batch`: None: the writer has only this one.

    `has_session`: its rows are of sessions. Raises InvalidOption: the queue's messages are not, or are.
    """

    path: EntityPath
    consumer: str
    writer: str
    batch: int | None
    has_session: bool = False

    def run(self, tx: Transaction) -> RowBatch:
        queue = require_claims(tx, self.path)
        check_sessions(queue.options, queue.path, self.has_session)
        record = identified(tx, queue, self.consumer)
        last = tx.claims.last_batch(self.writer)
        if self.batch is None:
            return RowBatch(last if last > 0 else record.last_claim + 1, last > 0)
        return RowBatch(record.last_claim + 1, last >= self.batch)


@dataclasses.dataclass(slots=True)
class StageRows(ClaimOperation[None]):
    """Store rows under a name until their micro-batch is settled."""

    path: EntityPath
    stage: str
    rows: Sequence[OtherRow]

    durable = False

    def run(self, tx: Transaction) -> None:
        require_claims(tx, self.path)
        tx.claims.insert_outbox(self.stage, _encode(list(self.rows)))


@dataclasses.dataclass(slots=True)
class SettleRows(ClaimOperation[None]):
    """Settle a micro-batch of rows, with claims of the same queue: all of it, or nothing. Once.

    `stages`: of the rows' tasks; `results`: how many results each of these has. `claims`: what settles the
    claims of what came back. `instead`: stages of rows that count instead of the same rows of `stages`: the
    place of results has refused their results. Raises ClaimFenced: another query has settled a batch
    meanwhile.
    """

    path: EntityPath
    consumer: str
    writer: str
    batch: int | None
    number: int
    rows: int
    stages: Sequence[str]
    results: Mapping[str, int]
    claims: SettleClaims | None = None
    instead: Sequence[str] = ()

    def run(self, tx: Transaction) -> None:
        queue = require_claims(tx, self.path)
        record = tx.claims.consumer(queue.queue_id, self.consumer)
        batch = self.number if self.batch is None else self.batch
        if record is not None and tx.claims.last_batch(self.writer) >= batch:
            return
        if record is None or record.last_claim + 1 != self.number:
            raise ClaimFenced(
                f"another query has settled rows as {self.consumer!r} of {queue.path!r} meanwhile; nothing "
                "of this micro-batch counts: give each query a consumer of its own"
            )
        if self.claims is not None:
            self.claims.run(tx)
        taken: Counter[str] = Counter()
        refused: set[str] = set()
        for stage in (*self.instead, *self.stages):
            for rows in map(_decode, tx.claims.outbox(stage)):
                if stage in self.instead:
                    refused.update(row.content for row in rows)
                else:
                    rows = [row for row in rows if row.content not in refused]
                taken.update(row.staged.outcome for row in rows if _take_in(tx, queue, row))
            tx.claims.delete_outbox(stage)
        waiting = taken.pop(Outcome.RELEASED.value, 0)
        failed = taken.total()
        more = {"waiting": waiting} if waiting else {}
        if failed or waiting:
            note(tx, "rows_set_aside", queue, rows=failed, batch=self.batch, **more)
        tx.claims.save_writer(self.writer, batch)
        moved = msgspec.structs.replace(record, last_claim=self.number, settled=self.number)
        tx.claims.save_consumer(moved)
        outcomes = {"completed": self.rows - failed - waiting, "failed": failed, **more}
        summary = ClaimSummary(
            self.number, SETTLED, self.rows, outcomes, stages=list(self.stages), results=dict(self.results)
        )
        encoded = msgspec.json.encode(summary).decode()
        tx.claims.save(
            ClaimRecord(
                queue.queue_id,
                self.consumer,
                self.number,
                SETTLED,
                tx.random_token(),
                tx.now,
                None,
                self.rows,
                0,
                tx.now,
                encoded,
            )
        )
        # The one before is published: else this one would not have begun.
        tx.claims.delete(queue.queue_id, self.consumer, self.number - 1)


def _take_in(tx: Transaction, queue: QueueRecord, other: OtherRow) -> bool:
    """Make a message of a row, unless it is known or its handler has only sent; then settle its attempt."""
    is_known = tx.message_ids.find(queue.queue_id, other.content, "") is not None
    if is_known and other.staged.outcome != Outcome.COMPLETED.value:
        return False
    settlement = settlement_of(tx, other.staged)
    if is_known or settlement.outcome is Outcome.COMPLETED:
        return False
    before = tx.message_ids.find(queue.queue_id, other.origin, "")
    message = other.message
    key = tx.sequences.take_key(queue, message.session_id or message.partition_key)
    # One that waits behind others of its session is as new as one that was sent.
    waits = settlement.outcome is Outcome.RELEASED
    counters = Counters() if waits else Counters(deliveries=1)
    row = MessageRow(
        key=key, state=FRESH if waits else READY, due=None, expires=None, enqueued=tx.now,
        message_id=tx.new_message_id(),
        session_id=message.session_id, lock_token=None, locked_at=None if waits else tx.now,
        locked_by=None if waits else "spark", **counters._asdict(),
        generation=0, deferred=0, enqueued_sequence_number=None, resubmitted_from=None,
        headers=message.headers, body_id=None,
    )  # fmt: skip
    tx.insert_row(row, message.body)
    number = sequence_of(key)
    for name in (other.content, other.origin):
        tx.message_ids.remember(queue.queue_id, name, "", tx.now + _REMEMBERED, number)
    if before is not None:
        note(tx, "origin_reused", queue, number, before=before)
    if not waits:
        settle_row(tx, queue, row, settlement)
    return True
