"""The context that the parts of a PostgreSQL transaction share: COPY, range locks and timers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from lazaretto.store.postgres.arrays import text
from lazaretto.store.postgres.due_mark import DueMark
from lazaretto.store.sql.commit_context import CommitContext, Identity
from lazaretto.store.sql.rows import Cursor, Memory
from lazaretto.store.sql.statements import Dialect
from lazaretto.store.sql.words import NEW

#: What COPY calls the types of new messages' columns.
_BINARY = {"bigint": "int8", "text": "text", "bytea": "bytea"}
#: What is inserted by COPY if there is much of it: the query, and the types of its columns.
_COPIED = {
    "insert_messages": (
        "copy_messages",
        ("int8", "int8", *("int4" if name == "state" else _BINARY[kind] for name, kind in NEW.items())),
    ),
    "insert_bodies": ("copy_bodies", ("int8", "bytea")),
    "insert_events": ("copy_events", ("int8", "text", "text", "int8", "text")),
}
#: From so many rows on, COPY is faster, although nothing can be sent together with it.
_COPY_FROM = 32

#: Where the time at which it is due stands among what insert_routed inserts.
_TRANSIT_DUE = 5 + list(NEW).index("due")

#: How far ahead the next timer is looked for, in microseconds.
AHEAD = 1_000_000


class Taker(Protocol):
    """Takes the statements of a commit."""

    @property
    def sends_ahead(self) -> bool:
        """Whether it continues without waiting for replies."""
        ...

    @property
    def total_changes(self) -> int:
        """A number that grows when something is changed."""
        ...

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Cursor:
        """Take a statement."""
        ...

    def copy(self, sql: str, types: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Take rows to insert with COPY."""
        ...


class PgContext(CommitContext):
    """The commits of one PostgreSQL connection. `reads`: it only reads."""

    def __init__(
        self,
        connection: Taker,
        dialect: Dialect,
        memory: Memory,
        identity: Identity,
        mark: DueMark,
        *,
        reads: bool = False,
    ) -> None:
        super().__init__(connection.execute, dialect, memory, identity, reads=reads)
        self.connection = connection
        self.mark = mark
        self._nothing_due_till = 0
        #: The first timer that this commit sets.
        self.first_due: int | None = None

    def begin(self, now: int) -> None:
        super().begin(now)
        self.first_due = None
        self._nothing_due_till = self.mark.latest

    def undone(self) -> None:
        super().undone()
        # What was done about timers is undone too.
        self.mark.lower(self._nothing_due_till + 1)

    def note_due(self, due: int | None) -> None:
        """Record that a message may have a timer from this commit on."""
        if due is not None:
            self.mark.lower(due)
            self.first_due = due if self.first_due is None else min(due, self.first_due)

    def note_lock(self, until: int) -> None:
        """Record until when a lock lasts."""
        self.first_due = until if self.first_due is None else min(until, self.first_due)

    def write_range_locks(self, keys: Any = None) -> None:
        if not self.memory.ranges or self.reads:
            return
        if keys is None:
            self.memory.ranges = False
            self.write_all_ranges()
        else:
            self.run("write_range_locks_of", {"keys": keys})

    def write_all_ranges(self) -> None:
        """Write all locks on ranges into their messages."""
        self.run("write_range_locks")

    def insert(self, name: str, values: list[Any], count: int) -> None:
        if name == "insert_routed":
            for due in values[_TRANSIT_DUE :: len(values) // count]:
                self.note_due(due)
        if count < _COPY_FROM or name not in _COPIED:
            super().insert(name, values, count)
            return
        query, types = _COPIED[name]
        width = len(types)
        for column, kind in enumerate(types):
            if kind == "text":
                values[column::width] = [None if v is None else text(v) for v in values[column::width]]
        rows = (values[start : start + width] for start in range(0, count * width, width))
        self.connection.copy(self._statements[query].sql, types, rows)

    def by_now(self) -> dict[str, int]:
        # Messages that are gone have times ahead of now, which a look any further would pass.
        return {"now": self.now, "since": self.mark.since(self.now), "ahead": self.now + AHEAD}
