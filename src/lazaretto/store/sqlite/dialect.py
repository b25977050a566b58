"""The store's queries as SQLite has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lazaretto.store.sql.query_files import PARAMETER, load_queries
from lazaretto.store.sql.statements import Dialect
from lazaretto.store.sql.words import words

_WORDS = words(
    {
        "among": "IN (SELECT value FROM json_each(:{0}))",
        "index": "INDEXED BY {0}",
        "rowid": "rowid",
        "as_type": ":{0}",
        # Only claims lock ranges here.
        "has_range": "0 = 1",
        "listed": "",
        "is_due": "{0} <= :now",
        "comes_due": "{0} IS NOT NULL",
    }
)


def ids(values: Iterable[int | str]) -> str:
    """Return numbers or texts as the one parameter that a query takes them in: JSON."""
    return msgspec.json.encode(list(values)).decode()


def place(sql: str) -> tuple[str, Sequence[str]]:
    """Return a query with SQLite's placeholders, and the names of the values they stand for, one by one."""
    return PARAMETER.sub("?", sql), PARAMETER.findall(sql)


QUERIES = {
    # Only claims lock ranges here.
    name: query._replace(locks_first=None)
    for name, query in load_queries(
        ("lazaretto.store.sqlite", "queries.sql"),
        ("lazaretto.store.sql", "queries.sql"),
        ("lazaretto.store.sql", "dialogs.sql"),
        ("lazaretto.store.sql", "causes.sql"),
        ("lazaretto.store.sql", "repairs.sql"),
        ("lazaretto.store.sql", "listings.sql"),
        ("lazaretto.store.sql", "overview.sql"),
        ("lazaretto.store.sql", "rates.sql"),
        ("lazaretto.store.sql", "access.sql"),
        words=_WORDS,
    ).items()
}
SQLITE = Dialect.of(QUERIES, place, ids)
