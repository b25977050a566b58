"""History in SQL: the part of a transaction for attempts, dead letters, events and the audit log.

Rates count what happens to messages.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from lazaretto.model.fingerprint import Fingerprint
from lazaretto.model.keys import SEQUENCE_BITS, lower_bound, queue_of
from lazaretto.model.rates import DEAD, KINDS, Counts
from lazaretto.model.reservoir import Kept
from lazaretto.store.records.messages import (
    CLIENTS,
    AttemptRecord,
    AuditCriteria,
    AuditRecord,
    ErrorRecord,
    EventRecord,
    NewEvent,
    SampleRecord,
)
from lazaretto.store.records.repairs import DeadLetterCriteria, DeadLetterRecord
from lazaretto.store.sql.cause_tables import HOUR, CauseTables
from lazaretto.store.sql.commit_context import CommitContext, Part

#: What is stored of a dead letter, in its order.
_LETTER = operator.attrgetter(
    "key", "message_id", "reason", "description", "error_type", "error_message", "dead_lettered", "enqueued",
    "generation", "counters", "resubmitted_from", "subqueue",
)  # fmt: skip


class LetterQuery(NamedTuple):
    """A query of dead letters in its forms: of all, of those with some fingerprints, and among some keys."""

    all: str
    alike: str
    named: str


_LETTERS = LetterQuery("select_dead_letters", "select_dead_letters_alike", "select_dead_letters_named")
_KEYS = LetterQuery("select_letter_keys", "select_letter_keys_alike", "select_letter_keys_named")


def error_of(attempt: AttemptRecord) -> ErrorRecord:
    """Return the error of an attempt that had one."""
    assert attempt.error_type is not None
    return ErrorRecord(attempt.error_type, attempt.error_message, attempt.stack, attempt.site)


class HistoryTables(Part):
    """Operations on attempts, dead letters, events and audit within one commit."""

    def __init__(self, context: CommitContext, causes: CauseTables) -> None:
        super().__init__(context)
        self._causes = causes
        self._rates = RateTables(context)
        #: The latest errors of messages that were looked at ahead.
        self._latest: dict[int, ErrorRecord | None] = {}

    # -- attempts and dead letters --------------------------------------------------------------

    def insert_attempts(self, attempts: Sequence[tuple[int, AttemptRecord]]) -> None:
        """Add to the histories of messages, each given by its key."""
        rows = [(key, (key, *msgspec.structs.astuple(attempt))) for key, attempt in attempts]
        self._context.gather_all("insert_attempts", rows)
        for key, attempt in attempts:
            if key in self._latest and attempt.error_type is not None:
                self._latest[key] = error_of(attempt)

    def trim_attempts(self, key: int, number: int) -> None:
        """Delete a message's attempts up to a number."""
        self._context.run("trim_attempts", (key, number))

    def attempts(self, key: int) -> list[AttemptRecord]:
        """Return a message's history, oldest first."""
        return [AttemptRecord(*row) for row in self._context.run("select_attempts", (key,))]

    def workers(self, keys: Sequence[int]) -> dict[int, str]:
        """Return who made the latest attempt at each message, by key, where that is known."""
        return dict(self._context.run("select_triers", (self._context.ids(keys),)))

    def refundable(self, first: int, last: int, since: int) -> dict[int, int]:
        """Return how often clients' failures were charged to messages between two keys since a time."""
        values = {"first": first, "last": last, "since": since, "clients": CLIENTS}
        return dict(sorted(self._context.run("select_refundable", values).fetchall()))

    def refund(self, keys: Sequence[int], since: int) -> None:
        """Record that these charges do not count."""
        values = {"keys": self._context.ids(keys), "since": since, "clients": CLIENTS}
        self._context.run("refund_attempts", values)

    def move_attempts(self, key: int, new_key: int) -> None:
        """Move a message's history to another key."""
        self._context.run("move_attempts", (new_key, key))

    def delete_attempts(self, keys: Sequence[int]) -> None:
        """Delete the history of messages."""
        self._context.run("delete_attempts", (self._context.ids(keys),))

    def look_ahead(self, keys: Sequence[int]) -> None:
        """Read the latest errors of several messages, up to `forget_ahead`."""
        if unread := [key for key in keys if key not in self._latest]:
            rows = self._context.run("select_last_errors", {"keys": self._context.ids(unread)})
            errors: dict[int, ErrorRecord | None] = {key: ErrorRecord(*error) for key, *error in rows}
            self._latest.update({key: errors.get(key) for key in unread})

    def forget_ahead(self) -> None:
        """Forget what was looked at ahead."""
        self._latest = {}

    def last_error(self, key: int) -> ErrorRecord | None:
        """Return a message's latest error."""
        if key in self._latest:
            return self._latest[key]
        row = self._context.run("select_last_error", (key,)).fetchone()
        return ErrorRecord(*row) if row else None

    def insert_dead_letter(self, record: DeadLetterRecord, print_: Fingerprint) -> None:
        """Record why a message was dead-lettered, and count it by its fingerprint."""
        number = self._causes.count_letter((record.key >> SEQUENCE_BITS) | record.subqueue, print_)
        self._context.gather("insert_dead_letters", (*_LETTER(record), number), record.key)
        self._rates.count(queue_of(record.key), DEAD)

    def dead_letter(self, key: int) -> DeadLetterRecord | None:
        """Return one dead letter, resolved or not."""
        row = self._context.run("select_dead_letter", (key,)).fetchone()
        return DeadLetterRecord(*row) if row else None

    def some_dead_letters(self, keys: Sequence[int]) -> dict[int, DeadLetterRecord]:
        """Return several dead letters, resolved or not, by key."""
        rows = self._context.run("select_some_dead_letters", (self._context.ids(keys),))
        return {row[0]: DeadLetterRecord(*row) for row in rows}

    def dead_letters(self, criteria: DeadLetterCriteria, limit: int) -> list[DeadLetterRecord]:
        """Return unresolved dead letters, lowest sequence number first."""
        return [DeadLetterRecord(*row) for row in self.selected(_LETTERS, criteria, limit)]

    def dead_letter_keys(self, criteria: DeadLetterCriteria, limit: int) -> list[int]:
        """Return only the keys of unresolved dead letters."""
        return [key for (key,) in self.selected(_KEYS, criteria, limit)]

    def selected(self, query: LetterQuery, criteria: DeadLetterCriteria, limit: int) -> Any:
        """Run the form of a query that finds what criteria select with the least reading."""
        name = query.all
        if criteria.keys is not None:
            name = query.named
        elif criteria.fingerprints is not None:
            name = query.alike
        return self._context.run(name, self.criteria_values(criteria, limit))

    def criteria_values(self, criteria: DeadLetterCriteria, limit: int) -> dict[str, Any]:
        """Return criteria as the parameters of a query that selects by them."""
        keys = None if criteria.keys is None else self._context.ids(criteria.keys)
        prints = self._context.ids(criteria.fingerprints or ())
        alike = int(criteria.fingerprints is not None)
        values = msgspec.structs.asdict(criteria)
        return {**values, "keys": keys, "fingerprints": prints, "alike": alike, "limit": limit}

    def resolve_dead_letters(self, keys: Sequence[int], resolution: str) -> None:
        """Record how dead letters were resolved, and stop counting them."""
        self._causes.uncount_letters(keys)
        values = {"keys": self._context.ids(keys), "resolution": resolution, "now": self._context.now}
        self._context.run("resolve_dead_letters", values)

    def send_dead_letters(self, sent: Mapping[int, int | None], resolution: str) -> None:
        """Record dead letters as resubmitted or moved, with their new keys."""
        self._causes.uncount_letters(list(sent))
        values = [value for pair in sent.items() for value in (*pair, self._context.now, resolution)]
        self._context.insert("send_dead_letters", values, len(sent))

    def purged(self, first: int, last: int, subqueue: int) -> list[int]:
        """Return the keys of purged dead letters that can be restored, lowest first."""
        values = {"first": first, "last": last, "subqueue": subqueue}
        return [key for (key,) in self._context.run("select_purged", values)]

    def purged_before(self, before: int, limit: int) -> list[int]:
        """Return the keys of dead letters that were purged before a time."""
        values = {"before": before, "limit": limit}
        return [key for (key,) in self._context.run("select_purged_before", values)]

    def mark_deleted(self, keys: Sequence[int]) -> None:
        """Record that purged dead letters were deleted for good."""
        self._context.run("mark_deleted", (self._context.ids(keys),))

    def forget_old(self, before: int, limit: int) -> bool:
        """Delete old events, resolved dead letters and message ids; return whether there may be more."""
        events = self._context.run("delete_old_events", (before, limit)).rowcount
        self._context.run("delete_old_workers", (before,))
        self._context.run("delete_old_outbox", (before,))
        self._context.run("delete_old_hours", (before // HOUR,))
        count = self._context.run("delete_old_message_ids", (self._context.now, limit)).rowcount
        old = [key for (key,) in self._context.run("select_resolved", (before, limit))]
        if old:
            self._context.run("delete_dead_letters", (self._context.ids(old),))
            self._context.run("delete_attempts", (self._context.ids(old),))
        return max(events, count, len(old)) >= limit

    # -- events and audit -----------------------------------------------------------------------

    def insert_events(self, kind: str, events: Sequence[NewEvent]) -> None:
        """Add to the event log."""
        now = self._context.now
        rows = [(None, (now, kind, one.queue, one.sequence_number, one.detail)) for one in events]
        self._context.gather_all("insert_events", rows)
        self._context.wake(0)

    def events(self, after: int, limit: int, *, kind: str | None, queue: str | None) -> list[EventRecord]:
        """Return events after a position, oldest first."""
        values = {"after": after, "limit": limit, "kind": kind, "queue": queue and queue.lower()}
        return [EventRecord(*row) for row in self._context.run("select_events", values)]

    def events_before(
        self, before: int, limit: int, *, kind: str | None, queue: str | None
    ) -> list[EventRecord]:
        """Return events before a position, newest first."""
        values = {"before": before, "limit": limit, "kind": kind, "queue": queue and queue.lower()}
        return [EventRecord(*row) for row in self._context.run("select_events_before", values)]

    def end(self, queue: str, sequence_number: int, limit: int) -> EventRecord | None:
        """Return the event "dropped" or "rejected" of a message, if it is among so many latest events."""
        values = {"queue": queue, "sequence_number": sequence_number, "limit": limit}
        row = self._context.run("select_end", values).fetchone()
        return None if row is None else EventRecord(*row)

    def last_event(self) -> int:
        """Return the position of the latest event."""
        (position,) = self._context.run("last_event").fetchone()
        return int(position)

    def insert_audit(self, actor: str, action: str, queues: Sequence[str], detail: str) -> None:
        """Add an entry about each of several entities to the audit log."""
        values: list[Any] = []
        for queue in queues:
            values += (self._context.now, actor, action, queue, detail)
        self._context.insert("insert_audit", values, len(queues))

    def audit(self, criteria: AuditCriteria, limit: int) -> list[AuditRecord]:
        """Return operators' actions, newest first."""
        values = {**msgspec.structs.asdict(criteria), "limit": limit}
        return [AuditRecord(*row) for row in self._context.run("select_audit", values)]


class SampleTables(Part):
    """Operations on kept messages within one commit."""

    def keep(self, keys: Sequence[int], longest: int) -> None:
        """Keep messages that are about to be removed, except those with a body above a limit."""
        context = self._context
        values = {
            "now": context.now, "keys": context.ids(keys), "longest": longest, "worker": context.worker,
        }  # fmt: skip
        context.run("keep_samples", values)

    def put(self, samples: Sequence[SampleRecord]) -> None:
        """Keep messages in the form given, as completed now, by this process if no worker is given."""
        now = self._context.now
        values = [
            v
            for one in samples
            for v in (
                one.key, now, one.message_id, one.enqueued, one.headers, one.body,
                one.worker or self._context.worker,
            )
        ]  # fmt: skip
        if values:
            self._context.insert("insert_samples", values, len(samples))

    def standing(self, queue_id: int) -> list[Kept]:
        """Return the records of a queue's kept messages, without the messages."""
        return [Kept(*row) for row in self._context.run("select_sample_sizes", _bounds(queue_id))]

    def of_queue(self, queue_id: int) -> list[SampleRecord]:
        """Return a queue's kept messages."""
        return [
            SampleRecord(key, message_id, enqueued, headers and bytes(headers), bytes(body), worker, kept)
            for key, message_id, enqueued, headers, body, worker, kept in self._context.run(
                "select_samples", _bounds(queue_id)
            )
        ]

    def remove(self, keys: Sequence[int]) -> None:
        """Remove kept messages."""
        self._context.run("delete_samples", (self._context.ids(keys),))

    def remove_all(self, queue_id: int) -> None:
        """Remove all kept messages of a queue."""
        self._context.run("delete_samples_of", _bounds(queue_id))


def _bounds(queue_id: int) -> tuple[int, int]:
    return lower_bound(queue_id), lower_bound(queue_id + 1)


#: The number of columns of add_rates.
_WIDTH = 3 + KINDS


class RateTables(Part):
    """Operations on rates within one commit."""

    def count(self, queue_id: int, kind: int, amount: int = 1) -> None:
        """Count messages of a queue, once the commit is done; a later commit writes the sums."""
        self._context.rates.entries.append((queue_id << 3 | kind, amount))

    def add(self, rows: Iterable[Sequence[int]]) -> None:
        """Add sums: queue, span, start and counts."""
        values: list[Any] = [value for row in rows for value in row]
        self._context.insert("add_rates", values, len(values) // _WIDTH)
        self._context.adds_rates = True

    def of(self, queue_id: int, span: int, since: int) -> list[tuple[int, Counts]]:
        """Return a queue's counts by start."""
        values = {"queue_id": queue_id, "span": span, "since": since}
        return [(start, _counts(counts)) for start, *counts in self._context.run("select_rates", values)]

    def recent(self, queue_ids: Sequence[int], since: int) -> dict[int, Counts]:
        """Return the sums of queues over the minutes since one, by queue."""
        values = {"ids": self._context.ids(queue_ids), "since": since}
        return {queue: _counts(counts) for queue, *counts in self._context.run("sum_rates", values)}

    def totals(self, queue_ids: Sequence[int]) -> dict[int, Counts]:
        """Return all that was ever counted for queues, and for ALL_QUEUES, by queue."""
        rows = self._context.run("select_totals", {"ids": self._context.ids(queue_ids)})
        return {queue: _counts(counts) for queue, *counts in rows}

    def forget(self, span: int, before: int, limit: int) -> bool:
        """Remove some counts of spans that started earlier; return whether there may be more."""
        values = {"span": span, "before": before, "limit": limit}
        return self._context.run("forget_rates", values).rowcount >= limit


def _counts(counts: Sequence[Any]) -> Counts:
    sent, received, completed, failed, dead = map(int, counts)
    return sent, received, completed, failed, dead
