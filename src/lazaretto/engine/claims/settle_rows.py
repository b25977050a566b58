"""Settles micro-batches of rows of other sources: those that failed enter the queue, beside claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import msgspec

from lazaretto.engine.claims.consumers import ClaimOperation, identified, require_claims
from lazaretto.engine.claims.end_claims import ClaimSummary
from lazaretto.engine.claims.settle_claims import SettleClaims, StagedRow, settlement_of
from lazaretto.engine.log import note
from lazaretto.engine.messages.settle import settle_row
from lazaretto.errors import ClaimFenced, InvalidOption
from lazaretto.model.entities import EntityPath, QueueOptions
from lazaretto.model.keys import sequence_of
from lazaretto.model.policy import Counters, Outcome
from lazaretto.store.records.claims import SETTLED, ClaimRecord
from lazaretto.store.records.messages import READY, MessageRow, NewMessage, QueueRecord
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


def refuse_sessions(options: QueueOptions, path: str) -> None:
    """Raise InvalidOption for a queue with sessions."""
    if options.requires_session:
        raise InvalidOption(
            f"queue {path!r} has sessions, and rows of other sources have no order there: quarantine needs a "
            "queue without sessions"
        )


@dataclasses.dataclass(slots=True)
class BeginRows(ClaimOperation[RowBatch]):
    """Return the number of a micro-batch of rows. `batch`: None: the writer has only this one.

    Raises InvalidOption: the queue has sessions.
    """

    path: EntityPath
    consumer: str
    writer: str
    batch: int | None

    def run(self, tx: Transaction) -> RowBatch:
        queue = require_claims(tx, self.path)
        refuse_sessions(queue.options, queue.path)
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
    claims of what came back. Raises ClaimFenced: another query has settled a batch meanwhile.
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

    def run(self, tx: Transaction) -> None:
        queue = require_claims(tx, self.path)
        record = tx.claims.consumer(queue.queue_id, self.consumer)
        done = self.number if self.batch is None else self.batch
        if record is not None and tx.claims.last_batch(self.writer) >= done:
            return
        if record is None or record.last_claim + 1 != self.number:
            raise ClaimFenced(
                f"another query has settled rows as {self.consumer!r} of {queue.path!r} meanwhile; nothing "
                "of this micro-batch counts: give each query a consumer of its own"
            )
        if self.claims is not None:
            self.claims.run(tx)
        failed = 0
        for stage in self.stages:
            for rows in map(_decode, tx.claims.outbox(stage)):
                failed += sum(_take_in(tx, queue, row) for row in rows)
            tx.claims.delete_outbox(stage)
        if failed:
            note(tx, "rows_set_aside", queue, rows=failed, batch=self.batch)
        tx.claims.save_writer(self.writer, done)
        moved = msgspec.structs.replace(record, last_claim=self.number, settled=self.number)
        tx.claims.save_consumer(moved)
        outcomes = {"completed": self.rows - failed, "failed": failed}
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
    key = tx.sequences.take_key(queue, message.partition_key)
    counters = Counters(deliveries=1)
    row = MessageRow(
        key=key, state=READY, due=None, expires=None, enqueued=tx.now, message_id=tx.new_message_id(),
        session_id=None, lock_token=None, locked_at=tx.now, locked_by="spark", **counters._asdict(),
        generation=0, deferred=0, enqueued_sequence_number=None, resubmitted_from=None,
        headers=message.headers, body_id=None,
    )  # fmt: skip
    tx.insert_row(row, message.body)
    number = sequence_of(key)
    for known in (other.content, other.origin):
        tx.message_ids.remember(queue.queue_id, known, "", tx.now + _REMEMBERED, number)
    if before is not None:
        note(tx, "origin_reused", queue, number, before=before)
    settle_row(tx, queue, row, settlement)
    return True
