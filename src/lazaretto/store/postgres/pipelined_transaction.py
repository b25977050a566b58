"""One commit's work on PostgreSQL: the common contract with fewer round trips."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lazaretto.model.keys import lower_bound, queue_of, upper_bound
from lazaretto.model.messages import ReceivedMessage
from lazaretto.store.contract.dialog_contract import NextGroup, OpenLane
from lazaretto.store.contract.records import MessageRow
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.pipeline import text
from lazaretto.store.sql.dialog_tables import in_order
from lazaretto.store.sql.rows import Cursor, Memory
from lazaretto.store.sql.sql_transaction import SqlTransaction, suspect_of
from lazaretto.store.sql.statements import Dialect

#: What is inserted by COPY if there is much of it: the query, and the types of its columns.
_COPIED = {
    "insert_messages": (
        "copy_messages",
        ("int8", "int4", "int8", "int8", "int8", "text", "text", "bytea", "int8", "bytea"),
    ),
    "insert_bodies": ("copy_bodies", ("int8", "bytea")),
    "insert_events": ("copy_events", ("int8", "text", "text", "int8", "text")),
}
#: From so many rows on, COPY is faster, although nothing can be sent together with it.
_COPY_FROM = 32

#: The bit of a lock's token that says whether it may be on a range.
_RANGED = 1

#: Where the message begins in what next_group finds, behind its lane.
_FIRST_OF_MESSAGE = 8

_KEY = operator.itemgetter(2)

#: Where the time at which it is due stands among what insert_routed inserts.
_TRANSIT_DUE = 2

#: How far one process's time may be behind another's without that a timer is overlooked until the next full
#: look, in microseconds.
_SLACK = 250_000
#: How often the full look is, in microseconds.
_FULL_LOOK = 60_000_000
#: How far ahead the next timer is looked for, in microseconds.
_AHEAD = 1_000_000


class DueMark:
    """Before which moment no timer is left, as far as this process knows.

    The entries of messages that are gone stay in the index of times as long as any open transaction of the
    database could still see them. To start behind them keeps the search short.
    """

    def __init__(self) -> None:
        self._since = 0
        self._looked = 0
        self._latest = 0

    def since(self, now: int) -> int:
        """Return the moment from which on timers must be looked for."""
        if now < self._latest - _SLACK or now > self._looked + _FULL_LOOK:
            self._since, self._looked = 0, now
        self._latest = now
        return self._since

    def nothing_due(self, since: int, now: int) -> None:
        """Note that there is no timer between two moments."""
        if since <= self._since:
            self._since = max(self._since, now - _SLACK)

    @property
    def latest(self) -> int:
        """The moment up to which no timer is left."""
        return self._since

    def lower(self, due: int) -> None:
        """Note that there may be a timer at a moment, which may be of the past."""
        self._since = min(self._since, due - 1)


class PgTransaction(SqlTransaction):
    """What an operation may do within one commit, or within one snapshot when it only reads.

    Several fresh messages that are handed out together are locked as a range, which is one row, where a
    lock on each would write them all anew. Their completion knows of ranges too. Whatever else looks at
    messages has those locks written into them before, so that it need not.

    `ranges`: whether messages are locked by ranges. `reads`: it only reads, and nothing is written.
    """

    def __init__(
        self,
        connection: PgConnection,
        dialect: Dialect,
        memory: Memory,
        worker: str,
        prefix: str,
        mark: DueMark,
        *,
        ranges: bool,
        reads: bool = False,
    ) -> None:
        super().__init__(connection.execute, dialect, memory, worker, prefix)
        self._connection = connection
        self._mark = mark
        self._ranges = ranges
        self._reads = reads
        #: What was asked ahead: the parameters and the answer, and how much had been changed by then.
        self._asked: dict[str, tuple[Any, Cursor]] = {}
        self._asked_at = 0
        self._nothing_due_till = 0

    def begin(self, now: int) -> None:
        super().begin(now)
        self._asked = {}
        self._nothing_due_till = self._mark.latest

    def undone(self) -> None:
        super().undone()
        # What was done about timers is undone too.
        self._mark.lower(self._nothing_due_till + 1)

    def _write_range_locks(self) -> None:
        if self._memory.ranges and not self._reads:
            self._memory.ranges = False
            self._run("write_range_locks")

    def insert_row(self, row: MessageRow, body: bytes | None) -> None:
        self._note_due(row.due)
        super().insert_row(row, body)

    def save_row(self, row: MessageRow, new_key: int | None = None) -> None:
        self._note_due(row.due)
        super().save_row(row, new_key)

    def save_rows(self, rows: Mapping[int, MessageRow]) -> None:
        for row in rows.values():
            self._note_due(row.due)
        super().save_rows(rows)

    def _note_due(self, due: int | None) -> None:
        if due is not None:
            self._mark.lower(due)

    def _insert(self, name: str, values: list[Any], count: int) -> None:
        if name == "insert_routed":
            for due in values[_TRANSIT_DUE :: len(values) // count]:
                self._note_due(due)
        if count < _COPY_FROM or name not in _COPIED:
            super()._insert(name, values, count)
            return
        query, types = _COPIED[name]
        width = len(types)
        for column, kind in enumerate(types):
            if kind == "text":
                values[column::width] = [None if v is None else text(v) for v in values[column::width]]
        rows = (values[start : start + width] for start in range(0, count * width, width))
        self._connection.copy(self._statements[query].sql, types, rows)

    def random_token(self, messages: int = 1) -> int:
        token = super().random_token()
        return token | _RANGED if self._ranges and messages > 1 else token & ~_RANGED

    def take_clear(self, queue_id: int, limit: int, token: int, until: int) -> list[ReceivedMessage] | None:
        if queue_id not in self._memory.unclear or not self._connection.sends_ahead:
            return self._take(queue_id, limit, [token] * limit, until)(token)
        self._ask_ahead(queue_id, limit)
        return None

    def _ask_ahead(self, queue_id: int, limit: int) -> None:
        """Ask at once what is asked one after the other where not just the next fresh messages are taken."""
        first, last, now = lower_bound(queue_id), upper_bound(queue_id), self.now
        self._asked = {}
        for name, values in (
            ("anything_due", self._by_now()),
            ("select_suspect", (first, last, now)),
            ("select_ready", (first, last, now, limit)),
        ):
            self._asked[name] = (values, self._run(name, values))
        self._asked_at = self._connection.total_changes

    def _ask(self, name: str, values: Any) -> Cursor:
        """Ask something that may have been asked ahead, if nothing was changed since."""
        before, cursor = self._asked.pop(name, (None, None))
        if cursor is not None and before == values and self._asked_at == self._connection.total_changes:
            return cursor
        return self._run(name, values)

    def select_suspect(self, first: int, last: int) -> ReceivedMessage | None:
        return suspect_of(self._ask("select_suspect", (first, last, self.now)).fetchone())

    def select_ready(self, first: int, last: int, limit: int) -> list[ReceivedMessage]:
        rows = self._ask("select_ready", (first, last, self.now, limit))
        messages = [ReceivedMessage(*row) for row in rows]
        if not messages:
            self._memory.unclear.discard(queue_of(first))
        return messages

    def take_fresh(self, queue_id: int, limit: int, token: int, until: int) -> list[ReceivedMessage]:
        return self._take(queue_id, limit, [token] * limit, until, look=False)(token) or []

    def start_taking(
        self, queue_id: int, wanted: Sequence[tuple[int, int]], until: int
    ) -> Sequence[Callable[[], list[ReceivedMessage] | None]] | None:
        # Whoever is handed a message must be known as a worker, which is asked for before.
        if not self._memory.registered or queue_id in self._memory.unclear:
            return None
        single = [token for limit, token in wanted for _ in range(limit) if not token & _RANGED]
        together = self._take(queue_id, len(single), single, until) if single else None
        taking = []
        for limit, token in wanted:
            of = together if not token & _RANGED else self._take(queue_id, limit, [token], until)
            assert of is not None
            taking.append(functools.partial(of, token))
        return taking

    def _take(
        self, queue_id: int, limit: int, tokens: Sequence[int], until: int, *, look: bool = True
    ) -> Callable[[int], list[ReceivedMessage] | None]:
        """Lock the next fresh messages of a queue, each under a token, or all as a range under the first one.

        `look`: unless something else comes first. What is returned gives the messages under a token, or None
        if something does.
        """
        first, times, memory = lower_bound(queue_id), self._by_now(), self._memory
        ranged = bool(tokens[0] & _RANGED)
        memory.ranges |= ranged
        sent = self._run(
            "take_range" if ranged else "take_rows",
            {
                **times,
                "look": look,
                "first": first,
                "last": upper_bound(queue_id),
                "start": self.cursors.get(queue_id) or memory.cursors.get(queue_id) or first,
                "limit": limit,
                "token": tokens[0],
                "tokens": self._ids(tokens),
                "until": until,
                "worker": self.worker,
            },
        )

        @functools.cache
        def taken() -> dict[int, list[ReceivedMessage]] | None:
            rows = sent.fetchall()
            is_clear, _, first_key, *_ = rows[0]
            if not is_clear:
                memory.unclear.add(queue_id)
                return None
            if look:
                memory.unclear.discard(queue_id)
                self._mark.nothing_due(times["since"], times["now"])
            found: dict[int, list[ReceivedMessage]] = {}
            if first_key is None:
                return found
            for _, token, *fields in sorted(rows, key=_KEY):
                message = ReceivedMessage(*fields)
                found.setdefault(token, []).append(message)
            self.cursors[queue_id] = max(message.key, self.cursors.get(queue_id, 0))
            return found

        def taken_by(token: int) -> list[ReceivedMessage] | None:
            found = taken()
            return None if found is None else found.get(token, [])

        return taken_by

    def next_group(
        self, queue_id: int, ranges: Sequence[tuple[str, str]], token: int = 0, limit: int = 0
    ) -> Callable[[], NextGroup | None]:
        if not self._connection.sends_ahead:
            return super().next_group(queue_id, ranges, token, limit)
        # All in one question. Most often the first range has one; the others are asked about if it has not.
        values = {"queue_id": queue_id, "now": self.now, "token": token, "handle": None, "limit": limit}
        asked = (self._run("next_group", {**values, "after": a, "end": e}) for a, e in ranges)
        sent = list(itertools.islice(asked, 1))

        def look() -> NextGroup | None:
            found = next(
                (rows for rows in (one.fetchall() for one in itertools.chain(sent, asked)) if rows), None
            )
            if found is None:
                return None
            found_by, *lane = found[0][:_FIRST_OF_MESSAGE]
            messages = (row[_FIRST_OF_MESSAGE:] for row in found if row[_FIRST_OF_MESSAGE] is not None)
            return NextGroup(found_by, OpenLane(*lane), in_order(messages))

        return look

    def next_due(self) -> int | None:
        found = super().next_due()
        return self.now + _AHEAD if found is None else found

    def delete_held(self, held: Mapping[int, Sequence[int]]) -> bool:
        if not self._connection.sends_ahead:
            return super().delete_held(held)
        # Taken for done: should it fail, so does the commit, and all is done again with looking.
        keys = [key for some in held.values() for key in some]
        self._keep_high_water(keys)
        self.count_bytes(keys, -1)
        own: list[tuple[int, int]] = []
        for token, some in held.items():
            if token & _RANGED:
                values = {"keys": self._ids(some), "token": token, "now": self.now, "amount": len(some)}
                self._run("delete_all_ranged", {**values, "last": max(some)})
            else:
                own += ((key, token) for key in some)
        if own:
            of_keys, of_tokens = zip(*own, strict=True)
            tokens = of_tokens[:1] if len(set(of_tokens)) == 1 else of_tokens
            values = {"keys": self._ids(of_keys), "tokens": self._ids(tokens), "now": self.now}
            self._run("delete_all_locked", {**values, "amount": len(own)})
        return True

    def _by_now(self) -> dict[str, int]:
        # Messages that are gone have times ahead of now, which a look any further would pass.
        return {"now": self.now, "since": self._mark.since(self.now), "ahead": self.now + _AHEAD}

    def anything_due(self) -> bool:
        times = self._by_now()
        (found,) = self._ask("anything_due", times).fetchone()
        if not found:
            self._mark.nothing_due(times["since"], self.now)
        return bool(found)
