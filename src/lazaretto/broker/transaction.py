"""A transaction: receives, settlements, sends and the user's own SQL in one commit.

Receipts, settlements and plans wait in a unit of work until the store does all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, overload

from lazaretto.broker.receiver import Receiver
from lazaretto.broker.sender import send_operation, sendable
from lazaretto.broker.settling import Messages, MessageVerbs, settlements
from lazaretto.broker.steps import Steps, steps_of, verb
from lazaretto.engine.messages.prepare import Sendable, prepare_all
from lazaretto.engine.messages.settle import COMPLETE, RELEASE, Settled, Settlement
from lazaretto.engine.unit_of_work import CommitWork, RollBackWork
from lazaretto.errors import InvalidOption, LazarettoError, TransactionError
from lazaretto.model.checks import GivenDuration, is_unicode, shown
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import failure_of
from lazaretto.model.messages import ReceivedMessage
from lazaretto.observe.traces import active
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.user_sql import Exclusive, Savepoint

Parameters = Sequence[Any] | Mapping[str, Any]


class TransactionSavepoint:
    """A point within a transaction to return to."""

    def __init__(self, owner: UnitOfWork, sql: Savepoint | None) -> None:
        self._owner = owner
        self._sql = sql
        self._settled = dict(owner._settled)
        self._operations = len(owner._operations)
        self._received = dict(owner._received)

    def rollback(self) -> None:
        """Undo settlements, sends and SQL since this point; release the messages received since.

        The locks are kept until the transaction ends, so nobody else gets the messages before, and they
        can still be settled within it. This rollback does not count as a failed attempt.
        """
        owner = self._owner
        owner.refuse_ended()
        if self not in owner._savepoints:
            raise TransactionError("this savepoint no longer exists: a rollback to an earlier one undid it")
        del owner._savepoints[owner._savepoints.index(self) + 1 :]
        owner._settled = dict(self._settled)
        del owner._operations[self._operations :]
        since = (key for key, m in owner._received.items() if self._received.get(key) is not m)
        owner._undone.update(since)
        if self._sql is not None:
            self._sql.rollback()
        elif owner._exclusive is not None:
            owner._exclusive.rollback()
            owner._exclusive = None


class UnitOfWork:
    """The one place where transactions of messages and of dialogs collect what takes effect together.

    It is a part of this package, not for programs. A context manager. One thread.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._received: dict[int, ReceivedMessage] = {}
        self._settled: dict[int, Settled] = {}
        self._undone: set[int] = set()
        self._operations: list[Operation[Any]] = []
        self._releases: list[Operation[Any]] = []
        self._exclusive: Exclusive | None = None
        self._savepoints: list[TransactionSavepoint] = []
        self._ended = False

    def refuse_receiving(self) -> None:
        """Raise TransactionError if nothing can be received any more."""
        self.refuse_ended()
        if self._exclusive is not None:
            raise TransactionError("receive before the first SQL statement of a transaction, not after it")

    @property
    def received(self) -> Iterable[ReceivedMessage]:
        """Messages received in it."""
        return self._received.values()

    def enlist(self, operation: Operation[Any]) -> None:
        """Run an engine operation on commit, after the settlements, in the order given."""
        self.refuse_ended()
        self._operations.append(operation)

    @property
    def enlisted(self) -> Sequence[Operation[Any]]:
        """The operations of the commit, in order."""
        return self._operations

    def adopt(self, messages: Iterable[ReceivedMessage], release: Operation[Any] | None = None) -> None:
        """Adopt messages as if this transaction had received them; `release` runs however it ends."""
        self.refuse_ended()
        self._received.update((message.key, message) for message in messages)
        if release is not None:
            self._releases.append(release)

    def execute(self, sql: str, parameters: Parameters = ()) -> Any:
        """Run SQL in the same commit; return its cursor. See WorkVerbs."""
        self.refuse_ended()
        if not isinstance(sql, str) or not is_unicode(sql):
            raise InvalidOption(f"expected sql to be text, got {shown(sql)}")
        if not isinstance(parameters, Sequence | Mapping) or isinstance(parameters, str | bytes | bytearray):
            raise InvalidOption(f"expected parameters to be a sequence or a mapping, got {shown(parameters)}")
        if self._exclusive is None:
            self._exclusive = self._store.exclusive()
        try:
            return self._exclusive.execute(sql, parameters)
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, LazarettoError):
                raise
            raise InvalidOption(f"the database rejects these parameters: {error}") from error

    def savepoint(self) -> TransactionSavepoint:
        """Mark a point within the transaction to return to."""
        self.refuse_ended()
        point = TransactionSavepoint(self, self._exclusive.savepoint() if self._exclusive else None)
        self._savepoints.append(point)
        return point

    def commit(self) -> None:
        """Commit everything. If it raises (MessageLockLost and others), the transaction was rolled back."""
        self.refuse_ended()
        entries = dict(self._settled)
        for key, message in self._received.items():
            if key not in entries:
                settlement = RELEASE if key in self._undone else COMPLETE
                entries[key] = Settled(message, settlement)
        work = CommitWork(list(entries.values()), [*self._operations, *self._releases])
        self._ended = True
        tracing = active(self._store)
        try:
            if tracing is None:
                self._commit(work)
            else:
                with tracing.committing(work.entries, work.operations):
                    self._commit(work)
        except BaseException as error:
            self._give_back(error)
            raise

    def _commit(self, work: CommitWork) -> None:
        if self._exclusive is not None:
            self._exclusive.commit(work)
        elif work.entries or work.operations:
            self._store.run(work)

    def rollback(self, error: BaseException | None = None) -> None:
        """Undo everything; count a failed attempt for each received message, with `error` in its history."""
        self.refuse_ended()
        self._ended = True
        if self._exclusive is not None:
            self._exclusive.rollback()
        self._give_back(error)

    def _give_back(self, error: BaseException | None) -> None:
        if self._received or self._releases:
            failure = failure_of(error)
            self._store.run(RollBackWork(list(self._received.values()), failure, self._releases))

    def settle(self, messages: Messages, settlement: Settlement) -> None:
        """Settle messages by the commit. Raises TransactionError for one that is settled already."""
        self.refuse_ended()
        for entry in settlements(messages, settlement):
            if entry.message.key in self._settled:
                raise TransactionError(
                    f"message {entry.message.sequence_number} is already settled in this transaction"
                )
            self._settled[entry.message.key] = entry

    def refuse_ended(self) -> None:
        """Raise TransactionError if this unit of work was committed or rolled back, StoreError in a fork."""
        self._store.refuse_fork()
        if self._ended:
            raise TransactionError("this transaction has ended; begin a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if error is None:
            self.commit()
        elif self._store.forked:
            # The transaction is its parent's, who goes on with it.
            self._ended = True
        else:
            self.rollback(error)


class WorkVerbs:
    """The verbs that all transactions share: your own SQL, savepoints, commit and rollback."""

    _store: Store
    _work: UnitOfWork

    def execute(self, sql: str, parameters: Parameters = ()) -> Any:
        """Run your own SQL on the store's database, in the same commit; return its cursor.

        From here to the end of the transaction nobody else can write to a file; on PostgreSQL others go on,
        and wait only for rows that you lock. You can read the broker's tables but not change them. Receive
        before it, not after. Errors of the SQL driver (sqlite3.IntegrityError,
        psycopg.errors.CheckViolation) are raised unchanged. The style of parameters depends on the database:
        see `paramstyle`.
        """
        return self._work.execute(sql, parameters)

    @property
    def paramstyle(self) -> str:
        """The DB-API parameter style of the database: "qmark" (?) or "format" (%s)."""
        return self._store.paramstyle

    def savepoint(self) -> TransactionSavepoint:
        """Mark a point within the transaction to return to. Received messages and groups stay locked."""
        return self._work.savepoint()

    def commit(self) -> None:
        """Commit everything. If it raises (MessageLockLost and others), the transaction was rolled back."""
        self._work.commit()

    def rollback(self, error: BaseException | None = None) -> None:
        """Undo everything; count a failed attempt for each received message, with `error` in its history."""
        self._work.rollback(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.__exit__(kind, error, trace)


class BrokerTransaction(MessageVerbs, WorkVerbs):
    """Receives, settlements, sends and SQL that take effect together or not at all. A context manager.

    Leaving the block commits; an exception rolls back. What the transaction received and did not
    settle otherwise is completed by the commit. Rolling back charges each message it received one
    failure and makes it receivable again. Nothing is locked in the store while your code runs, until the
    first `execute`: from then on it is the only writer of a file, so be quick. On PostgreSQL others go on.
    The verbs that settle take messages received in this transaction or by a receiver. One thread.
    """

    def __init__(self, store: Store, work: UnitOfWork | None = None) -> None:
        self._store = store
        self._work = UnitOfWork(store) if work is None else work

    @verb
    def receive(
        self,
        path: str,
        max_messages: int = 1,
        max_wait: GivenDuration | None = 0.0,
        *,
        subqueue: str | None = None,
    ) -> Steps[list[ReceivedMessage]]:
        """Receive messages. The commit completes them; a rollback counts a failed attempt.

        Raises TransactionError after `execute`: the delivery must be committed before you see the message,
        which is impossible within your own SQL's transaction.
        """
        self._work.refuse_receiving()
        receiver = Receiver(self._store, EntityPath.parse(path, subqueue))
        messages = yield from steps_of(receiver.receive, max_messages, max_wait)
        self._work.adopt(messages)
        return messages

    @verb
    def receive_by_number(
        self, path: str, sequence_numbers: int | Iterable[int], *, subqueue: str | None = None
    ) -> Steps[list[ReceivedMessage]]:
        """Receive active messages by sequence number: all, or none. Otherwise as `receive`."""
        self._work.refuse_receiving()
        receiver = Receiver(self._store, EntityPath.parse(path, subqueue))
        messages = yield from steps_of(receiver.receive_by_number, sequence_numbers)
        self._work.adopt(messages)
        return messages

    @overload
    def send(self, path: str, messages: Sendable, *, via: str | None = None) -> None: ...
    @overload
    def send(self, path: str, messages: Iterable[Sendable], *, via: str | None = None) -> None: ...
    def send(self, path: str, messages: Sendable | Iterable[Sendable], *, via: str | None = None) -> None:
        """Send messages to a queue or topic on commit. Invalid messages raise an error immediately.

        `via`: a queue that they pass through (send via in Service Bus). The commit succeeds once that queue
        accepts them; if `path` cannot, they move to its transfer dead-letter subqueue.
        """
        self._work.refuse_ended()
        target, through = sendable(path), None if via is None else sendable(via)
        prepared = prepare_all(messages)
        if (tracing := active(self._store)) is not None:
            prepared = tracing.created(target, prepared)
        if prepared:
            self._work.enlist(send_operation(target, through, prepared))

    def _settle(self, messages: Messages, settlement: Settlement) -> None:
        self._work.settle(messages, settlement)
