"""Reads the names of a store's entities quickly, for completion: changes nothing and waits little."""

from __future__ import annotations

import contextlib
from typing import Any

from lazaretto.store.addresses import file_of, is_served, served_at
from lazaretto.store.sql.query_files import load_queries

#: Maximum time to wait for another process or the server, in seconds.
_PATIENCE = 0.5


def read_names(url: str) -> list[tuple[str, str]]:
    """Return the kind and path of a store's first thousand entities. May raise any error."""
    sql = load_queries(("lazaretto.store.sql", "names.sql"))["select_names"].sql
    return _from_server(url, sql) if is_served(url) else _from_file(url, sql)


def _from_file(url: str, sql: str) -> list[Any]:
    import sqlite3

    address = f"{file_of(url).absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_PATIENCE)) as connection:
        return connection.execute(sql).fetchall()


def _from_server(url: str, sql: str) -> list[Any]:
    from psycopg import Connection

    from lazaretto.store.postgres.dialect import within
    from lazaretto.store.postgres.server_session import path_of

    address, schema = served_at(url)
    wait = f"-c statement_timeout={_PATIENCE * 1000:.0f}"
    # Two seconds is libpq's shortest connection timeout.
    with Connection.connect(address, connect_timeout=2, options=wait, autocommit=True) as connection:
        connection.execute(f"SET search_path = {path_of(schema)}".encode())
        return connection.execute(within(schema, sql).encode()).fetchall()
