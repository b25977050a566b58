"""The user's own SQL on the server's database, in one commit with the broker's operations."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg

from lazaretto.errors import LazarettoError, TransactionError
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.sql.commit_context import CommitContext
from lazaretto.store.sql.rows import Cursor
from lazaretto.store.sql.sql_transaction import SqlTransaction
from lazaretto.store.sql.user_sql import SqlExclusive

#: A statement's first word, behind comments and parentheses.
_VERB = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/|\()*([a-z]+)", re.DOTALL | re.IGNORECASE)
_ENDS = {"abort", "begin", "commit", "end", "prepare", "rollback", "start"}
_SAVEPOINTS = {"release", "savepoint"}
_READS = {"explain", "select", "show", "table", "values"}
_OWN = re.compile(r"\blazaretto_[a-z_]+", re.IGNORECASE)


def refusal(sql: str) -> str | None:
    """Return the forbidden thing that a user's statement would do, or None."""
    found = _VERB.match(sql)
    verb = found[1].lower() if found else ""
    if verb in _ENDS:
        return "begin or end a transaction"
    if verb in _SAVEPOINTS:
        return "use savepoints in SQL; call savepoint()"
    own = _OWN.search(sql)
    return f"change the broker's table {own[0]}" if own and verb not in _READS else None


class _OneStatement(psycopg.Cursor[Any]):
    """A cursor that rejects a second statement in one text, which could end the transaction.

    psycopg's pipeline would do so too, but flushes behind its end. The server takes that for a command, and
    then waits for the next one without an end.
    """

    def _execute_send(self, query: Any, *, force_extended: bool = True, binary: bool | None = None) -> None:
        super()._execute_send(query, force_extended=True, binary=binary)


class PgExclusive(SqlExclusive):
    """The one writer of a server's store, held by one caller until `commit` or `rollback`."""

    errors = psycopg.Error
    culprit = "a failure of the server"

    def __init__(
        self,
        connection: PgConnection,
        tx: SqlTransaction,
        translate: Callable[[psycopg.Error], LazarettoError],
        save: Callable[[PgConnection], object],
        ended: Callable[[PgConnection, CommitContext | None], None],
    ) -> None:
        super().__init__(connection, tx)
        self._connection = connection
        self._translate = translate
        self._save_connection = save
        self._ended = ended

    def execute(self, sql: str, parameters: Any) -> Cursor:
        """Run the user's SQL and return its cursor. Raises TransactionError for what it may not do."""
        self._refuse_ended()
        refused = refusal(sql)
        if refused:
            raise TransactionError(f"SQL within a transaction cannot {refused}")
        raw = self._connection.raw
        try:
            # A statement that fails must not end the transaction with it.
            self._connection.execute("SAVEPOINT statement")
            # Without parameters % is no more than a character.
            cursor = _OneStatement(raw).execute(sql.encode(), parameters or None)
            self._connection.execute("RELEASE statement")
        except psycopg.Error as error:
            if raw.closed:
                raise self._translate(error) from error
            self._connection.execute("ROLLBACK TO statement")
            raise
        return cursor

    def _save(self) -> None:
        self._save_connection(self._connection)

    def _end(self, done: CommitContext | None) -> None:
        self._ended(self._connection, done)

    def _translated(self, error: Exception) -> LazarettoError:
        assert isinstance(error, psycopg.Error)
        return self._translate(error)
