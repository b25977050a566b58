"""Plans a commit: its statements before they are sent, and the answers that the plan depends on.

While an operation is planned, it reads at once and without a lock. The commit asks the same questions again
under its locks, and fails if an answer differs. Nothing was done then, and the operation is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from lazaretto.model.keys import main_key
from lazaretto.store.postgres.pipeline import Sent
from lazaretto.store.sql.query_files import Query
from lazaretto.store.sql.statements import Dialect

#: Parameters that name messages, and those that reach others than the named ones.
_KEYS = ("key", "keys", "new_key")
_RANGES = frozenset(("first", "last", "start", "before", "queue_id"))


class Unforeseen(Exception):
    """An operation cannot be planned: it needs an answer that only the commit can give."""


class Nature(NamedTuple):
    """The tables and keys that a statement touches."""

    tables: frozenset[str]
    written: frozenset[str]
    #: Where its parameters have the keys of messages, and a queue's number.
    keys: tuple[int, ...]
    queues: tuple[int, ...]
    #: Whether it touches rows of these messages only.
    keyed: bool

    @classmethod
    def of(cls, query: Query, names: Sequence[str]) -> Nature:
        """Return the nature of a query; `names`: of its parameters."""
        keys = tuple(place for place, name in enumerate(names) if name in _KEYS)
        return cls(
            tables=query.tables,
            written=query.written,
            keys=keys,
            queues=tuple(place for place, name in enumerate(names) if name == "queue_id"),
            keyed=bool(keys) and _RANGES.isdisjoint(names),
        )

    @property
    def reads(self) -> bool:
        """Whether it may be asked twice."""
        return not self.written


class Planned:
    """A planned statement. Its answer is available after the commit, or earlier if it is read."""

    __slots__ = ("_plan", "_rows", "about", "mark", "parameters", "sent", "sql", "unaffected")

    def __init__(self, plan: Plan, sql: str, parameters: Sequence[Any]) -> None:
        self._plan = plan
        self.sql = sql
        self.parameters = parameters
        self.sent: Sent | None = None
        #: The messages that all its rows are about, if its text does not tell.
        self.about: frozenset[int] | None = None
        #: What tells whether a second reading gives the same, if it was read.
        self.mark: str | None = None
        #: Whether it gives the same whatever the commit itself has written.
        self.unaffected = False
        self._rows: list[tuple[Any, ...]] = []

    def has_read(self, mark: str, rows: list[tuple[Any, ...]]) -> None:
        """Record its answer."""
        self.mark, self._rows = mark, rows[::-1]

    @property
    def nature(self) -> Nature:
        return self._plan.nature(self.sql)

    def keys(self) -> set[int]:
        """Return the keys of the messages in its parameters."""
        if self.about is not None:
            return set(self.about)
        keys: set[int] = set()
        for place in self.nature.keys:
            value = self.parameters[place]
            if not isinstance(value, str):
                keys.update(value if isinstance(value, list) else (value,))
        return keys

    @property
    def keyed(self) -> bool:
        """Whether it touches rows of these messages only."""
        return self.about is not None or self.nature.keyed

    def queues(self) -> set[int]:
        """Return the queues, or lanes, in its parameters."""
        return {self.parameters[place] for place in self.nature.queues}

    def _answer(self) -> Sent | None:
        if self.sent is None and self.mark is None:
            self._plan.read(self)
        return self.sent if self.mark is None else None

    @property
    def rowcount(self) -> int:
        """The number of rows it changed."""
        if self.sent is None:
            raise Unforeseen
        return self.sent.rowcount

    def number(self) -> int | None:
        """Return the first BIGINT of the only row of a statement that the commit has run."""
        assert self.sent is not None
        return self.sent.number()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all remaining rows."""
        return list(self)

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, or None."""
        return next(iter(self), None)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        sent = self._answer()
        return iter(self._left()) if sent is None else iter(sent)

    def _left(self) -> Iterator[tuple[Any, ...]]:
        while self._rows:
            yield self._rows.pop()


class _Writes:
    """Writes by the statements of a plan, by table: any rows, or those of some messages."""

    def __init__(self) -> None:
        self._any: set[str] = set()
        self._keys: dict[str, set[int]] = {}

    def add(self, planned: Planned) -> None:
        """Add what a statement writes."""
        nature = planned.nature
        if planned.keyed:
            keys = set(map(main_key, planned.keys()))
            for table in nature.written:
                self._keys.setdefault(table, set()).update(keys)
        else:
            self._any |= nature.written

    def may_change(self, planned: Planned) -> bool:
        """Return whether a statement may read rows that are written."""
        nature = planned.nature
        if planned.unaffected:
            return False
        if not nature.tables.isdisjoint(self._any):
            return True
        written = [self._keys[table] for table in nature.tables if table in self._keys]
        if not written or not nature.keyed:
            return bool(written)
        keys = set(map(main_key, planned.keys()))
        return not all(keys.isdisjoint(some) for some in written)


class Plan:
    """Takes statements in place of a connection.

    `dialect`: knows what queries touch; `ask` reads statements, all in one round trip.
    """

    sends_ahead = True

    def __init__(self, dialect: Dialect, ask: Callable[[Sequence[Planned]], None]) -> None:
        self._dialect = dialect
        self._natures: dict[str, Nature] = {}
        self._ask = ask
        self.statements: list[Planned] = []
        #: Whether some were read.
        self.guarded = False
        self._writes = _Writes()
        #: How many of the statements were looked at.
        self._seen = 0

    def begin(self) -> None:
        """Start on a new commit."""
        self.statements = []
        self.guarded = False
        self._look_again()

    def go_back(self, count: int) -> None:
        """Drop the statements behind so many."""
        del self.statements[count:]
        if count < self._seen:
            self._look_again()

    def _look_again(self) -> None:
        self._writes, self._seen = _Writes(), 0

    @property
    def total_changes(self) -> int:
        """The number of statements that may change something."""
        return sum(not planned.nature.reads for planned in self.statements)

    def nature(self, sql: str) -> Nature:
        """Return what a statement touches. Raises Unforeseen if it is none of the store's."""
        nature = self._natures.get(sql)
        if nature is None:
            pair = self._dialect.query_of(sql)
            if pair is None:
                raise Unforeseen
            nature = self._natures[sql] = Nature.of(*pair)
        return nature

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Planned:
        """Add a statement to the plan."""
        planned = Planned(self, sql, parameters)
        self.statements.append(planned)
        return planned

    def read(self, wanted: Planned) -> None:
        """Read the answer of a statement, and of all others that can be known before the commit.

        Raises Unforeseen if this one cannot.
        """
        known: list[Planned] = []
        # Each is looked at once, however often a commit reads: what cannot be known stays so.
        for planned in self.statements[self._seen :]:
            if not planned.nature.reads:
                self._writes.add(planned)
            elif planned.mark is None and not self._writes.may_change(planned):
                known.append(planned)
        self._seen = len(self.statements)
        if not any(planned is wanted for planned in known):
            raise Unforeseen
        self.guarded = True
        try:
            self._ask(known)
        except BaseException:
            self._look_again()
            raise

    def copy(self, *_: object) -> NoReturn:
        """Raise Unforeseen: COPY cannot be sent together with other statements."""
        raise Unforeseen


def reading(sql: str) -> str:
    """Return a query for the rows of another query, each with a hash of all its rows."""
    return (
        f"WITH q AS MATERIALIZED ({sql}), m AS (SELECT {_MARK} AS mark FROM q) "  # noqa: S608
        "SELECT m.mark, r.* FROM m LEFT JOIN (SELECT true, q.* FROM q) AS r ON true"
    )


def guard(sql: str, parameters: int) -> str:
    """Return a query that fails if the hash of another query differs from the last parameter."""
    return f"WITH q AS MATERIALIZED ({sql}) SELECT 1 / ({_MARK} = ${parameters + 1}::text)::int FROM q"  # noqa: S608


_MARK = "md5(coalesce(string_agg(q::text, chr(10)), ''))"
