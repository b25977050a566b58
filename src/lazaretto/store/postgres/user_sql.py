"""The user's own SQL on the server's database, in one commit with the broker's operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg

from lazaretto.errors import LazarettoError, TransactionError
from lazaretto.store.contract.records import Notice
from lazaretto.store.contract.transaction_contract import Again, Operation
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.sql.rows import Cursor
from lazaretto.store.sql.sql_transaction import SqlTransaction

T = TypeVar("T")

#: A statement's first word, behind comments and parentheses.
_VERB = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/|\()*([a-z]+)", re.DOTALL | re.IGNORECASE)
_ENDS = {"abort", "begin", "commit", "end", "prepare", "rollback", "start"}
_SAVEPOINTS = {"release", "savepoint"}
_READS = {"explain", "select", "show", "table", "values"}
_OWN = re.compile(r"\blazaretto_[a-z_]+", re.IGNORECASE)


def refusal(sql: str) -> str | None:
    """Return what a user's statement would do that it may not, else None."""
    found = _VERB.match(sql)
    verb = found[1].lower() if found else ""
    if verb in _ENDS:
        return "begin or end a transaction"
    if verb in _SAVEPOINTS:
        return "use savepoints in SQL; call savepoint()"
    own = _OWN.search(sql)
    return f"change the broker's table {own[0]}" if own and verb not in _READS else None


class _OneStatement(psycopg.Cursor[Any]):
    """A cursor that has the server refuse a second statement, which could end the transaction.

    psycopg's pipeline would do so too, but flushes behind its end. The server takes that for a command, and
    then waits for the next one without an end.
    """

    def _execute_send(self, query: Any, *, force_extended: bool = True, binary: bool | None = None) -> None:
        super()._execute_send(query, force_extended=True, binary=binary)


class PgExclusive:
    """The one writer, held by one caller until `commit` or `rollback`."""

    def __init__(
        self,
        connection: PgConnection,
        tx: SqlTransaction,
        translated: Callable[[psycopg.Error], LazarettoError],
        save: Callable[[PgConnection], object],
        ended: Callable[[PgConnection, Mapping[int, int], Sequence[Notice]], None],
    ) -> None:
        self._connection = connection
        self._tx = tx
        self._translated = translated
        self._save = save
        self._ended = ended
        self._savepoints = 0

    def _refuse_ended(self) -> None:
        if not self._connection.in_transaction:
            raise TransactionError(
                "this transaction was rolled back by a failure of the server; "
                "nothing was changed: begin a new one"
            )

    def execute(self, sql: str, parameters: Any) -> Cursor:
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
                raise self._translated(error) from error
            self._connection.execute("ROLLBACK TO statement")
            raise
        return cursor

    def savepoint(self) -> PgSavepoint:
        self._refuse_ended()
        self._savepoints += 1
        return PgSavepoint(self._connection, f"user_{self._savepoints}")

    def commit(self, operation: Operation[T]) -> T:
        try:
            self._refuse_ended()
            while isinstance(answer := operation.run(self._tx), Again):
                pass
            self._tx.causes.save_counts()
            self._save(self._connection)
        except BaseException as error:
            self.rollback()
            if isinstance(error, psycopg.Error):
                raise self._translated(error) from error
            raise
        self._ended(self._connection, self._tx.context.woken, self._tx.context.notices)
        return answer

    def rollback(self) -> None:
        self._ended(self._connection, {}, ())


class PgSavepoint:
    """A point within the user's SQL to return to."""

    def __init__(self, connection: PgConnection, name: str) -> None:
        self._connection = connection
        self._name = name
        connection.execute(f"SAVEPOINT {name}")

    def rollback(self) -> None:
        self._connection.execute(f"ROLLBACK TO {self._name}")
