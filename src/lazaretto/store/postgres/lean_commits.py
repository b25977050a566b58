"""Commits of plain operations: one call of a function of the server for each verb and queue.

A function that is not enough for what is to be done does nothing and says so. Then another way of committing
does it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import psycopg

from lazaretto.model.clock import MICROSECONDS
from lazaretto.model.keys import lower_bound, queue_of, sequence_of
from lazaretto.model.messages import Lock, ReceivedMessage
from lazaretto.model.rates import COMPLETED, RECEIVED, SENT
from lazaretto.store.postgres.arrays import blobs, numbers
from lazaretto.store.postgres.commits import WRITING, Commits
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.pipeline import Sent
from lazaretto.store.postgres.pipelined_transaction import RANGED, PgTransaction
from lazaretto.store.postgres.plan import Unforeseen
from lazaretto.store.postgres.queue_locks import QueueLock
from lazaretto.store.postgres.settings import Settings
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.records.plain import Plain, PlainRemoval, PlainSend, PlainTake
from lazaretto.store.sql.group_commit import Ticket

#: How long a queue's messages are taken in another way, once a function could not take them, in microseconds.
_ASIDE = 10_000
#: Where a message begins in the answer about those that are taken.
_KEY = 4


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The answer of a function that was enough: the server's time, and the store's version if it wrote."""

    at: int | None
    version: int | None = None


_Read = Callable[[Sent], Answer | None]


class Call(msgspec.Struct, frozen=True, gc=False):
    """One verb for one queue. `read` answers its tickets; it returns None if the server did nothing."""

    query: str
    values: Mapping[str, Any]
    tickets: Sequence[Ticket]
    read: _Read


class Lean(msgspec.Struct, frozen=True, gc=False):
    """Plain operations, as they are to be committed. `locks_alone`: whether others have to wait for it."""

    calls: Sequence[Call]
    locks_alone: bool
    queues: set[int]

    def fail(self, error: Exception) -> None:
        """Answer all tickets with an error."""
        for call in self.calls:
            for ticket in call.tickets:
                ticket.error = error


