"""Settles micro-batches of rows of other sources: those that failed enter the queue, beside claims."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lazaretto.engine.claims.consumers import ClaimOperation, ConsumerOperation, identified, require_claims
from lazaretto.engine.claims.end_claims import ClaimSummary
from lazaretto.engine.claims.settle_claims import SettleClaims, StagedRow, settlement_of
from lazaretto.engine.log import note
from lazaretto.engine.messages.settle import Settlement, settle_row
from lazaretto.errors import ClaimFenced, InvalidOption
from lazaretto.model.entities import EntityPath, PoisonSession, QueueOptions
from lazaretto.model.keys import sequence_of
from lazaretto.model.messages import sent_columns
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
class BeginRows(ConsumerOperation[RowBatch]):
    """Return the number of a micro-batch of rows. `batch`: None: the writer has only this one.

    `has_session`: its rows are of sessions. Raises InvalidOption: the queue's messages are not, or are.
    """

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

    stage: str
    rows: Sequence[OtherRow]

    durable = False

    def run(self, tx: Transaction) -> None:
        require_claims(tx, self.path)
        tx.claims.insert_outbox(self.stage, _encode(list(self.rows)))


@dataclasses.dataclass(slots=True)
class SettleRows(ConsumerOperation[None]):
    """Settle a micro-batch of rows, with claims of the same queue: all of it, or nothing. Once.

    `stages`: of the rows' tasks; `results`: how many results each of these has. `claims`: what settles the
    claims of what came back. `instead`: stages of rows that count instead of the same rows of `stages`: the
    place of results has refused their results. Raises ClaimFenced: another query has settled a batch
    meanwhile.
    """

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
                taken.update(_take_in(tx, queue, rows))
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


def _take_in(tx: Transaction, queue: QueueRecord, others: Sequence[OtherRow]) -> Counter[str]:
    """Make messages of rows, but for those that are known or whose handler has only sent; settle them.

    Returns how many there are of each outcome. All are inserted first, so that the store writes many at once.
    """
    numbers = tx.message_ids.find_all(queue.queue_id, [name for one in others for name in _names(one)])
    new: dict[str, int] = {}
    attempts: list[tuple[MessageRow, Settlement]] = []
    inserted: list[tuple[MessageRow, bytes]] = []
    taken: Counter[str] = Counter()
    for other in others:
        is_known = other.content in numbers
        if is_known and other.staged.outcome != Outcome.COMPLETED.value:
            continue
        settlement = settlement_of(tx, other.staged)
        if is_known or settlement.outcome is Outcome.COMPLETED:
            continue
        row = _row_of(tx, queue, other.message, waits=settlement.outcome is Outcome.RELEASED)
        inserted.append((row, other.message.body))
        number = sequence_of(row.key)
        before = numbers.get(other.origin)
        if before is not None:
            note(tx, "origin_reused", queue, number, before=before)
        names = dict.fromkeys(_names(other), number)
        numbers.update(names)
        new.update(names)
        if settlement.outcome is not Outcome.RELEASED:
            attempts.append((row, settlement))
        taken[other.staged.outcome] += 1
    if inserted:
        tx.insert_rows(inserted)
        tx.message_ids.remember_all(queue.queue_id, new, tx.now + _REMEMBERED)
    with tx.together(len(attempts)):
        tx.look_ahead([row.key for row, _ in attempts])
        for row, settlement in attempts:
            settle_row(tx, queue, row, settlement)
    return taken


def _names(other: OtherRow) -> tuple[str, str]:
    return other.content, other.origin


def _row_of(tx: Transaction, queue: QueueRecord, message: NewMessage, *, waits: bool) -> MessageRow:
    """Return the new message of a row. `waits`: behind others of its session, as new as one that was sent."""
    key = tx.sequences.take_key(queue, message.session_id or message.partition_key)
    counters = Counters() if waits else Counters(deliveries=1)
    return MessageRow(
        key=key, state=FRESH if waits else READY, due=None, expires=None, enqueued=tx.now,
        message_id=tx.new_message_id(),
        session_id=message.session_id, lock_token=None, locked_at=None if waits else tx.now,
        locked_by=None if waits else "spark", **counters._asdict(),
        generation=0, deferred=0, enqueued_sequence_number=None, resubmitted_from=None,
        headers=message.headers, body_id=None, **sent_columns(message),
    )  # fmt: skip
