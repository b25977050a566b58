"""One commit's work on PostgreSQL: the common contract with fewer questions to the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lazaretto.keys import first_key, last_key
from lazaretto.store.dialogs import NextGroup, OpenLane
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.pipeline import text
from lazaretto.store.records import HandedRow, MessageRow
from lazaretto.store.sql.dialogs import in_order
from lazaretto.store.sql.rows import Dialect, Memory
from lazaretto.store.sql.transaction import SqlTransaction

#: What is inserted by COPY if there is much of it: the query, and the types of its columns.
_COPIED = {
    "insert_messages": (
        "copy_messages",
        ("int8", "int4", "int8", "int8", "int8", "text", "text", "bytea", "int8", "bytea"),
    ),
    "insert_bodies": ("copy_bodies", ("int8", "bytea")),
}
#: From so many rows on, COPY is faster, although nothing can be sent together with it.
_COPY_FROM = 32

#: Where the time at which it is due stands among what insert_transits inserts.
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

    def lower(self, due: int) -> None:
        """Note a timer, which may be of the past."""
        self._since = min(self._since, due - 1)


class PgTransaction(SqlTransaction):
    """What an operation may do within one commit, or within one snapshot when it only reads."""

    def __init__(
        self,
        connection: PgConnection,
        dialect: Dialect,
        memory: Memory,
        worker: str,
        prefix: str,
        mark: DueMark,
    ) -> None:
        super().__init__(connection.execute, dialect, memory, worker, prefix)
        self._connection = connection
        self._mark = mark

    def insert_row(self, row: MessageRow, body: bytes | None) -> None:
        self._note_due(row.due)
        super().insert_row(row, body)

    def save_row(self, row: MessageRow, new_key: int | None = None) -> None:
        self._note_due(row.due)
        super().save_row(row, new_key)

    def _note_due(self, due: int | None) -> None:
        if due is not None:
            self._mark.lower(due)

    def _insert(self, name: str, values: list[Any], count: int) -> None:
        if name == "insert_transits":
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
        self._connection.copy(self._q[query], types, rows)

    def take_clear(self, queue_id: int, limit: int, token: int, until: int) -> list[HandedRow] | None:
        return self._take(queue_id, limit, token, until)()

    def start_taking(
        self, queue_id: int, limit: int, token: int, until: int
    ) -> Callable[[], list[HandedRow] | None] | None:
        # Whoever is handed a message must be known as a worker, which is asked for before.
        if not self._memory.registered or queue_id in self._memory.unclear:
            return None
        return self._take(queue_id, limit, token, until)

    def _take(
        self, queue_id: int, limit: int, token: int, until: int
    ) -> Callable[[], list[HandedRow] | None]:
        first, times, memory = first_key(queue_id), self._by_now(), self._memory
        sent = self._x(
            self._q["take_clear"],
            {
                **times,
                "first": first,
                "last": last_key(queue_id),
                "start": self.cursors.get(queue_id) or memory.cursors.get(queue_id) or first,
                "limit": limit,
                "token": token,
                "until": until,
                "worker": self.worker,
            },
        )

        def taken() -> list[HandedRow] | None:
            rows = sent.fetchall()
            if not rows[0][0]:
                memory.unclear.add(queue_id)
                return None
            memory.unclear.discard(queue_id)
            self._mark.nothing_due(times["since"], times["now"])
            if rows[0][1] is None:
                return []
            found = sorted(row[1:] for row in rows)
            self.cursors[queue_id] = max(found[-1][0], self.cursors.get(queue_id, 0))
            return found

        return taken

    def next_group(
        self, queue_id: int, ranges: Sequence[tuple[str, str]], token: int = 0, limit: int = 0
    ) -> Callable[[], NextGroup | None]:
        if not self._connection.sends_ahead:
            return super().next_group(queue_id, ranges, token, limit)
        # All in one question, and all ranges in one round trip.
        values = {"queue_id": queue_id, "now": self.now, "token": token, "handle": None, "limit": limit}
        sent = [self._x(self._q["next_group"], {**values, "after": a, "end": e}) for a, e in ranges]

        def look() -> NextGroup | None:
            found = next((rows for rows in (one.fetchall() for one in sent) if rows), None)
            if found is None:
                return None
            lane = OpenLane(*found[0][1:8])
            return NextGroup(found[0][0], lane, in_order(row[8:] for row in found if row[8] is not None))

        return look

    def next_due(self) -> int | None:
        found = super().next_due()
        return self.now + _AHEAD if found is None else found

    def delete_held(self, keys: Sequence[int], token: int) -> bool:
        if not self._connection.sends_ahead:
            return super().delete_held(keys, token)
        # Taken for done: should it fail, so does the commit, and all is done again with looking.
        self._keep_high_water(keys)
        self.count_bytes(keys, -1)
        self._x(self._q["delete_all_locked"], (self._ids(keys), token, self.now, len(keys)))
        return True

    def _by_now(self) -> dict[str, int]:
        # Messages that are gone have times ahead of now, which a look any further would pass.
        return {"now": self.now, "since": self._mark.since(self.now), "ahead": self.now + _AHEAD}

    def anything_due(self) -> bool:
        times = self._by_now()
        (found,) = self._x(self._q["anything_due"], times).fetchone()
        if not found:
            self._mark.nothing_due(times["since"], self.now)
        return bool(found)
