"""Operations: what callers of a store have it do within a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from lazaretto.errors import LazarettoError
from lazaretto.store.records.messages import ELSEWHERE, Again
from lazaretto.store.records.plain import Plain
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")


class Operation(Generic[T]):
    """One call's change to the store, which shares a commit with other operations.

    `run` may be called more than once, each time on a clean state: when another operation of the
    same commit fails, the commit is done again with each operation by itself. It must therefore
    keep nothing from one call to the next.
    """

    __slots__ = ()

    #: Whether the answer waits until the commit is on disk. If not, it only survives a killed process.
    durable: ClassVar[bool] = True
    #: Whether it may be planned before its commit: it changes no settings, and touches few queues.
    foreseeable: bool = False

    def run(self, tx: Transaction) -> T | Again:
        """Run the operation and return its answer.

        The answer `AGAIN` means that part of the work is done; `run` is called again in another commit.
        """
        raise LazarettoError(f"{type(self).__name__} cannot be run")

    def start(self, tx: Transaction) -> Callable[[], T | Again] | None:
        """Run without reading the store; return a function that gives the answer after the commit.

        Return None if that is not possible. The answer `AGAIN` means that nothing was done, and `run` must do
        it. `ELSEWHERE` means that nothing was found, and it must be started again to look elsewhere.
        """
        return None

    def plain(self) -> Plain | None:
        """Return what it does if its queue is plain; None if more may follow from it than is said by that."""
        return None

    def confined_to(self) -> str | None:
        """Return the key of the path of a queue that nobody else may change meanwhile; None: of all queues.

        What it changes of other queues is no more than what it sends to them.
        """
        return None

    #: The order of this class within a commit: lower ones run first.
    rank: ClassVar[int] = 1

    #: Whether `run_all` is faster for several operations than running each by itself.
    mergeable: ClassVar[bool] = False

    @classmethod
    def run_all(cls, tx: Transaction, operations: Sequence[Any]) -> Iterable[Any]:
        """Run several operations of this class; return their answers in order."""
        return [operation.run(tx) for operation in operations]

    @classmethod
    def start_all(
        cls, tx: Transaction, operations: Sequence[Any]
    ) -> Sequence[Callable[[], Any | Again] | None]:
        """Start several operations of this class, as `start` does each."""
        return [operation.start(tx) for operation in operations]


class _Plainly(Operation[T]):
    """An operation that is run, not started."""

    def __init__(self, operation: Operation[T]) -> None:
        self._operation = operation
        self.foreseeable = operation.foreseeable

    def run(self, tx: Transaction) -> T | Again:
        return self._operation.run(tx)


class _PlainlyNotDurable(_Plainly[T]):
    """The same of one whose answer is not waited for until it is on disk."""

    durable = False


class Nothing(Operation[None]):
    """Does nothing, so that a commit is made for what goes with any commit."""

    durable = False
    foreseeable = True

    def run(self, tx: Transaction) -> None:
        return


def again(operation: Operation[T], answer: Again) -> Operation[T]:
    """Return the operation as it is to be done next, once this was its answer."""
    if answer is ELSEWHERE:
        return operation
    return _Plainly(operation) if operation.durable else _PlainlyNotDurable(operation)
