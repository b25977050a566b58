"""The store as its callers see it: it runs operations, answers queries, and takes its callers' own SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from lazaretto.errors import StoreError
from lazaretto.model.clock import Clock
from lazaretto.store.contract.transaction_contract import Operation, Transaction

T = TypeVar("T")


class Savepoint(Protocol):
    """A point within an exclusive session to roll back to."""

    def rollback(self) -> None:
        """Undo all changes since the savepoint."""
        ...


class Exclusive(Protocol):
    """One caller's own SQL, and operations, in one commit."""

    def execute(self, sql: str, parameters: Any) -> Any:
        """Run the user's SQL and return its cursor."""
        ...

    def savepoint(self) -> Savepoint:
        """Create a savepoint."""
        ...

    def commit(self, operation: Operation[T]) -> T:
        """Run the operation, commit everything, and end the session."""
        ...

    def rollback(self) -> None:
        """Undo everything and end the session."""
        ...


class Store(Protocol):
    """A durable store, shared by threads and processes."""

    clock: Clock
    #: Whether each message of a batch gets a span of its own, if somebody traces.
    create_spans: bool

    @property
    def server(self) -> tuple[str, int | None] | None:
        """The address and port of the server that it is on; None if it is a file."""
        ...

    @property
    def errors(self) -> type[Exception]:
        """The database's own errors, which a user's SQL may raise."""
        ...

    @property
    def paramstyle(self) -> str:
        """The parameter style of its SQL, as in DB-API."""
        ...

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the one that has opened it, and can use nothing of it."""
        ...

    def refuse_fork(self) -> None:
        """Raise StoreError in such a child."""
        ...

    def run(self, operation: Operation[T]) -> T:
        """Run an operation in one commit with those of other threads; return once it is committed."""
        ...

    def hold_for_clients(self) -> None:
        """Receive for clients of a server from now on: if this process dies, no message is to blame."""
        ...

    def read(self, query: Callable[[Transaction], T]) -> T:
        """Return the result of `query` on one consistent snapshot."""
        ...

    def mark_of_commits(self) -> str | None:
        """Return what stays the same while nobody commits; None if that cannot be told.

        What is read after it was returned is at least as new.
        """
        ...

    def exclusive(self, *, pauses: bool = True) -> Exclusive:
        """Become the only writer, for the user's own SQL.

        `pauses`: a program's code runs between its statements. If not, a server ends it when it is silent.
        """
        ...

    def own_fault(self, error: Exception) -> StoreError | None:
        """Return a database's error as ours if the store is at fault; None if a user's SQL is."""
        ...

    def write_rates(self) -> None:
        """Write what this process has counted and no commit has written."""
        ...

    def changes(self, key: int) -> int:
        """Return a number that grows when the subqueue that contains `key` may have new messages."""
        ...

    def wait(self, key: int, seen: int, seconds: float, alike: str | None = None) -> bool:
        """Wait until `changes(key)` is no longer `seen`; return False on timeout.

        `alike`: identifies callers that wait for the same thing, of which any may be woken. The woken one
        must call `pass_on`.
        """
        ...

    def pass_on(self, key: int, alike: str | None) -> None:
        """Wake one more caller that waits for the same thing, after finding something or failing."""
        ...

    def close(self) -> None:
        """Close the store. Waiting callers get BrokerClosed."""
        ...
