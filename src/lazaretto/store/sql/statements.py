"""Runs named queries: each as a database takes it, with its parameters in order."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lazaretto.store.sql.query_files import First, Query, with_rows
from lazaretto.store.sql.rows import Cursor

#: Rows of one INSERT: more gains nothing.
_MOST_ROWS = 100
#: Gathered rows are written by a multiple of so many, and then the rest.
_EVEN = 8

#: Writes the parameters of a text as a database wants them; returns with it the names of the values in order.
Place = Callable[[str], tuple[str, Sequence[str]]]


class Statement:
    """A query as a database takes it: its parameters are values in order."""

    __slots__ = ("_names", "claims_first", "locks_first", "names", "pick", "query", "sql")

    def __init__(self, query: Query, place: Place) -> None:
        self.query = query
        self.sql, names = place(query.sql)
        #: Of its parameters, in their order.
        self.names = names
        self.locks_first = _some(query.locks_first)
        self.claims_first = query.claims_first is First.ALL
        self.pick: Callable[[Mapping[str, Any]], Sequence[Any]] = _picker(names)
        self._names = tuple(dict.fromkeys(names))

    def by_name(self, values: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
        """Return its values by name, which may be given in order."""
        return values if isinstance(values, Mapping) else dict(zip(self._names, values, strict=True))


def _some(first: First | None) -> First | None:
    """Return which locks are written first, if any are."""
    return None if first is First.NONE else first


def _picker(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """Return a function that picks the values of some names from a mapping."""
    if len(names) > 1:
        return operator.itemgetter(*names)
    return lambda values: tuple(values[name] for name in names)


class RowStatement:
    """A query that takes rows, for any number of them."""

    def __init__(self, query: Query, place: Place) -> None:
        self.query = query
        #: Its texts by their numbers of rows, as far as they were needed.
        self.texts: dict[int, str] = {}
        self._place = place
        self.locks_first = _some(query.locks_first)

    def text(self, count: int) -> str:
        """Return its text for a number of rows."""
        text = self.texts.get(count)
        if text is None:
            text = self.texts[count] = self._place(with_rows(self.query.sql, count))[0]
        return text

    def run(self, execute: Callable[..., object], values: list[Any], count: int) -> None:
        """Run it for `count` rows; `values` holds all their values, row by row."""
        if count == 1:
            execute(self.text(1), values)
            return
        width = len(values) // count
        for start in range(0, count, _MOST_ROWS):
            rows = min(_MOST_ROWS, count - start)
            execute(self.text(rows), values[start * width : (start + rows) * width])


@dataclasses.dataclass(frozen=True)
class Dialect:
    """Differences between databases: the queries' texts, and how they take a list of numbers or texts."""

    statements: Mapping[str, Statement]
    row_statements: Mapping[str, RowStatement]
    ids: Callable[[Iterable[int | str]], object]

    @classmethod
    def of(
        cls, queries: Mapping[str, Query], place: Place, ids: Callable[[Iterable[int | str]], object]
    ) -> Dialect:
        """Return a dialect by its queries."""
        rows = {name for name, query in queries.items() if "[rows]" in query.sql}
        return cls(
            {name: Statement(query, place) for name, query in queries.items() if name not in rows},
            {name: RowStatement(queries[name], place) for name in rows},
            ids,
        )

    @functools.cached_property
    def _by_text(self) -> Mapping[str, Statement]:
        return {statement.sql: statement for statement in self.statements.values()}

    def query_of(self, sql: str) -> tuple[Query, Sequence[str]] | None:
        """Return the query of a text, and the names of its parameters; rows have none."""
        statement = self._by_text.get(sql)
        if statement is not None:
            return statement.query, statement.names
        rows = (each.query for each in self.row_statements.values() if sql in each.texts.values())
        return next(((query, ()) for query in rows), None)

    def text(self, name: str) -> str:
        """Return the text of a query that takes no rows."""
        return self.statements[name].sql