class LeanCommits:
    """Commits plain operations of several callers.

    `tx`: knows what follows each commit. `floors`: returns the highest sequence numbers that this process
    knows of queues to which it has sent before.
    """

    def __init__(
        self, commits: Commits, settings: Settings, tx: PgTransaction, floors: Callable[[], dict[int, int]]
    ) -> None:
        self._commits = commits
        self._settings = settings
        self._tx = tx
        self.context = tx.context
        self._find_floors = floors
        self._floors: dict[int, int] = {}
        #: Numbers up to which a queue's highest one need not be kept, because a higher one was there.
        self._passed: dict[int, int] = {}
        #: Until when the messages of a queue are taken in another way.
        self._aside: dict[int, int] = {}

    def forget(self) -> None:
        """Forget everything about the server: it may be another one now."""
        self.context.memory.last_body = None
        self._passed.clear()
        self._aside.clear()

    # -- planning -------------------------------------------------------------------------------

    def plan(self, group: Sequence[Ticket], *, registered: bool) -> tuple[Lean | None, list[Ticket]]:
        """Return how the plain operations of a group are committed, and the tickets of all others.

        `registered`: whether this process is registered in the store.
        """
        self.context.memory.registered = registered
        self.context.begin(self._commits.clock.now())
        self._floors = self._find_floors()
        others: list[Ticket] = []
        together: dict[tuple[int, QueueLock], tuple[QueueRecord, list[Ticket], list[Any]]] = {}
        for ticket in group:
            plain = ticket.operation.plain()
            queue = None if plain is None else self._queue_of(plain)
            lock = None if plain is None or queue is None else self._lock_for(plain, queue)
            if queue is None or lock is None:
                others.append(ticket)
                continue
            ticket.error = ticket.later = None
            _, tickets, operations = together.setdefault((queue.queue_id, lock), (queue, [], []))
            tickets.append(ticket)
            operations.append(plain)
        if not together:
            return None, others
        calls: list[Call] = []
        queues: set[int] = set()
        ends = False
        # All commits take the locks of queues in this order.
        for place in sorted(together):
            queue_id, lock = place
            calls.append(self._call(lock, *together[place]))
            queues.add(queue_id)
            ends = ends or lock is QueueLock.END
        return Lean(calls, ends, queues), others

    def _queue_of(self, plain: Plain) -> QueueRecord | None:
        """Return the queue of an operation, if it does no more than keep messages."""
        try:
            queue = self._settings.by_path(plain.path.key)
        except (Unforeseen, psycopg.Error):
            return None
        return queue if queue.plain and queue.breaker is None else None

    def _lock_for(self, plain: Plain, queue: QueueRecord) -> QueueLock | None:
        """Return which lock of the queue the operation needs; None if it must be committed in another way."""
        queue_id, context = queue.queue_id, self.context
        if isinstance(plain, PlainSend):
            limit = queue.options.max_message_size
            for new in plain.messages:
                if new.size > limit:
                    return None
            # Who sends for the first time looks at all numbers there are, also at those of dead letters.
            return QueueLock.END if plain.messages and queue_id in self._floors else None
        if isinstance(plain, PlainTake):
            waits = self._aside.get(queue_id, 0) <= context.now
            clear = lower_bound(queue_id) not in context.memory.unclear
            alone = plain.limit == 1 and context.memory.registered
            return QueueLock.HEAD if alone and waits and clear else None
        for message in plain.messages:
            if queue_of(message.key) != queue_id or message.lock is None or message.lock.token & RANGED:
                return None
        return QueueLock.HELD

    def _call(
        self, lock: QueueLock, queue: QueueRecord, tickets: list[Ticket], operations: list[Any]
    ) -> Call:
        match lock:
            case QueueLock.END:
                query, values, read = self._send(queue, tickets, operations)
            case QueueLock.HEAD:
                query, values, read = self._take(queue, tickets, operations)
            case QueueLock.HELD:
                query, values, read = self._remove(queue, tickets, operations)
        mark = self._settings.mark(queue.queue_id)
        common = {"queue_id": queue.queue_id, "mark": mark, "now": self.context.now}
        return Call(query, {**common, **values}, tickets, read)

    # -- the verbs ------------------------------------------------------------------------------

    def _send(
        self, queue: QueueRecord, tickets: Sequence[Ticket], sends: Sequence[PlainSend]
    ) -> tuple[str, Mapping[str, Any], _Read]:
        queue_id, context, tx, floors = queue.queue_id, self.context, self._tx, self._floors
        messages = sends[0].messages if len(sends) == 1 else [m for send in sends for m in send.messages]
        count = len(messages)
        values, apart = tx.new_messages(queue, messages)
        values |= {"floor": floors[queue_id], "channel": self._commits.channel}
        if count == 1:
            values["apart"] = next(iter(apart.values()), None)
        else:
            values |= {"amount": count, "first_due": context.first_due}
            values |= {"apart_ids": numbers(apart), "apart": blobs(apart.values()) if apart else None}

        def read(sent: Sent) -> Answer | None:
            at, version, last = sent.numbers(3)
            if last is None:
                return None
            floors[queue_id] = max(last + count, floors[queue_id])
            context.wake(lower_bound(queue_id), count)
            tx.rates.count(queue_id, SENT, count)
            for ticket, send in zip(tickets, sends, strict=True):
                first, last = last + 1, last + len(send.messages)
                ticket.answer = list(range(first, last + 1))
            return Answer(at, version)

        return "call_send" if count == 1 else "call_send_several", values, read

    def _take(
        self, queue: QueueRecord, tickets: Sequence[Ticket], takes: Sequence[PlainTake]
    ) -> tuple[str, Mapping[str, Any], _Read]:
        queue_id, context, mark = queue.queue_id, self.context, self.context.mark
        until = context.now + round(queue.options.lock_duration * 1_000_000)
        context.note_lock(until)
        tokens = [self._tx.random_token() for _ in takes]
        start = context.first_fresh(queue_id) or lower_bound(queue_id)
        since, looks = mark.since(context.now), mark.looks(context.now)
        values: dict[str, Any] = {
            "start": start,
            "until": until,
            "holder": context.identity.holder,
            "since": since,
            "looks": looks,
        }
        if len(tokens) == 1:
            query, values["token"] = "call_take", tokens[0]
        else:
            query, values["tokens"] = "call_take_several", context.ids(tokens)

        def read(sent: Sent) -> Answer | None:
            rows = sent.fetchall()
            if len(rows) > 1:
                rows.sort(key=_KEY_OF)
            at, version, clear, behind, first, *_ = rows[0]
            if not clear:
                self._aside[queue_id] = context.now + _ASIDE
                return None
            if looks or first is None:
                mark.nothing_due(since, context.now)
            for ticket in tickets:
                ticket.answer = []
            if first is None:
                return Answer(at)
            if behind:
                context.cursors[queue_id] = first
            for row, ticket, take, token in zip(rows, tickets, takes, tokens, strict=False):
                message = ReceivedMessage(*row[_KEY:])
                message.lock = Lock(take.path, token, until)
                ticket.answer = [message]
            self._tx.rates.count(queue_id, RECEIVED, len(rows))
            return Answer(at, version)

        return query, values, read

    def _remove(
        self, queue: QueueRecord, tickets: Sequence[Ticket], removals: Sequence[PlainRemoval]
    ) -> tuple[str, Mapping[str, Any], _Read]:
        queue_id, passed, identity = queue.queue_id, self._passed, self.context.identity
        keys: list[int] = []
        tokens: list[int] = []
        apart: list[int] = []
        for removal in removals:
            for message in removal.messages:
                assert message.lock is not None
                keys.append(message.key)
                tokens.append(message.lock.token)
                if message.body_id is not None:
                    apart.append(message.body_id)
        values = {
            "floor": max(self._floors.get(queue_id, 0), passed.get(queue_id, 0)),
            "keys": keys,
            "tokens": tokens,
            "highest": sequence_of(max(keys)),
            "apart": sorted(apart) or None,
        }

        def read(sent: Sent) -> Answer | None:
            at, version, above = sent.numbers(3)
            if above is None:
                return None
            passed[queue_id] = max(above, passed.get(queue_id, 0))
            self._tx.rates.count(queue_id, COMPLETED, len(keys))
            breaker = queue.options.breaker
            if breaker is not None and breaker.clients and identity.serves:
                identity.window(queue_id, breaker).note_completed(keys, self.context.now / MICROSECONDS)
            for ticket in tickets:
                ticket.answer = []
            return Answer(at, version)

        return "call_complete", values, read

    # -- sending --------------------------------------------------------------------------------

    def send(
        self, connection: PgConnection, lean: Lean, *, durable: bool, flush: bool
    ) -> tuple[list[Ticket], list[int]]:
        """Commit; return the tickets for which nothing was done, and the store's versions since the last one.

        Raises psycopg's errors.
        """
        common = {"writing": WRITING, "store": self._commits.number, "relaxed": flush or not durable}
        calls: list[tuple[str, Sequence[Any]]] = []
        for call in lean.calls:
            statement = self._commits.dialect.statements[call.query]
            calls.append((statement.sql, statement.pick({**common, **call.values})))
        last = calls.pop()
        connection.send_ahead(whole=True)
        sent: list[Any] = list(itertools.starmap(connection.send, calls))
        sent.append(self._commits.finish_with(connection, last, flush=flush))
        others: list[Ticket] = []
        versions: list[int] = []
        now: int | None = None
        for call, answer in zip(lean.calls, sent, strict=True):
            outcome = call.read(answer)
            if outcome is None:
                others += call.tickets
                continue
            now = outcome.at
            if outcome.version is not None:
                versions.append(outcome.version)
        if now is not None:
            self._commits.note_time(now)
        if others:
            # What is known of their queues may have changed.
            self._settings.forget()
        return others, versions


_KEY_OF = operator.itemgetter(_KEY)
