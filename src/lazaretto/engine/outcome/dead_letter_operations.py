"""Finds dead letters."""

from __future__ import annotations

import dataclasses
import functools
from array import array
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from lazaretto.engine.command import check_numbers
from lazaretto.engine.entities.queues import refuse_topic, require_queue
from lazaretto.engine.messages.peek import in_parts
from lazaretto.errors import FilterError, InvalidOption, MessageNotFound
from lazaretto.model.causes import LAST_CAUSE
from lazaretto.model.checks import shown, text, whole
from lazaretto.model.clock import check, to_datetime, to_micros
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.model.failure import Failure
from lazaretto.model.filters.rules import sql
from lazaretto.model.filters.view import MessageView
from lazaretto.model.fingerprint import fingerprint_of, shown_fingerprint
from lazaretto.model.keys import (
    SEQUENCE_BITS,
    dead_key,
    lower_bound,
    main_key,
    place_of,
    queue_of,
    sequence_of,
    upper_bound,
)
from lazaretto.model.messages import Attempt, DeadLetter, PeekedMessage
from lazaretto.model.options import option_set
from lazaretto.model.policy import Counters, Outcome
from lazaretto.store.records.messages import LOCKED, AttemptRecord, MessageRow, QueueRecord
from lazaretto.store.records.repairs import CauseRecord, DeadLetterCriteria, DeadLetterRecord
from lazaretto.store.sql.transaction import Transaction