class Gathered:
    """Rows that wait for more of their query, and the messages that they are about."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Sequence[Any]]] = {}
        self.keys: set[tuple[str, int | None]] = set()


class Statements:
    """Runs a dialect's queries on a connection."""

    def __init__(self, execute: Callable[..., Cursor], dialect: Dialect) -> None:
        self._execute = execute
        self._statements = dialect.statements
        self._row_statements = dialect.row_statements
        self.ids = dialect.ids
        #: Rows of queries that wait for more of them, while they are gathered.
        self._gathered: Gathered | None = None

    def run(self, name: str, values: Mapping[str, Any] | Sequence[Any] = ()) -> Cursor:
        """Run a query with its values by name, or in the order in which its text first has them.

        Only a query that has each parameter once may be given its values in order.
        """
        if self._gathered is not None:
            self._write_gathered(self._gathered)
        statement = self._statements[name]
        if statement.locks_first is not None:
            own = statement.locks_first is First.OWN
            self.write_range_locks(self._keys_in(statement, values) if own else None)
        if statement.claims_first:
            self.write_claimed(statement, values)
        return self._execute(statement.sql, statement.pick(values) if isinstance(values, dict) else values)

    def _keys_in(self, statement: Statement, values: Mapping[str, Any] | Sequence[Any]) -> Any:
        """Return the keys of messages that a query names, as a database takes a list of them."""
        named = statement.by_name(values)
        return named["keys"] if "keys" in named else self.ids([named["key"]])

    def insert(self, name: str, values: list[Any], count: int) -> None:
        """Run a query for `count` rows; `values` holds all their values, row by row."""
        if self._gathered is not None:
            self._write_gathered(self._gathered)
        statement = self._row_statements[name]
        if statement.locks_first is not None:
            own = statement.locks_first is First.OWN
            self.write_range_locks(self.ids(values[:: len(values) // count]) if own else None)
        statement.run(self._execute, values, count)

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Let the rows of `gather` wait for more of their query within a block, up to any other statement."""
        if self._gathered is not None:
            yield
            return
        self._gathered = Gathered()
        try:
            yield
        finally:
            # Also if the block fails: what it has done must be seen, so that all of it is undone.
            try:
                self._write_gathered(self._gathered)
            finally:
                self._gathered = None

    def gather_all(self, name: str, rows: Sequence[tuple[int | None, Sequence[Any]]]) -> None:
        """Run a query for rows, each given with the message that it is about, if it is about one."""
        if self._gathered is None and len(rows) > 1:
            with self.gathering():
                self.gather_all(name, rows)
            return
        for key, values in rows:
            self.gather(name, values, key)

    def gather(self, name: str, values: Sequence[Any], key: int | None = None) -> None:
        """Run a query for one row, or for several at once while they are gathered.

        Rows of other queries may overtake it then. `key`: of the message that the row is about; of each, a
        statement has one row.
        """
        gathered = self._gathered
        if gathered is None:
            self.insert(name, list(values), 1)
            return
        if (name, key) in gathered.keys:
            self._write_gathered(gathered)
        if key is not None:
            gathered.keys.add((name, key))
        gathered.rows.setdefault(name, []).append(values)

    def _write_gathered(self, gathered: Gathered) -> None:
        """Write the rows that wait."""
        if not gathered.rows:
            return
        # What writes them must find none.
        rows, gathered.rows, gathered.keys = gathered.rows, {}, set()
        for name, some in rows.items():
            # In few different lengths, because a database parses each text once.
            even = len(some) - len(some) % _EVEN
            for part in (some[:even], some[even:]):
                if part:
                    self.insert(name, [value for values in part for value in values], len(part))

    @property
    def gathers(self) -> bool:
        """Whether rows are gathered."""
        return self._gathered is not None

    def write_range_locks(self, keys: Any = None) -> None:
        """Write the locks on ranges into their messages, where there are some. `keys`: only into these."""

    def write_claimed(self, statement: Statement, values: Mapping[str, Any] | Sequence[Any]) -> None:
        """Write the locks that claims have on ranges into the messages that a query names, where they are."""
