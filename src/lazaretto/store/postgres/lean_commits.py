"""Commits of plain operations: one call of a function of the server for each verb and queue.

A function that is not enough for what is to be done does nothing and says so. Then another way of committing
does it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import psycopg

from lazaretto.model.clock import MICROSECONDS
from lazaretto.model.keys import lower_bound, queue_of, sequence_of
from lazaretto.model.messages import Lock, ReceivedMessage
from lazaretto.model.rates import COMPLETED, RECEIVED, SENT
from lazaretto.store.postgres.arrays import array_text, blobs, numbers, text, texts
from lazaretto.store.postgres.commits import WRITING, Commits
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.pipeline import Sent, encode
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
#: What all functions begin with: the two numbers of the store's lock, the queue, its mark, whether the commit
#: waits for no disk, and the time.
_COMMON = (0,) * 6
_RELAXED = 4
#: Which of the parameters are binary when a message is sent, when one is taken, and when one is removed.
_SEND = (*_COMMON, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1)
_TAKE = (*_COMMON, 0, 0, 0, 0, 0, 0)
_REMOVE = (*_COMMON, 0, 0, 0, 0, 0)


class Call(msgspec.Struct, frozen=True, gc=False):
    """One verb for one queue. `read` answers its tickets; it returns None if the server did nothing."""

    query: str
    parameters: list[bytes | None]
    formats: Sequence[int]
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
        self._store = b"%d" % WRITING, b"%d" % commits.number
        self._channel = commits.channel.encode()
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
        context = self.context
        context.memory.registered = registered
        context.begin(self._commits.clock.now())
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
            place = queue.queue_id, lock
            if place in together:
                _, tickets, operations = together[place]
                tickets.append(ticket)
                operations.append(plain)
            else:
                together[place] = queue, [ticket], [plain]
        if not together:
            return None, others
        # All commits take the locks of queues in this order.
        places = sorted(together) if len(together) > 1 else list(together)
        calls = [_VERBS[place[1]](self, *together[place]) for place in places]
        ends = any(lock is QueueLock.END for _, lock in places)
        return Lean(calls, ends, {queue_id for queue_id, _ in places}), others

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

    def _begin(self, queue_id: int) -> list[bytes | None]:
        """Return the parameters that all functions begin with."""
        mark = self._settings.mark(queue_id)
        return [*self._store, b"%d" % queue_id, b"%d" % mark, None, b"%d" % self.context.now]

    # -- the verbs ------------------------------------------------------------------------------

    def _send(self, queue: QueueRecord, tickets: Sequence[Ticket], sends: Sequence[PlainSend]) -> Call:
        queue_id, context, tx, floors = queue.queue_id, self.context, self._tx, self._floors
        messages = sends[0].messages if len(sends) == 1 else [m for send in sends for m in send.messages]
        count = len(messages)
        values, apart = tx.new_values(queue, messages)
        parameters = self._begin(queue_id)
        parameters += (b"%d" % floors[queue_id], self._channel)
        formats: Sequence[int] = _SEND
        if count == 1:
            state, due, expires, message_id, _, headers, body_id, body = values[2:10]
            parameters += (
                b"%d" % state,
                None if due is None else b"%d" % due,
                None if expires is None else b"%d" % expires,
                text(message_id).encode(),
                headers,
                body,
                None if body_id is None else b"%d" % body_id,
                None if body_id is None else apart[body_id],
            )
        else:
            apiece = len(values) // count
            carried = (values[place::apiece] for place in range(2, 10))
            state, due, expires, message_id, _, headers, body_id, body = carried
            columns = [count, numbers(state), numbers(due), numbers(expires), texts(message_id)]
            columns += [blobs(headers), blobs(body), numbers(body_id), numbers(apart)]
            columns += [blobs(apart.values()) if apart else None, context.first_due]
            more, kinds = encode(columns)
            parameters += more
            formats = [*_COMMON, 0, 0, *kinds]

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

        query = "call_send" if count == 1 else "call_send_several"
        return Call(query, parameters, formats, tickets, read)

    def _take(self, queue: QueueRecord, tickets: Sequence[Ticket], takes: Sequence[PlainTake]) -> Call:
        queue_id, context, mark = queue.queue_id, self.context, self.context.mark
        until = context.now + round(queue.options.lock_duration * 1_000_000)
        context.note_lock(until)
        tokens = [self._tx.random_token() for _ in takes]
        start = context.first_fresh(queue_id) or lower_bound(queue_id)
        since, looks = mark.since(context.now), mark.looks(context.now)
        one = len(tokens) == 1
        parameters = self._begin(queue_id)
        parameters += (
            b"%d" % start,
            b"%d" % until,
            b"%d" % tokens[0] if one else array_text(tokens),
            context.identity.holder.encode(),
            b"%d" % since,
            b"t" if looks else b"f",
        )

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

        return Call("call_take" if one else "call_take_several", parameters, _TAKE, tickets, read)

    def _remove(
        self, queue: QueueRecord, tickets: Sequence[Ticket], removals: Sequence[PlainRemoval]
    ) -> Call:
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
        one = len(keys) == 1
        parameters = self._begin(queue_id)
        parameters += (
            b"%d" % max(self._floors.get(queue_id, 0), passed.get(queue_id, 0)),
            b"%d" % keys[0] if one else array_text(keys),
            b"%d" % tokens[0] if one else array_text(tokens),
            b"%d" % sequence_of(keys[0] if one else max(keys)),
            None if not apart else b"%d" % apart[0] if one else array_text(sorted(apart)),
        )

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

        query = "call_complete" if one else "call_complete_several"
        return Call(query, parameters, _REMOVE, tickets, read)

    # -- sending --------------------------------------------------------------------------------

    def send(
        self, connection: PgConnection, lean: Lean, *, durable: bool, flush: bool
    ) -> tuple[list[Ticket], list[int]]:
        """Commit; return the tickets for which nothing was done, and the store's versions since the last one.

        Raises psycopg's errors.
        """
        statements = self._commits.dialect.statements
        relaxed = b"t" if flush or not durable else b"f"
        connection.send_ahead(whole=True, more=flush)
        sent: list[Any] = []
        last = len(lean.calls) - 1
        for place, call in enumerate(lean.calls):
            call.parameters[_RELAXED] = relaxed
            values = statements[call.query].sql, call.parameters, call.formats
            if place < last:
                sent.append(connection.send_encoded(*values))
            else:
                send = functools.partial(connection.send_encoded, *values)
                sent.append(self._commits.finish_with(connection, send, flush=flush))
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
_VERBS: dict[QueueLock, Callable[[LeanCommits, QueueRecord, list[Ticket], list[Any]], Call]] = {
    QueueLock.END: LeanCommits._send,
    QueueLock.HEAD: LeanCommits._take,
    QueueLock.HELD: LeanCommits._remove,
}