_counters = msgspec.json.Decoder(Counters)
#: How many dead letters are looked up at once when only their numbers are known.
_PAGE = 10_000
#: Messages that are read at once for a condition on them, whose bodies are in memory then.
_MESSAGES = 200
#: Runs of sequence numbers that one entry of the audit log names.
_MOST_RUNS = 20


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Selects dead letters of a queue: those that match every part that is given.

    `cause` is a number from `triage`. `reason` and `error_type` must match exactly. `since` (inclusive) and
    `until` (exclusive) are aware datetimes and bound the time of dead-lettering. `text` is searched in the
    body (as UTF-8), the description and the error message. `where` is a condition on the message in the
    language of SQL filters, such as "body.dest = 'BQN'"; a message for which it fails is not selected. An
    empty filter selects all.
    """

    reason: str | None = None
    error_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None
    sequence_numbers: tuple[int, ...] | None = None
    cause: int | None = None
    message_id: str | None = None
    where: str | None = None

    def __post_init__(self) -> None:
        for name in ("reason", "error_type", "text", "message_id", "where"):
            value = getattr(self, name)
            if value is not None:
                text(name, value, 4096)
        for name in ("since", "until"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
                raise InvalidOption(f"expected {name} to be a datetime with a time zone, got {shown(value)}")
        if self.where is not None:
            _condition(self.where)
        if self.cause is not None:
            whole("cause", self.cause, 1, LAST_CAUSE)
        if self.sequence_numbers is not None:
            object.__setattr__(self, "sequence_numbers", tuple(check_numbers(self.sequence_numbers)))

    @property
    def is_empty(self) -> bool:
        return all(getattr(self, f.name) is None for f in dataclasses.fields(self))

    def as_detail(self) -> dict[str, Any]:
        """Return the given parts, as the audit log records them."""
        parts = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {name: value for name, value in parts if value is not None}

    def criteria(
        self, tx: Transaction, queue: QueueRecord, subqueue: Subqueue, after: int = 0
    ) -> DeadLetterCriteria:
        """Return this filter as criteria for the store, for sequence numbers above `after`."""
        first = lower_bound(queue.queue_id)
        numbers = self.sequence_numbers
        criteria = DeadLetterCriteria(
            first=first + after,
            last=upper_bound(queue.queue_id),
            subqueue=place_of(subqueue),
            reason=self.reason,
            error_type=self.error_type,
            since=None if self.since is None else to_micros(self.since),
            until=None if self.until is None else to_micros(self.until),
            keys=None if numbers is None else [first + n for n in numbers],
            text=self.text,
            fingerprints=None if self.cause is None else self._fingerprints(tx, queue, subqueue),
        )
        if self.message_id is None:
            return criteria
        named = tx.listings.with_id(criteria, self.message_id, _PAGE)
        return msgspec.structs.replace(
            criteria, keys=named if criteria.keys is None else sorted(set(criteria.keys).intersection(named))
        )

    @property
    def scans(self) -> bool:
        """Whether no index finds what is selected."""
        return any(part is not None for part in (self.reason, self.error_type, self.text, self.where))

    def selects(self, tx: Transaction, subqueue: Subqueue, keys: Sequence[int]) -> Sequence[int]:
        """Return those of the keys of unresolved dead letters whose messages meet it, in their order."""
        if self.where is None or not keys:
            return keys
        condition, numbers = _condition(self.where), set[int]()
        for start in range(0, len(keys), _MESSAGES):
            some = keys[start : start + _MESSAGES]
            workers = tx.history.workers(some) if sql().names_attempts(self.where) else {}
            dead = [dead_key(key, subqueue) for key in some]
            for part in in_parts(dead, tx.sizes_of(dead)):
                for message in tx.peek_keys(part):
                    check()
                    key = main_key(message.key)
                    if _meets(condition, message, workers.get(key)):
                        numbers.add(key)
        return [key for key in keys if key in numbers]

    def passing(
        self, tx: Transaction, subqueue: Subqueue, records: list[DeadLetterRecord]
    ) -> list[DeadLetterRecord]:
        """Return those of the records of unresolved dead letters whose messages meet the condition."""
        if self.where is None:
            return records
        chosen = set(self.selects(tx, subqueue, [record.key for record in records]))
        return [record for record in records if record.key in chosen]

    def _fingerprints(self, tx: Transaction, queue: QueueRecord, subqueue: Subqueue) -> Sequence[int]:
        place = lower_bound(queue.queue_id, subqueue) >> SEQUENCE_BITS
        cause = known_cause(tx, place, self.cause or 0, queue.path)
        return [p.fingerprint for p in tx.causes.fingerprints(place) if p.cause == cause.number]


@functools.lru_cache(maxsize=16)
def _condition(where: str) -> Callable[[MessageView], object]:
    """Return a condition on messages. Raises FilterSyntaxError."""
    condition: Callable[[MessageView], object] = sql().compile_filter(where)
    return condition


def meets(where: str, message: PeekedMessage, worker: str | None = None) -> bool:
    """Return whether a condition is true of a message. `worker`: who tried it last."""
    return _meets(_condition(where), message, worker)


def _meets(
    condition: Callable[[MessageView], object], message: PeekedMessage, worker: str | None = None
) -> bool:
    body = message.body
    view = MessageView(
        message.headers, message.message_id, enqueued=message.enqueued, size=len(body), body=lambda: body,
        worker=worker,
    )  # fmt: skip
    try:
        return condition(view) is True
    except FilterError:
        return False


def known_cause(tx: Transaction, place: int, number: int, path: str) -> CauseRecord:
    """Return a cause, or the one it was merged into. Raises MessageNotFound."""
    causes = {cause.number: cause for cause in tx.causes.all(place)}
    record = causes.get(number)
    while record is not None and record.merged_into is not None:
        record = causes.get(record.merged_into)
    if record is None:
        raise MessageNotFound(f"no cause {number} in {path!r}; triage lists them")
    return record


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
    """A dead letter that was not processed, and the reason."""

    sequence_number: int
    why: str


def history(tx: Transaction, key: int) -> tuple[Attempt, ...]:
    """Return all attempts of a message, earlier generations first."""
    attempts: list[Attempt] = []
    current: int | None = key
    while current is not None:
        attempts[:0] = attempts_at(tx, current)
        row, record = tx.row(current), tx.history.dead_letter(current)
        current = row.resubmitted_from if row else record.resubmitted_from if record else None
    return tuple(attempts)


def attempts_at(tx: Transaction, key: int) -> tuple[Attempt, ...]:
    """Return the attempts of one generation of a message."""
    return tuple(
        Attempt(
            number=a.number,
            started=None if a.started is None else to_datetime(a.started),
            ended=to_datetime(a.ended),
            worker=a.worker,
            outcome=Outcome(a.outcome),
            error_type=a.error_type,
            error_message=a.error_message,
            stack=a.stack,
            site=a.site,
            fingerprint=_fingerprint_of(tx, a),
        )
        for a in tx.history.attempts(key)
    )


def _fingerprint_of(tx: Transaction, attempt: AttemptRecord) -> str | None:
    """Return the fingerprint of a stored attempt: it is the same for all that failed alike."""
    if attempt.error_type is None:
        return None
    failure = Failure(attempt.error_type, attempt.error_message, attempt.stack, attempt.site)
    return shown_fingerprint(fingerprint_of(None, None, failure).number, tx.access.fingerprint_key())


def messages_of(tx: Transaction, records: Iterable[DeadLetterRecord]) -> dict[int, PeekedMessage]:
    """Return the messages of unresolved dead letters, by key."""
    keys = [record.key | record.subqueue << SEQUENCE_BITS for record in records if record.resolution is None]
    return {main_key(message.key): message for message in (tx.peek_keys(keys) if keys else ())}


def fields_of(tx: Transaction, queue: QueueRecord, record: DeadLetterRecord) -> dict[str, Any]:
    """Return the fields of a stored dead letter that each view of it has, as users see them."""
    number = record.fingerprint
    return {
        "queue": queue.path,
        "sequence_number": sequence_of(record.key),
        "message_id": record.message_id,
        "reason": record.reason,
        "description": record.description,
        "error_type": record.error_type,
        "error_message": record.error_message,
        "dead_lettered": to_datetime(record.dead_lettered),
        "enqueued": to_datetime(record.enqueued),
        "generation": record.generation,
        "fingerprint": None if number is None else shown_fingerprint(number, tx.access.fingerprint_key()),
    }


def letter_of(
    tx: Transaction, queue: QueueRecord, record: DeadLetterRecord, message: PeekedMessage | None
) -> DeadLetter:
    """Return a dead letter as users see it, without its attempts."""
    return DeadLetter(
        **fields_of(tx, queue, record),
        counters=_counters.decode(record.counters),
        message=message,
        resolution=record.resolution,
        resolved=None if record.resolved is None else to_datetime(record.resolved),
        resubmitted_as=None if record.resubmitted_as is None else sequence_of(record.resubmitted_as),
    )


def holder(tx: Transaction, path: EntityPath) -> QueueRecord:
    """Return the queue or subscription that holds the dead letters. Raises EntityNotFound, NotAllowed."""
    queue = require_queue(tx, path)
    refuse_topic(queue, "the dead letters are in its subscriptions")
    return queue


def show_dead_letter(tx: Transaction, path: EntityPath, number: int) -> DeadLetter:
    """Return one dead letter with its history, or how it was resolved."""
    queue = holder(tx, path)
    record = tx.history.dead_letter(lower_bound(queue.queue_id) + number)
    if record is None or record.subqueue != place_of(path.subqueue):
        raise MessageNotFound(f"no dead letter {number} in {str(path)!r}")
    letter = letter_of(tx, queue, record, messages_of(tx, [record]).get(record.key))
    went = record.resubmitted_as
    target = (
        None
        if went is None or record.resolution not in ("moved", "forwarded")
        else tx.queues.by_id(queue_of(went))
    )
    moved_to = None if target is None else target.path
    return dataclasses.replace(letter, attempts=history(tx, record.key), moved_to=moved_to)


def workers_of(tx: Transaction, path: EntityPath, numbers: Sequence[int]) -> dict[int, str]:
    """Return who made the latest attempt at each dead letter, by sequence number, where that is known."""
    first = lower_bound(holder(tx, path).queue_id)
    workers = tx.history.workers([first + number for number in numbers])
    return {sequence_of(key): worker for key, worker in workers.items()}


def match_dead_letters(tx: Transaction, path: EntityPath, which: DeadLetterFilter) -> Sequence[int]:
    """Return the sequence numbers of all dead letters that the filter selects."""
    queue = holder(tx, path)
    # There may be millions, so each takes only eight bytes.
    matches, after = array("q"), 0
    while True:
        keys = tx.history.dead_letter_keys(which.criteria(tx, queue, path.subqueue, after), _PAGE)
        matches.extend(map(sequence_of, which.selects(tx, path.subqueue, keys)))
        if len(keys) < _PAGE:
            return matches
        after = sequence_of(keys[-1])


def name_numbers(numbers: Iterable[int]) -> dict[str, Any]:
    """Return messages as the audit log records them: count and numbers, with runs as "first-last"."""
    ordered = sorted(numbers)
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if len(runs) > _MOST_RUNS:
        # The events list each message.
        return {"count": len(ordered), "first": ordered[0], "last": ordered[-1]}
    return {
        "count": len(ordered),
        "sequence_numbers": [a if a == b else f"{a}-{b}" for a, b in runs],
    }


def find_obstacle(
    row: MessageRow | None, record: DeadLetterRecord | None, until: int | None = None
) -> str | None:
    """Return why a dead letter cannot be processed, or None if it can.

    `until`: one that was set aside later is another one than was meant.
    """
    if record is None:
        return "not found"
    if record.resolution is not None or row is None:
        return f"already {record.resolution or 'gone'}"
    if until is not None and record.dead_lettered > until:
        return "dead-lettered again since it was selected"
    return "locked by a receiver of the dead-letter subqueue" if row.state == LOCKED else None
