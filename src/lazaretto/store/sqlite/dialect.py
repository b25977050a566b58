"""The store's queries as SQLite has them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from lazaretto.store.sql.query_files import load_queries
from lazaretto.store.sql.rows import Dialect


def ids(values: Iterable[int]) -> str:
    """Return numbers as the one parameter that a query takes them in: JSON."""
    return json.dumps(list(values))


SQLITE = Dialect.of(
    load_queries("lazaretto.store.sqlite") | load_queries("lazaretto.store.sql", "dialogs.sql"), ids
)
