"""The store's queries as PostgreSQL has them, for the schema that holds the tables."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from lazaretto.store.sql.query_files import load_queries
from lazaretto.store.sql.rows import Dialect

# What may follow a table's name where a table is meant; its columns need no schema before them.
_MEANT = re.compile(r"\b(COPY|FROM|INTO|UPDATE|JOIN)( lazaretto_\w+)")

# A parameter as SQLite names it, in queries that are the same for both.
_NAMED = re.compile(r"(?<![:\w]):([a-z_]\w*)")

_SEQUENCE = re.compile(r"'(lazaretto_\w+)'::regclass")

#: Queries of messages that need not know of ranges: they look at nobody's lock, or at messages that were
#: handed out before, or at those of sessions; a range holds none of these.
_OF_NO_LOCK = {
    "copy_messages",
    "delete_all_locked",
    "first_delayed_key",
    "first_receivable_key",
    "lane_messages",
    "lock_keys",
    "lock_one",
    "next_group",
    "next_lane",
    "next_session_id",
    "open_lane",
    "peek_delayed",
    "repeat_routed",
    "select_body",
    "select_claimable_ready",
    "select_dead_letter_keys",
    "select_dead_letters",
    "select_last_key",
    "select_levels",
    "select_ready",
    "select_session_messages",
    "select_session_sizes",
    "select_suspect",
    "sum_sizes",
}


def ids(values: Iterable[int]) -> list[int]:
    """Return numbers as the one parameter that a query takes them in: an array."""
    return list(values)


def within(schema: str, sql: str) -> str:
    """Return a query whose tables are looked for in a schema, whatever the search path says."""
    sql = _MEANT.sub(lambda found: f'{found[1]} "{schema}".{found[2].strip()}', sql)
    return _SEQUENCE.sub(lambda found: f"""'"{schema}".{found[1]}'::regclass""", sql)


def _next_group(queries: dict[str, str]) -> str:
    """Return the query of the next group, its first lane and its messages, made of those for each."""
    lane = queries["open_lane"].replace("%(group_id)s", "g.group_id")
    messages = queries["lane_messages"].replace("%(session_id)s", "l.lane").replace("%(before)s", "l.before")
    lanes = f"({queries['next_lane']}) g CROSS JOIN LATERAL ({lane}) l"
    return f"SELECT g.lane, l.*, m.* FROM {lanes} LEFT JOIN LATERAL ({messages}) m ON true ORDER BY m.key"  # noqa: S608


@functools.cache
def dialect(schema: str) -> Dialect:
    """Return the dialect for a schema, whose name was checked."""
    queries = load_queries("lazaretto.store.postgres")
    for name, sql in load_queries("lazaretto.store.sql", "dialogs.sql").items():
        queries[name] = _NAMED.sub(r"%(\1)s", sql)
    queries["next_group"] = _next_group(queries)
    return Dialect.of({name: within(schema, sql) for name, sql in queries.items()}, ids)


@functools.cache
def asking_for_locks(schema: str) -> frozenset[str]:
    """Return the names of the queries that go by the messages' own locks, and know of no ranges."""
    return frozenset(
        name
        for name, sql in dialect(schema).queries.items()
        if "lazaretto_messages" in sql and "lazaretto_range_locks" not in sql and name not in _OF_NO_LOCK
    )
