"""Turns the store's queries into PostgreSQL's, for the schema with the tables."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from lazaretto.model.keys import QUEUE_BITS
from lazaretto.store.sql.query_files import COMMON, PARAMETER, First, Query, load_queries
from lazaretto.store.sql.statements import Dialect
from lazaretto.store.sql.words import words

_WORDS = words(
    {
        "among": "= ANY(:{0})",
        "index": "",
        "rowid": "id",
        "as_type": "CAST(:{0} AS {1})",
        "has_range": f"EXISTS (SELECT 1 FROM lazaretto_range_locks r WHERE r.last >> {QUEUE_BITS} = {{0}})",  # noqa: S608
        # A join may be planned for a table that seems empty.
        "listed": "AND {0} = ANY(ARRAY(SELECT key FROM {1}))",
        # The entries of what is gone stay in an index for a while: the search starts behind them, and ends
        # before them.
        "is_due": "({0} > :since AND {0} <= :now)",
        "comes_due": "({0} > :since AND {0} <= :ahead)",
    }
)

# What may follow a table's name where a table is meant; its columns need no schema before them.
_MEANT = re.compile(r"\b(COPY|DELETE FROM|FROM|INTO|UPDATE|JOIN)( lazaretto_\w+)")
_WRITES = frozenset(("COPY", "DELETE FROM", "INTO", "UPDATE"))

_SEQUENCE = re.compile(r"'(lazaretto_\w+)'::regclass")

#: Queries that take messages. Each is made twice: it looks for timers first, or it does not.
TAKING = ("take_rows", "take_range", "lease_rows", "lease_range")


def ids(values: Iterable[int | str]) -> list[int | str]:
    """Return numbers or texts as one array parameter."""
    return list(values)


def place(sql: str) -> tuple[str, Sequence[str]]:
    """Return a query with the server's placeholders, and the name of the value for each."""
    places: dict[str, int] = {}
    placed = PARAMETER.sub(lambda found: f"${places.setdefault(found[1], len(places) + 1)}", sql)
    return placed, tuple(places)


def within(schema: str, sql: str) -> str:
    """Return SQL whose tables are all qualified with a schema."""
    return _qualified(schema, Query(sql)).sql


def _qualified(schema: str, query: Query) -> Query:
    """Return a query whose tables are all qualified with a schema, and noted."""
    tables: set[str] = set()
    written: set[str] = set()

    def qualify(meant: re.Match[str]) -> str:
        verb, table = meant[1], meant[2].strip()
        tables.add(table)
        if verb in _WRITES:
            written.add(table)
        return f'{verb} "{schema}".{table}'

    sql = _MEANT.sub(qualify, query.sql)
    sql = _SEQUENCE.sub(lambda named: f"""'"{schema}".{named[1]}'::regclass""", sql)
    return query._replace(sql=sql, tables=frozenset(tables), written=frozenset(written))


def _next_group(queries: dict[str, Query]) -> Query:
    """Return the query of the next group, its first stream and its messages, made of those for each."""
    stream = _given(queries["open_stream"].sql, group_id="g.group_id")
    messages = _given(queries["stream_messages"].sql, session_id="l.stream", before="l.before")
    streams = f"({queries['next_stream'].sql}) g CROSS JOIN LATERAL ({stream}) l"
    sql = f"SELECT g.stream, l.*, m.* FROM {streams} LEFT JOIN LATERAL ({messages}) m ON true ORDER BY m.key"  # noqa: S608
    return Query(sql, First.NONE, First.NONE)


def _heads(queries: dict[str, Query]) -> Query:
    """Return the query of when the first messages of several lanes came, made of that of one lane."""
    head = _given(queries["select_head"].sql, first="l.first", start="l.start", last="l.last")
    lanes = "unnest(:firsts::bigint[], :starts::bigint[], :lasts::bigint[]) WITH ORDINALITY"
    sql = f"SELECT h.min FROM {lanes} AS l (first, start, last, n) CROSS JOIN LATERAL ({head}) h ORDER BY n"  # noqa: S608
    return Query(sql, First.NONE, First.NONE)


def _lease_range(queries: dict[str, Query]) -> Query:
    """Return the query of a hand-over of many messages, made with that of the sizes of those that wait."""
    sizes, leasing = queries["select_sizes"].sql, queries["lease_range"]
    sql = _given(
        leasing.sql,
        waiting=_given(sizes, limit=":most * :sharers"),
        next=_given(sizes, limit="(SELECT amount FROM shares)"),
        limit="(SELECT amount FROM fitting)",
    )
    return leasing._replace(sql=sql)


def _taking(queries: dict[str, Query], name: str) -> dict[str, Query]:
    """Return a query that takes messages as it does not look for timers first, and as it does."""
    query, timers = queries[name], queries["anything_due"].sql
    return {
        name: query._replace(sql=_given(query.sql, timers="false")),
        f"{name}_on_time": query._replace(sql=_given(query.sql, timers=f"({timers})")),
    }


def _given(sql: str, **columns: str) -> str:
    """Return a query with columns in the place of parameters."""
    return PARAMETER.sub(lambda found: columns.get(found[1], found[0]), sql)


@functools.cache
def queries_in(schema: str) -> dict[str, Query]:
    """Return all queries for a schema. Its name must have been checked."""
    queries = load_queries(
        ("lazaretto.store.postgres", "queries.sql"),
        *COMMON,
        words=_WORDS,
    )
    queries["next_group"] = _next_group(queries)
    queries["select_heads"] = _heads(queries)
    queries["lease_range"] = _lease_range(queries)
    for name in TAKING:
        queries |= _taking(queries, name)
    return {name: _qualified(schema, query) for name, query in queries.items()}


@functools.cache
def dialect(schema: str) -> Dialect:
    """Return the dialect for a schema. Its name must have been checked."""
    return Dialect.of(queries_in(schema), place, ids)
