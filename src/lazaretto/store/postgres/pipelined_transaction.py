"""The transaction contract on PostgreSQL, with fewer round trips."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lazaretto.model.keys import in_main, lower_bound, queue_of_lane, upper_bound
from lazaretto.model.messages import Past, ReceivedMessage
from lazaretto.store.postgres.arrays import Column, blobs, numbers, texts
from lazaretto.store.postgres.partition_heads import PgPartitions
from lazaretto.store.postgres.pipelined_context import AHEAD, PgContext
from lazaretto.store.postgres.pipelined_dialogs import PgDialogTables
from lazaretto.store.records.messages import (
    AGAIN,
    ELSEWHERE,
    Again,
    Leased,
    MessageRow,
    NewMessage,
    QueueRecord,
    Share,
)
from lazaretto.store.runtime.processes import this_process
from lazaretto.store.sql.message_reads import suspect_of
from lazaretto.store.sql.rows import Cursor
from lazaretto.store.sql.transaction import Transaction
from lazaretto.store.sql.words import NEW
from lazaretto.store.sql.worker_tables import WorkerTables

#: The bit of a lock's token that says whether it may be on a range.
RANGED = 1

#: The query that takes messages, by whether it leases them, by a range, and looks for timers first.
_TAKING = {
    (leases, ranged, timers): f"{verb}_{what}{when}"
    for leases, verb in ((False, "take"), (True, "lease"))
    for ranged, what in ((False, "rows"), (True, "range"))
    for timers, when in ((False, ""), (True, "_on_time"))
}
#: How a column of several messages is encoded, by its type.
_ENCODED: Mapping[str, Callable[[Iterable[Any]], Column]] = {"bigint": numbers, "text": texts, "bytea": blobs}

#: Where the key is in what was taken, and its past behind it.
_KEY, _PAST = operator.itemgetter(4), 19


class PgWorkers(WorkerTables):
    """The part for workers."""

    def register_taker(self, tokens: Sequence[int], until: int) -> None:
        """Register this process if one of these locks is on a message by now."""
        context = self._context
        if not context.memory.registered:
            values = {"worker": context.worker, "now": context.now, **this_process()._asdict()}
            context.run("register_taker", {**values, "tokens": context.ids(tokens), "until": until})


class Lease(NamedTuple):
    """A hand-over to a service host: what its query must know, and what is found of messages' pasts."""

    values: Mapping[str, Any]
    past: dict[int, Past]


