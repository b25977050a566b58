"""Refuses poolers that change a session's server between two transactions, when a store is opened.

A process keeps prepared statements, settings, locks and LISTEN in its sessions. A pooler in transaction mode
gives these to whoever comes next.
"""

from __future__ import annotations

import contextlib

import psycopg

from lazaretto.errors import ServerUnsuitable
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.watch import Watch, WatchedConnection

#: How many transactions are opened beside the session. A pooler may hand out its connections in turn: then
#: the second one gets the session's own.
_PROBES = 2
#: What PgBouncer answers to BEGIN in statement mode.
_NO_TRANSACTIONS = "08P01"


def refuse_transaction_pooling(conninfo: str, connection: PgConnection) -> None:
    """Raise ServerUnsuitable if others may get the session's server between two transactions."""
    if connection.raw.info.backend_pid == connection.pid:
        # The server itself has said who it is, so nothing stands before it.
        return
    with contextlib.ExitStack() as probes:
        for _ in range(_PROBES):
            other = _server_of_another(conninfo, probes)
            ((own,),) = connection.script("SELECT pg_backend_pid()")
            if connection.pid == other or connection.pid != own:
                raise _refusal()
            if other is None:
                # All connections of the pooler are in use, so no more can be learned.
                return


def _server_of_another(conninfo: str, probes: contextlib.ExitStack) -> int | None:
    """Return which process of the server another session has within a transaction, which stays open."""
    try:
        probe = WatchedConnection.connect(conninfo, autocommit=True, application_name="lazaretto")
        probes.callback(probe.close)
        # It is waited for no longer than some seconds.
        probe.watch = Watch(lambda: False)
        probe.execute("BEGIN")
        row = probe.execute("SELECT pg_catalog.pg_backend_pid()").fetchone()
    except psycopg.Error as error:
        if error.sqlstate == _NO_TRANSACTIONS:
            raise _refusal() from error
        return None
    return None if row is None else int(row[0])


def _refusal() -> ServerUnsuitable:
    return ServerUnsuitable(
        "expected sessions of the server's own, got a pooler that shares them out by transaction or "
        "statement; set it to session pooling (PgBouncer: pool_mode = session), or name the server itself in "
        "the store's address"
    )
