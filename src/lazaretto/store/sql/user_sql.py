"""The user's own SQL on the store's database: savepoints, and the commit with the broker's operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol, TypeVar

from lazaretto.errors import LazarettoError, TransactionError
from lazaretto.store.runtime.forks import Opener
from lazaretto.store.runtime.measures import measuring_commit
from lazaretto.store.sql.commit_context import CommitContext
from lazaretto.store.sql.operation import Operation

T = TypeVar("T")


class UserConnection(Protocol):
    """A connection with an open transaction."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def execute(self, sql: str, /) -> Any:
        """Run a statement."""
        ...


class Savepoint:
    """A point within the user's SQL to return to."""

    def __init__(self, connection: UserConnection, opener: Opener, name: str) -> None:
        self._connection = connection
        self._opener = opener
        self._name = name
        connection.execute(f"SAVEPOINT {name}")

    def rollback(self) -> None:
        """Undo all changes since the savepoint."""
        self._opener.refuse_fork()
        self._connection.execute(f"ROLLBACK TO {self._name}")


class Exclusive(ABC):
    """A transaction with the user's own SQL, until `commit` or `rollback`."""

    #: The database's errors.
    errors: ClassVar[type[Exception]]
    #: What may have rolled the transaction back, for the error that says so.
    culprit: ClassVar[str]

    def __init__(self, connection: UserConnection, opener: Opener) -> None:
        self._user_connection = connection
        self._opener = opener
        self._savepoints = 0

    @abstractmethod
    def execute(self, sql: str, parameters: Any) -> Any:
        """Run the user's SQL and return its cursor. Raises TransactionError for what it may not do."""

    @abstractmethod
    def _run(self, operation: Operation[T]) -> tuple[T, CommitContext]:
        """Run an operation and commit; return its answer, and what follows the commit."""

    @abstractmethod
    def _end(self, context: CommitContext | None) -> None:
        """Undo what is not committed, and let others write; `context`: what was committed."""

    @abstractmethod
    def _translated(self, error: Exception) -> LazarettoError:
        """Return a database's error as one of ours."""

    def _refuse_ended(self) -> None:
        self._opener.refuse_fork()
        # Whatever ran now would be a transaction of its own.
        if not self._user_connection.in_transaction:
            raise TransactionError(
                f"this transaction was rolled back by {self.culprit}; nothing was changed: begin a new one"
            )

    def savepoint(self) -> Savepoint:
        """Create a savepoint. Raises TransactionError if the database has rolled the transaction back."""
        self._refuse_ended()
        self._savepoints += 1
        return Savepoint(self._user_connection, self._opener, f"user_{self._savepoints}")

    def commit(self, operation: Operation[T]) -> T:
        """Run the operation, commit everything, and let others write."""
        try:
            self._refuse_ended()
            with measuring_commit(1):
                answer, context = self._run(operation)
        except BaseException as error:
            self.rollback()
            if isinstance(error, self.errors):
                raise self._translated(error) from error
            raise
        self._end(context)
        return answer

    def rollback(self) -> None:
        """Undo everything, and let others write."""
        if not self._opener.forked:
            # Else it is the parent's, who goes on with it.
            self._end(None)
