"""The user's own SQL on the server's database, in one commit with the broker's operations."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from lazaretto.errors import LazarettoError, TransactionError
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.user_commits import UserCommits
from lazaretto.store.runtime.forks import Opener
from lazaretto.store.sql.commit_context import CommitContext
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.rows import Cursor
from lazaretto.store.sql.user_sql import Exclusive

T = TypeVar("T")

#: A statement's first word, behind comments and parentheses.
_VERB = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/|\()*([a-z]+)", re.DOTALL | re.IGNORECASE)
_ENDS = {"abort", "begin", "commit", "end", "prepare", "rollback", "start"}
#: What takes the store's own prepared statements from its session.
_DISCARDS = {"deallocate", "discard"}
_SAVEPOINTS = {"release", "savepoint"}
_READS = {"explain", "select", "show", "table", "values"}
_OWN = re.compile(r"\blazaretto_[a-z_]+", re.IGNORECASE)
#: One of the broker's tables, and its name within the statement.
_NAMED = re.compile(r"\b(lazaretto_[a-z_]+)\"?(?:\s+(?:AS\s+)?\"?(\w+))?", re.IGNORECASE)
#: What locks rows, and of which tables that are read; of all of them if it names none.
_LOCKS = re.compile(
    r"\bFOR\s+(?:NO\s+KEY\s+UPDATE|UPDATE|KEY\s+SHARE|SHARE)\b(?:\s+OF\b([\w\s,\"]*))?", re.IGNORECASE
)


def refusal(sql: str) -> str | None:
    """Return the forbidden thing that a user's statement would do, or None."""
    match = _VERB.match(sql)
    verb = match[1].lower() if match else ""
    if verb in _ENDS:
        return "begin or end a transaction"
    if verb in _DISCARDS:
        return "discard what the session keeps"
    if verb in _SAVEPOINTS:
        return "use savepoints in SQL; call savepoint()"
    own = _OWN.search(sql)
    if own is None:
        return None
    if _locks_own(sql):
        # All others would wait for it.
        return f"lock rows of the broker's table {own[0]}"
    return None if verb in _READS else f"change the broker's table {own[0]}"


def _locks_own(sql: str) -> bool:
    """Return whether a statement that reads tables of the broker's would lock rows of theirs."""
    named = {name.lower() for names in _NAMED.findall(sql) for name in names}
    return any(not of or named.intersection(re.findall(r"\w+", of.lower())) for of in _LOCKS.findall(sql))


class _OneStatement(psycopg.Cursor[Any]):
    """A cursor that rejects a second statement in one text, which could end the transaction.

    psycopg's pipeline would do so too, but flushes behind its end. The server takes that for a command, and
    then waits for the next one without an end.
    """

    def _execute_send(self, query: Any, *, force_extended: bool = True, binary: bool | None = None) -> None:
        super()._execute_send(query, force_extended=True, binary=binary)


class PgExclusive(Exclusive):
    """One transaction on the server with the user's own SQL, until `commit` or `rollback`.

    Others write meanwhile: only its commit holds locks of the broker.
    """

    errors = psycopg.Error
    culprit = "a failure of the server"

    def __init__(
        self,
        connection: PgConnection,
        opener: Opener,
        commits: UserCommits,
        translate: Callable[[psycopg.Error], LazarettoError],
        ended: Callable[[PgConnection, CommitContext | None], None],
    ) -> None:
        super().__init__(connection, opener)
        self._connection = connection
        self._commits = commits
        self._translate = translate
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

    def _run(self, operation: Operation[T]) -> tuple[T, CommitContext]:
        return self._commits.run(operation)

    def _end(self, done: CommitContext | None) -> None:
        self._ended(self._connection, done)

    def _translated(self, error: Exception) -> LazarettoError:
        assert isinstance(error, psycopg.Error)
        return self._translate(error)
