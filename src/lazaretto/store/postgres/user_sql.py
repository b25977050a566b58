"""The user's own SQL on the server's database, in one commit with the broker's operations."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

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


#: Each statement has a savepoint before it: if it fails, that must not end the transaction.
GUARD: Final = "SAVEPOINT statement"
_UNGUARD: Final = "RELEASE statement"


class _StatementGuard:
    """A connection on which a statement of the user's has a savepoint before it.

    The savepoint of one goes with the round trip that sets the next one, or that of the user's own.
    """

    def __init__(self, connection: PgConnection) -> None:
        self._connection = connection
        #: Whether there is a savepoint, and whether a statement has run behind it.
        self._is_open = True
        self._is_full = False

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, /) -> None:
        """Run a command about a savepoint of the user's own."""
        self._connection.script(f"{_UNGUARD}; {sql}" if self._is_open else sql)
        self._is_open = False

    def guard(self) -> None:
        """Set a savepoint before a statement that comes next."""
        if not self._is_open:
            self._connection.script(GUARD)
        elif self._is_full:
            self._connection.script(f"{_UNGUARD}; {GUARD}")
        self._is_open = self._is_full = True

    def undo(self) -> None:
        """Undo the statement that ran last."""
        self._connection.script("ROLLBACK TO statement")
        self._is_full = False


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
        self._guard = _StatementGuard(connection)
        super().__init__(self._guard, opener)
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
            self._guard.guard()
            # Without parameters % is no more than a character.
            return _OneStatement(raw).execute(sql.encode(), parameters or None)
        except psycopg.Error as error:
            if raw.closed:
                raise self._translate(error) from error
            self._guard.undo()
            raise

    def _run(self, operation: Operation[T]) -> tuple[T, CommitContext]:
        return self._commits.run(operation)

    def _end(self, context: CommitContext | None) -> None:
        self._ended(self._connection, context)

    def _translated(self, error: Exception) -> LazarettoError:
        assert isinstance(error, psycopg.Error)
        return self._translate(error)
