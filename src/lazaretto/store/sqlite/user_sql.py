"""The user's own SQL on the store's database, in one commit with the broker's operations."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from lazaretto.errors import LazarettoError, TransactionError
from lazaretto.store.records.messages import Again
from lazaretto.store.runtime.forks import Opener
from lazaretto.store.sql.commit_context import CommitContext
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.rows import Memory
from lazaretto.store.sql.transaction import Transaction
from lazaretto.store.sql.user_sql import Exclusive
from lazaretto.store.sqlite.connection import translated
from lazaretto.store.sqlite.store_file import WatchedFile

T = TypeVar("T")

_OWN = "lazaretto_"
# What user SQL may not do here: end the transaction, reach other files, change settings.
_REFUSED = {
    sqlite3.SQLITE_TRANSACTION: "begin or end a transaction",
    sqlite3.SQLITE_SAVEPOINT: "use savepoints in SQL; call savepoint()",
    sqlite3.SQLITE_ATTACH: "attach a database",
    sqlite3.SQLITE_DETACH: "detach a database",
    sqlite3.SQLITE_PRAGMA: "use PRAGMA",
}
# Actions whose first argument is a table that must not be the broker's.
_WRITES = {
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_DROP_TABLE,
    sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_CREATE_VIEW,
    sqlite3.SQLITE_DROP_VIEW,
    # A temporary table or view hides the broker's table of the same name.
    sqlite3.SQLITE_CREATE_TEMP_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_VIEW,
    sqlite3.SQLITE_CREATE_VTABLE,
}
# Actions whose second argument is such a table.
_ON_TABLE = {
    sqlite3.SQLITE_ALTER_TABLE,
    sqlite3.SQLITE_CREATE_INDEX,
    sqlite3.SQLITE_DROP_INDEX,
    sqlite3.SQLITE_CREATE_TRIGGER,
    sqlite3.SQLITE_DROP_TRIGGER,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
}


class SqliteExclusive(Exclusive):
    """The one writer of a file, held by one caller until `commit` or `rollback`."""

    errors = sqlite3.Error
    # By ON CONFLICT ROLLBACK, RAISE(ROLLBACK) or a full disk.
    culprit = "its own SQL or a failure of the disk"

    def __init__(
        self,
        connection: sqlite3.Connection,
        opener: Opener,
        tx: Transaction,
        memory: Memory,
        where: str,
        file: WatchedFile,
        ended: Callable[[CommitContext | None], None],
    ) -> None:
        super().__init__(connection, opener)
        self._connection = connection
        self._tx = tx
        self._memory = memory
        self._where = where
        self._file = file
        self._ended = ended
        self._users = False
        self._refusal: str | None = None
        connection.set_authorizer(self._authorize)

    def _authorize(
        self, action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if not self._users:
            return sqlite3.SQLITE_OK
        if action in _REFUSED:
            self._refusal = _REFUSED[action]
            return sqlite3.SQLITE_DENY
        table = first if action in _WRITES else second if action in _ON_TABLE else None
        if table and table.lower().startswith(_OWN):
            self._refusal = f"change the broker's table {table}"
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def execute(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        """Run the user's SQL and return its cursor. Raises TransactionError for what it may not do."""
        self._refuse_ended()
        self._users, self._refusal = True, None
        try:
            # A text of its own, so that no statement of the broker's is found under it in the cache.
            return self._connection.execute(sql + "\n", parameters)
        except sqlite3.Error as error:
            if self._refusal:
                raise TransactionError(f"SQL within a transaction cannot {self._refusal}") from error
            if isinstance(error, sqlite3.OperationalError) and not self._connection.in_transaction:
                raise translated(error, self._where) from error
            raise
        finally:
            self._users = False

    def _run(self, operation: Operation[T]) -> tuple[T, CommitContext]:
        while isinstance(answer := operation.run(self._tx), Again):
            pass
        self._tx.causes.save_counts()
        self._file.refuse_gone()
        self._connection.execute("COMMIT")
        return answer, self._tx.context

    def _end(self, context: CommitContext | None) -> None:
        try:
            # Closing a connection undoes what it has not committed.
            self._connection.close()
        finally:
            # Also when a signal raises an exception: nobody could write any more.
            self._ended(context)

    def _translated(self, error: Exception) -> LazarettoError:
        assert isinstance(error, sqlite3.Error)
        return translated(error, self._where)
