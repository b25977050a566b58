"""Dead letters: found, grouped, sent back repaired, or purged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from lazaretto.clock import to_datetime, to_micros
from lazaretto.conversations import place_of_lane
from lazaretto.engine.conversations import open_conversation
from lazaretto.engine.delivery import pass_on, resolve
from lazaretto.engine.forwards import forwards
from lazaretto.engine.log import audit, note
from lazaretto.engine.prepare import check_size, prepare
from lazaretto.engine.queues import require_queue
from lazaretto.engine.receive import STATES
from lazaretto.engine.status import refuse_sending
from lazaretto.entities import EntityPath, Subqueue
from lazaretto.errors import InvalidMessage, InvalidOption, LazarettoError, MessageNotFound, NotAllowed
from lazaretto.headers import Headers, decode_headers, encode_headers
from lazaretto.keys import (
    LAST_SEQUENCE,
    SEQUENCE_BITS,
    dead_key,
    first_key,
    last_key,
    main_key,
    place_of,
    sequence_of,
)
from lazaretto.messages import Attempt, DeadLetter, Message, PeekedMessage
from lazaretto.options import option_set, shown, text
from lazaretto.policy import Counters, Outcome
from lazaretto.store.contract import Operation, Transaction
from lazaretto.store.records import (
    FRESH,
    LOCKED,
    READY,
    DeadLetterCriteria,
    DeadLetterRecord,
    MessageRow,
    QueueRecord,
)

#: Returns the message to send instead of a dead letter, or None to send it back as it is.
Edit = Callable[[DeadLetter], Message | None]


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Which dead letters of a queue are meant: those that meet every part that is given.

    `reason` and `error_type` are compared whole. `since` (included) and `until` (not included) are
    aware datetimes of when the message was set aside. `text` is sought in the body (as UTF-8), the
    description and the error's message. An empty filter means all.
    """

    reason: str | None = None
    error_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None
    sequence_numbers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("reason", "error_type", "text"):
            value = getattr(self, name)
            if value is not None:
                text(name, value, 4096)
        for name in ("since", "until"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
                raise InvalidOption(f"expected {name} to be a datetime with a time zone, got {shown(value)}")
        if self.sequence_numbers is not None:
            object.__setattr__(self, "sequence_numbers", tuple(check_numbers(self.sequence_numbers)))

    @property
    def is_empty(self) -> bool:
        return all(getattr(self, f.name) is None for f in dataclasses.fields(self))

    def as_detail(self) -> dict[str, Any]:
        """Return the parts that are given, as the audit log keeps them."""
        parts = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {name: value for name, value in parts if value is not None}

    def criteria(self, queue: QueueRecord, subqueue: Subqueue, after: int = 0) -> DeadLetterCriteria:
        """Return this filter as the store takes it, for sequence numbers above `after`."""
        first = first_key(queue.queue_id)
        numbers = self.sequence_numbers
        return DeadLetterCriteria(
            first=first + after,
            last=last_key(queue.queue_id),
            subqueue=place_of(subqueue),
            reason=self.reason,
            error_type=self.error_type,
            since=None if self.since is None else to_micros(self.since),
            until=None if self.until is None else to_micros(self.until),
            keys=None if numbers is None else [first + n for n in numbers],
            text=self.text,
        )


def check_numbers(numbers: object) -> list[int]:
    """Return sequence numbers as a list, else raise InvalidOption."""
    given = numbers if isinstance(numbers, Iterable) else [numbers]
    found: list[int] = []
    for number in given:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= LAST_SEQUENCE:
            raise InvalidOption(f"expected sequence numbers, integers from 1, got {shown(number)}")
        found.append(number)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters that share reason and error type."""

    reason: str | None
    error_type: str | None
    count: int
    first: datetime
    last: datetime
    example: int


@dataclasses.dataclass(frozen=True, slots=True)
class Skipped:
    """A dead letter that was left where it is, and why."""

    sequence_number: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class ResubmitReport:
    """What was sent back: old and new sequence numbers; and what was not, and why."""

    resubmitted: dict[int, int]
    skipped: list[Skipped]


def history(tx: Transaction, key: int) -> tuple[Attempt, ...]:
    """Return all attempts of a message, those of its earlier generations first."""
    found: list[Attempt] = []
    current: int | None = key
    while current is not None:
        attempts = [
            Attempt(
                number=a.number,
                started=None if a.started is None else to_datetime(a.started),
                ended=to_datetime(a.ended),
                worker=a.worker,
                outcome=Outcome(a.outcome),
                error_type=a.error_type,
                error_message=a.error_message,
                stack=a.stack,
            )
            for a in tx.attempts(current)
        ]
        found = attempts + found
        row, record = tx.row(current), tx.dead_letter(current)
        current = row.resubmitted_from if row else record.resubmitted_from if record else None
    return tuple(found)


def _dead_letter(tx: Transaction, queue: QueueRecord, record: DeadLetterRecord) -> DeadLetter:
    message = None
    if record.resolution is None:
        key = record.key | record.subqueue << SEQUENCE_BITS
        rows = tx.peek(key - 1, key, 1, delayed=False)
        if rows:
            row = rows[0]
            message = PeekedMessage(*row[:-2], state=STATES[row[-2]], locked_until_micros=row[-1])
    return DeadLetter(
        queue=queue.path,
        sequence_number=sequence_of(record.key),
        message_id=record.message_id,
        reason=record.reason,
        description=record.description,
        error_type=record.error_type,
        error_message=record.error_message,
        dead_lettered=to_datetime(record.dead_lettered),
        enqueued=to_datetime(record.enqueued),
        counters=msgspec.json.decode(record.counters, type=Counters),
        generation=record.generation,
        message=message,
        resolution=record.resolution,
        resolved=None if record.resolved is None else to_datetime(record.resolved),
        resubmitted_as=None if record.resubmitted_as is None else sequence_of(record.resubmitted_as),
    )


def list_dead_letters(
    tx: Transaction, path: EntityPath, which: DeadLetterFilter, limit: int, after: int = 0
) -> list[DeadLetter]:
    """Return the dead letters that wait in a queue, by sequence number, from behind `after` on."""
    queue = require_queue(tx, path)
    return [
        _dead_letter(tx, queue, r)
        for r in tx.dead_letters(which.criteria(queue, path.subqueue, after), limit)
    ]


def show_dead_letter(tx: Transaction, path: EntityPath, number: int) -> DeadLetter:
    """Return one dead letter with its history, or what became of it."""
    queue = require_queue(tx, path)
    record = tx.dead_letter(first_key(queue.queue_id) + number)
    if record is None or record.subqueue != place_of(path.subqueue):
        raise MessageNotFound(f"no dead letter {number} in {str(path)!r}")
    found = _dead_letter(tx, queue, record)
    return dataclasses.replace(found, attempts=history(tx, record.key))


def group_dead_letters(tx: Transaction, path: EntityPath) -> list[DeadLetterGroup]:
    """Return the dead letters that wait in a queue, counted by reason and error type."""
    queue = require_queue(tx, path)
    bounds = first_key(queue.queue_id), last_key(queue.queue_id)
    groups = tx.dead_letter_groups(*bounds, place_of(path.subqueue))
    return [
        DeadLetterGroup(reason, kind, count, to_datetime(first), to_datetime(last), sequence_of(key))
        for reason, kind, count, first, last, key in groups
    ]


def match_dead_letters(tx: Transaction, path: EntityPath, which: DeadLetterFilter) -> list[int]:
    """Return the sequence numbers of all dead letters that the filter means."""
    queue = require_queue(tx, path)
    return [sequence_of(r.key) for r in tx.dead_letters(which.criteria(queue, path.subqueue), -1)]


@dataclasses.dataclass(slots=True)
class Resubmit(Operation[ResubmitReport]):
    """Send dead letters back to the queue they came from, in one commit.

    Same message id and a new generation: the cycle counters start again, the lifetime totals go on.
    Edited: a new id. A dead letter that cannot be sent back stays where it is.
    """

    path: EntityPath
    sequence_numbers: Sequence[int]
    actor: str
    detail: dict[str, Any]
    edit: Edit | None = None

    def run(self, tx: Transaction) -> ResubmitReport:
        queue = require_queue(tx, self.path)
        refuse_sending(queue)
        report = ResubmitReport({}, [])
        for number in dict.fromkeys(self.sequence_numbers):
            key = first_key(queue.queue_id) + number
            row, record = tx.row(dead_key(key, self.path.subqueue)), tx.dead_letter(key)
            why = _hindrance(row, record)
            if why is None:
                assert row is not None
                assert record is not None
                try:
                    new_key, edited = self._send_back(tx, queue, row, record)
                except LazarettoError as error:
                    why = str(error)
            if why is not None:
                report.skipped.append(Skipped(number, why))
                continue
            report.resubmitted[number] = sequence_of(new_key)
            resolve(tx, [key], "resubmitted", new_key)
            note(tx, "resubmitted", queue, number, new_sequence_number=sequence_of(new_key), edited=edited)
            live = tx.row(new_key)
            if live is not None and forwards(queue):
                pass_on(tx, queue, live)
        if report.resubmitted:
            numbers = list(report.resubmitted)
            audit(tx, self.actor, "resubmit", queue.path, sequence_numbers=numbers, **self.detail)
        return report

    def _send_back(
        self, tx: Transaction, queue: QueueRecord, row: MessageRow, record: DeadLetterRecord
    ) -> tuple[int, bool]:
        edited = None
        if self.edit is not None:
            try:
                edited = self.edit(_dead_letter(tx, queue, record))
            except LazarettoError:
                raise
            except Exception as error:
                raise InvalidMessage(f"the edit failed: {type(error).__name__}: {error}") from error
        headers, body = decode_headers(row.headers), None
        message_id, encoded, ttl = row.message_id, row.headers, headers.time_to_live
        if edited is not None:
            new = prepare(edited)
            check_size(new, queue.options.max_message_size)
            body, ttl = new.body, new.time_to_live
            headers = decode_headers(new.headers)
            headers = msgspec.structs.replace(headers, edit_of=row.message_id)
            encoded = encode_headers(headers)
            message_id = new.message_id or row.message_id
            if message_id == row.message_id:
                message_id = f"{row.message_id}.{row.generation + 1}"
        if queue.options.dialogs:
            # Whatever else was edited, it belongs to its conversation.
            headers = self._in_dialog(tx, row, headers)
            encoded = encode_headers(headers)
        if queue.options.requires_session and headers.session_id is None:
            raise InvalidMessage(f"queue {queue.path!r} requires sessions: a message needs a session_id")
        # A copy lives no longer than its topic and its subscription allow, whoever brings it.
        topic = None if queue.topic_id is None else tx.queue_by_id(queue.topic_id)
        defaults = [e.options.default_time_to_live for e in (queue, topic) if e is not None]
        lives = [round(seconds * 1_000_000) for seconds in defaults if seconds is not None]
        if ttl is not None:
            lives.append(ttl)
        expires = tx.now + min(lives) if lives else None
        live = msgspec.structs.replace(
            row,
            state=FRESH,
            due=expires,
            expires=expires,
            enqueued=tx.now,
            message_id=message_id,
            session_id=headers.session_id if queue.options.requires_session else None,
            delivery_count=0,
            cycle_attempts=0,
            cycle=0,
            deferred=0,
            generation=row.generation + 1,
            enqueued_sequence_number=sequence_of(row.key),
            resubmitted_from=main_key(row.key),
            headers=encoded,
        )
        if live.session_id is not None and live.session_id == tx.session_held_by(main_key(row.key)):
            # The rest of its session waits behind it: it returns to its place among them.
            new_key = main_key(row.key)
            live = msgspec.structs.replace(
                live,
                state=READY,
                enqueued_sequence_number=row.enqueued_sequence_number,
                resubmitted_from=row.resubmitted_from,
            )
        else:
            new_key = tx.take_key(queue.queue_id)
        if edited is None:
            if headers.hops:
                # It may be forwarded from the start again.
                afresh = encode_headers(msgspec.structs.replace(headers, hops=0))
                live = msgspec.structs.replace(live, headers=afresh)
            tx.save_row(live, new_key)
        else:
            tx.delete_messages([row.key])
            if row.body_id is not None:
                tx.delete_bodies([row.body_id])
            tx.insert_row(msgspec.structs.replace(live, key=new_key, body_id=None), body)
        return new_key, edited is not None

    def _in_dialog(self, tx: Transaction, row: MessageRow, headers: Headers) -> Headers:
        before = decode_headers(row.headers)
        assert before.session_id is not None
        if open_conversation(tx, place_of_lane(before.session_id).handle) is None:
            raise NotAllowed("its conversation has ended")
        return msgspec.structs.replace(
            headers,
            session_id=before.session_id,
            subject=before.subject,
            correlation_id=before.correlation_id,
        )


def _hindrance(row: MessageRow | None, record: DeadLetterRecord | None) -> str | None:
    if record is None:
        return "not found"
    if record.resolution is not None or row is None:
        return f"already {record.resolution or 'gone'}"
    return "locked by a receiver of the dead-letter subqueue" if row.state == LOCKED else None


@dataclasses.dataclass(slots=True)
class Purge(Operation[list[int]]):
    """Delete dead letters for good; the answer is which were deleted."""

    path: EntityPath
    sequence_numbers: Sequence[int]
    actor: str
    detail: dict[str, Any]

    def run(self, tx: Transaction) -> list[int]:
        queue = require_queue(tx, self.path)
        purged, bodies = [], []
        for number in dict.fromkeys(self.sequence_numbers):
            key = first_key(queue.queue_id) + number
            row = tx.row(dead_key(key, self.path.subqueue))
            if _hindrance(row, tx.dead_letter(key)) is None:
                assert row is not None
                purged.append(key)
                if row.body_id is not None:
                    bodies.append(row.body_id)
                note(tx, "purged", queue, number)
        if purged:
            tx.delete_messages([dead_key(key, self.path.subqueue) for key in purged])
            tx.delete_bodies(bodies)
            tx.delete_attempts(purged)
            resolve(tx, purged, "purged")
            numbers = [sequence_of(key) for key in purged]
            audit(tx, self.actor, "purge", queue.path, sequence_numbers=numbers, **self.detail)
        return [sequence_of(key) for key in purged]


def dead_letter_path(path: EntityPath) -> EntityPath:
    """Return the dead-letter subqueue that a path means: the one of the queue, or the one it names."""
    if path.subqueue is Subqueue.RETRY:
        raise InvalidOption(f"expected a queue or one of its dead-letter subqueues, got {str(path)!r}")
    return EntityPath(path.queue, Subqueue.DEAD_LETTER) if path.subqueue is Subqueue.MAIN else path