class PgTransaction(Transaction):
    """A transaction for one commit, or for one snapshot when it only reads.

    Several fresh messages that are handed out together are locked as a range, which is one row, where a
    lock on each would write them all anew. Their completion knows of ranges too. Whatever else looks at
    messages has those locks written into them before, so that it need not.

    `ranges`: whether messages are locked by ranges.
    """

    def __init__(self, context: PgContext, new_message_id: Callable[[], str], *, ranges: bool) -> None:
        super().__init__(context, new_message_id)
        self.context: PgContext = context
        self.dialogs: PgDialogTables = PgDialogTables(context)
        self.workers: PgWorkers = PgWorkers(context)
        self.partitions = PgPartitions(context)
        self._connection = context.connection
        self._mark = context.mark
        self._ranges = ranges
        #: What was asked ahead: the parameters and the answer, and how much had been changed by then.
        self._asked: dict[str, tuple[Any, Cursor]] = {}
        self._asked_at = 0

    def begin(self, now: int) -> None:
        super().begin(now)
        self._asked = {}

    def insert_row(self, row: MessageRow, body: bytes | None) -> None:
        self.context.note_due(row.due)
        self._keep_numbers((row.key,))
        super().insert_row(row, body)

    def insert_rows(self, rows: Sequence[tuple[MessageRow, bytes]]) -> None:
        for row, _ in rows:
            self.context.note_due(row.due)
        self._keep_numbers([row.key for row, _ in rows])
        super().insert_rows(rows)

    def save_row(self, row: MessageRow, new_key: int | None = None) -> None:
        self.context.note_due(row.due)
        if new_key is not None:
            self._keep_numbers((new_key,))
        super().save_row(row, new_key)

    def save_rows(self, rows: Mapping[int, MessageRow]) -> None:
        for row in rows.values():
            self.context.note_due(row.due)
        self._keep_numbers(list(rows))
        super().save_rows(rows)

    def new_messages(
        self, queue: QueueRecord, messages: Sequence[NewMessage]
    ) -> tuple[dict[str, Any], dict[int, bytes]]:
        """Return what `new_values` does by name: the values of one message, or the columns of several."""
        values, apart = self.new_values(queue, messages)
        if len(messages) == 1:
            return dict(zip(NEW, values[2:], strict=True)), apart
        columns = enumerate(NEW.items(), 2)
        width = len(NEW) + 2
        return {name: _ENCODED[kind](values[at::width]) for at, (name, kind) in columns}, apart

    def _keep_numbers(self, keys: Sequence[int]) -> None:
        """Keep the highest sequence numbers of messages that are not in the main part of their queue.

        Functions of the server look for a queue's highest number only there.
        """
        aside = [key for key in keys if not in_main(key)]
        if aside:
            self.sequences.keep_highest(aside)

    def random_token(self, messages: int = 1) -> int:
        token = super().random_token()
        return token | RANGED if self._ranges and messages > 1 else token & ~RANGED

    def take_clear(self, lane: int, limit: int, token: int, until: int) -> list[ReceivedMessage] | None:
        if lower_bound(lane) not in self.context.memory.unclear or not self._connection.sends_ahead:
            return self._take(lane, limit, [token] * limit, until)(token)
        self._ask_ahead(lane, limit)
        return None

    def _ask_ahead(self, lane: int, limit: int) -> None:
        """Send together the questions that would be asked in turn when not only fresh messages are taken."""
        first, last, now = lower_bound(lane), upper_bound(lane), self.context.now
        self._asked = {}
        for name, values in (
            ("anything_due", self.context.by_now()),
            ("select_suspect", (first, last, now)),
            ("select_ready", (first, last, now, limit)),
        ):
            self._asked[name] = (values, self.context.run(name, values))
        self._asked_at = self._connection.total_changes

    def _ask(self, name: str, values: Any) -> Cursor:
        """Ask a question, or use the answer asked ahead if nothing has changed since."""
        before, cursor = self._asked.pop(name, (None, None))
        if cursor is not None and before == values and self._asked_at == self._connection.total_changes:
            return cursor
        return self.context.run(name, values)

    def select_suspect(self, first: int, last: int) -> ReceivedMessage | None:
        return suspect_of(self._ask("select_suspect", (first, last, self.context.now)).fetchone())

    def select_ready(self, first: int, last: int, limit: int) -> list[ReceivedMessage]:
        rows = self._ask("select_ready", (first, last, self.context.now, limit))
        messages = [ReceivedMessage(*row) for row in rows]
        if not messages:
            self.context.memory.unclear.discard(first)
        return messages

    def take_fresh(self, lane: int, limit: int, token: int, until: int) -> list[ReceivedMessage]:
        return self._take(lane, limit, [token] * limit, until, look=False)(token) or []

    def start_taking(
        self, queue: QueueRecord, wanted: Sequence[tuple[int, int]], until: int
    ) -> Sequence[Callable[[], list[ReceivedMessage] | Again]] | None:
        lane, nowhere_else = self.partitions.next_to_take(queue)
        if lower_bound(lane) in self.context.memory.unclear:
            return None
        timers = self._mark.looks(self.context.now)
        single = [token for limit, token in wanted for _ in range(limit) if not token & RANGED]
        together = self._take(lane, len(single), single, until, timers=timers) if single else None
        taking = []
        for limit, token in wanted:
            of = together if not token & RANGED else self._take(lane, limit, [token], until, timers=timers)
            assert of is not None
            taking.append(functools.partial(self._answer, of, token, nowhere_else, timers))
        return taking

    def start_leasing(
        self, queue: QueueRecord, share: Share, token: int, until: int, *, started: bool
    ) -> Callable[[], Leased | Again] | None:
        lane, nowhere_else = self.partitions.next_to_take(queue)
        if lower_bound(lane) in self.context.memory.unclear:
            return None
        lease = Lease({**share._asdict(), "queue_id": queue.queue_id, "started": started}, {})
        timers = self._mark.looks(self.context.now)
        taken = self._take(lane, share.most, [token] * share.most, until, timers=timers, lease=lease)

        def leased() -> Leased | Again:
            answer = self._answer(taken, token, nowhere_else, timers)
            return answer if isinstance(answer, Again) else Leased(answer, lease.past)

        return leased

    def _answer(
        self,
        taken: Callable[[int], list[ReceivedMessage] | None],
        token: int,
        nowhere_else: bool,
        timers: bool,
    ) -> list[ReceivedMessage] | Again:
        """Return the messages taken under a token, or how to continue. `timers`: they were looked for."""
        messages = taken(token)
        if messages is None:
            return AGAIN
        if not messages and not timers:
            self._mark.look_next()
            return ELSEWHERE
        return messages if messages or nowhere_else else ELSEWHERE

    def _take(
        self,
        lane: int,
        limit: int,
        tokens: Sequence[int],
        until: int,
        *,
        look: bool = True,
        timers: bool = True,
        lease: Lease | None = None,
    ) -> Callable[[int], list[ReceivedMessage] | None]:
        """Lock the next messages of a lane, each under a token, or all under the first one.

        `look`: those first that were handed out before, unless something else comes first; else fresh ones.
        `timers`: what is due comes first as well. `lease`: what is taken is leased. What is returned gives
        the messages under a token, or None if something else comes first.
        """
        first, times, memory = lower_bound(lane), self.context.by_now(), self.context.memory
        ranged = bool(tokens[0] & RANGED)
        queue = self.queues.by_id(queue_of_lane(lane))
        assert queue is not None
        memory.ranges |= ranged
        sent = self.context.run(
            _TAKING[lease is not None, ranged, look and timers],
            {
                **times,
                **({} if lease is None else lease.values),
                "look": look,
                "first": first,
                "last": upper_bound(lane),
                # What claims lock is passed over by the query.
                "start": self.context.first_fresh(lane) or first,
                "limit": limit,
                "token": tokens[0],
                "tokens": self.context.ids(tokens),
                "until": until,
                "worker": self.context.worker,
                "holder": self.context.identity.holder,
                "retries": queue.options.policy.receive_retry_count,
                "cycles": queue.options.policy.max_retry_cycles,
            },
        )

        self.workers.register_taker(tokens, until)

        answer: list[dict[int, list[ReceivedMessage]] | None] = []

        def taken() -> dict[int, list[ReceivedMessage]] | None:
            rows = sent.fetchall()
            is_clear, head, _, _, first_key, *_ = rows[0]
            if not is_clear:
                memory.unclear.add(first)
                return None
            if look:
                memory.unclear.discard(first)
            if look and timers:
                self._mark.nothing_due(times["since"], times["now"])
            by_token: dict[int, list[ReceivedMessage]] = {}
            if first_key is None:
                self.partitions.note_taken(lane, (), limit)
                return by_token
            # What follows the commit knows by it that the process is registered.
            self.context.registers = True
            for row in sorted(rows, key=_KEY):
                fresh, token, message = row[2], row[3], ReceivedMessage(*row[4:_PAST])
                if message.deliveries > 1 and lease is not None:
                    lease.past[message.key] = Past(*row[_PAST:])
                by_token.setdefault(token, []).append(message)
                if fresh and (head is None or message.key <= head):
                    self.context.cursors[lane] = max(message.key, self.context.cursors.get(lane, 0))
            # A lease may be on less than there is.
            most = limit if lease is None else 1
            self.partitions.note_taken(lane, [m for some in by_token.values() for m in some], most)
            return by_token

        def taken_by(token: int) -> list[ReceivedMessage] | None:
            if not answer:
                answer.append(taken())
            by_token = answer[0]
            return None if by_token is None else by_token.get(token, [])

        return taken_by

    def next_due(self) -> int | None:
        due = super().next_due()
        return self.context.now + AHEAD if due is None else due

    def delete_held(self, queue: QueueRecord, held: Mapping[int, Sequence[int]]) -> bool:
        if not self._connection.sends_ahead:
            return super().delete_held(queue, held)
        # Taken for done: should it fail, so does the commit, and all is done again with looking.
        keys = [key for some in held.values() for key in some]
        self.sequences.keep_highest(keys, queue)
        if not queue.plain:
            self.queues.count_bytes(keys, -1)
        own: list[tuple[int, int]] = []
        for token, some in held.items():
            if token & RANGED:
                values = {
                    "keys": self.context.ids(some),
                    "token": token,
                    "now": self.context.now,
                    "amount": len(some),
                }
                self.context.run("delete_all_ranged", {**values, "highest": max(some)})
            else:
                own += ((key, token) for key in some)
        if len(own) == 1:
            key, token = own[0]
            self.context.run("delete_exactly_one", {"key": key, "token": token, "now": self.context.now})
        elif own:
            of_keys, of_tokens = zip(*own, strict=True)
            tokens = of_tokens[:1] if len(set(of_tokens)) == 1 else of_tokens
            values = {
                "keys": self.context.ids(of_keys),
                "tokens": self.context.ids(tokens),
                "now": self.context.now,
            }
            self.context.run("delete_all_locked", {**values, "amount": len(own)})
        return True

    def anything_due(self) -> bool:
        times = self.context.by_now()
        (is_due,) = self._ask("anything_due", times).fetchone()
        if not is_due:
            self._mark.nothing_due(times["since"], self.context.now)
        return bool(is_due)
