"""Group commit over one database connection: the common part of all SQL stores."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, ClassVar, TypeVar

from lazaretto.errors import BrokerClosed, LazarettoError, StoreError
from lazaretto.model.clock import Clock
from lazaretto.model.partitions import SLOTS, Homes, partition_of
from lazaretto.store.records.messages import Again
from lazaretto.store.runtime.forks import Opener
from lazaretto.store.runtime.notices import NoticeLog, Presence
from lazaretto.store.runtime.notifier import Caller, Notifier
from lazaretto.store.runtime.processes import message_ids
from lazaretto.store.sql.commit_context import CommitContext, Identity
from lazaretto.store.sql.copy_store import Tables
from lazaretto.store.sql.group_commit import GroupCommit, Ticket, in_order, run_merged
from lazaretto.store.sql.idle_connections import Closable
from lazaretto.store.sql.operation import Nothing, Operation, again
from lazaretto.store.sql.rows import Connection, Memory
from lazaretto.store.sql.statements import Dialect
from lazaretto.store.sql.transaction import Transaction
from lazaretto.store.sql.user_sql import Exclusive

T = TypeVar("T")


class Store(ABC):
    """A store with one connection that writes; `where` names it in errors."""

    dialect: Dialect
    #: Whether each message of a batch gets a span of its own, if somebody traces.
    create_spans = True
    #: The connections that no query uses.
    _readers: Sized
    #: How often other processes' commits are looked for while somebody waits, in seconds.
    poll = 0.01
    #: Whether operations are started, their answers read after the commit.
    _starts = False
    #: How its SQL names parameters, in DB-API's words.
    paramstyle: ClassVar[str]
    #: The database's errors.
    errors: ClassVar[type[Exception]]

    def __init__(self, where: str, connection: Connection, clock: Clock, *, durable_attempts: bool) -> None:
        self.clock = clock
        self._where = where
        self._connection = connection
        self.opener = Opener()
        self._always_durable = durable_attempts
        # The random part tells it from a former process of the same number, as in a container.
        worker = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.worker, self.identity = worker, Identity(worker, worker)
        self._new_message_id = message_ids()
        self._memory = Memory()
        self._memory.homes = Homes(self._take_slot)
        #: What the store was like when this one looked, or wrote, the last time.
        self._version = -1
        self._tx = self._transaction(connection, self._memory)
        self._rates = self._tx.context.rates
        self._closed = threading.Event()
        self._awake = threading.Event()
        self._group = GroupCommit(self._commit, always_durable=durable_attempts)
        self.notifier = Notifier(self._first_waits)
        self._notices = NoticeLog()
        #: Who takes messages in this process.
        self.presence = Presence(clock)

    @property
    def server(self) -> tuple[str, int | None] | None:
        """The address and port of the server that it is on; None if it is a file."""
        return None

    def _transaction(self, connection: Connection, memory: Memory, *, reads: bool = False) -> Transaction:
        context = CommitContext(connection.execute, self.dialect, memory, self.identity, reads=reads)
        return Transaction(context, self._new_message_id)

    def hold_for_clients(self) -> None:
        """Receive for clients of a server from now on: if this process dies, no message is to blame."""
        self.identity.hold_for_clients()

    def _take_slot(self) -> int:
        """Return the number that says which partitions are this process's homes."""
        return partition_of(self.worker, SLOTS)

    def _begun(self, version: int, now: int) -> None:
        """Start on a new commit; `version`: another one if others have written since."""
        if version != self._version:
            self._memory.forget()
            self._version = version
        self._tx.begin(now)

    @abstractmethod
    def _begin(self, durable: bool) -> None:
        """Start a transaction as the only writer; forget remembered values that others have changed."""

    @abstractmethod
    def _save(self) -> None:
        """Commit."""

    @abstractmethod
    def _translated(self, error: Exception) -> LazarettoError:
        """Return the database's error as one of ours."""

    @abstractmethod
    def own_fault(self, error: Exception) -> StoreError | None:
        """Return a database's error as ours if the store is at fault; None if a user's SQL is."""

    @abstractmethod
    def _connections(self) -> Sequence[Closable]:
        """Return all connections that are open, of which the writer's is one."""

    def run(self, operation: Operation[T]) -> T:
        """Run an operation in one commit with those of other threads; return once it is committed."""
        if self.opener.pid != os.getpid():
            self.refuse_fork()
        try:
            answer: T | Again = self._group.run(operation)
            while isinstance(answer, Again):
                answer = self._group.run(self.again(operation, answer))
            return answer
        finally:
            # Not by whoever has the right to write: all others would wait for the log.
            if self._notices.new:
                self._write_notices()

    def submit(self, ticket: Ticket) -> None:
        """Do an operation in one commit with those of others; return at once. The ticket is told."""
        self.refuse_fork()
        self._group.submit(ticket, self._write_notices)

    #: Returns an operation as it is to be done next, once it was answered by Again.
    again = staticmethod(again)

    def _write_notices(self) -> None:
        if self._notices.new:
            self._notices.write()

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the one that has opened it, and can use nothing of it."""
        return self.opener.forked

    def refuse_fork(self) -> None:
        """Raise StoreError in such a child."""
        self.opener.refuse_fork()

    def _refuse_closed(self) -> None:
        self.refuse_fork()
        if self._closed.is_set():
            raise BrokerClosed("the broker is closed")

    @contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """Refuse all on a closed store; what fails because the store is closed meanwhile says so."""
        self._refuse_closed()
        try:
            yield
        except StoreError as error:
            if self._closed.is_set():
                raise BrokerClosed("the broker was closed during the call") from error
            raise

    def _commit(self, group: list[Ticket]) -> None:
        durable = self._always_durable
        for ticket in group:
            durable = durable or ticket.operation.durable
        try:
            try:
                # Within, because a signal may raise an exception as soon as the transaction is open.
                if not self._commit_together(group, durable):
                    self._start_over()
                    self._begin(durable)
                    self._run_apart(group)
                    self._save()
            except BaseException:
                self._start_over()
                raise
        except self.errors as error:
            raise self._translated(error) from error
        self._committed(self._tx.context)

    def _committed(self, context: CommitContext) -> None:
        """Remember and announce the results of a finished commit."""
        if context.cursors:
            self._memory.cursors.update(context.cursors)
        if context.registers:
            self._memory.registered = True
        if context.notices:
            self._notices.add(context.notices)
        if context.adds_rates:
            self._rates.written()
        self._rates.keep()
        if context.woken or context.comes_due is not None:
            self._tell(context.woken, context.comes_due)

    def _commit_together(self, group: list[Ticket], durable: bool) -> bool:
        """Run all operations and commit; return False if one failed and left something half done."""
        self._begin(durable)
        if not self._run_together(group):
            return False
        self._save()
        return True

    def _start_over(self) -> None:
        """Undo all that was done and not committed."""
        self._tx.undone()
        self._roll_back()

    def _roll_back(self) -> None:
        # A full disk, or a connection that broke, has ended the transaction by itself.
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _run_together(self, group: list[Ticket]) -> bool:
        """Run all operations; return False if one failed and left something half done."""
        connection, tx = self._connection, self._tx
        for ticket in group:
            ticket.error = ticket.later = None
        if len(group) == 1:
            ticket = group[0]
            # Alone, a failure undoes everything, and there is nobody to run again.
            if self._starts:
                ticket.later = ticket.operation.start(tx)
            if ticket.later is None:
                ticket.answer = ticket.operation.run(tx)
            if tx.context.counted or self._rates.due:
                self._save_counts(tx)
            return True
        for kind, some in in_order(group):
            together = self._starts and len(some) > 1
            try:
                if together:
                    laters = kind.start_all(tx, [t.operation for t in some])
                    for ticket, later in zip(some, laters, strict=True):
                        ticket.later = later
                    some = [t for t in some if t.later is None]
                if kind.mergeable and len(some) > 1:
                    run_merged(kind, some, tx)
                    continue
            except Exception:
                return False
            for ticket in some:
                changes = connection.total_changes
                try:
                    if self._starts and not together:
                        ticket.later = ticket.operation.start(tx)
                    if ticket.later is None:
                        ticket.answer = ticket.operation.run(tx)
                except Exception as error:
                    failed = isinstance(error, self.errors) or not connection.in_transaction
                    if connection.total_changes != changes or failed:
                        return False
                    ticket.error = error
                    # Numbers it may have taken are not in the store, and must not count as the last ones.
                    tx.undone()
        self._save_counts(tx)
        return True

    def _run_apart(self, group: list[Ticket]) -> None:
        """Run each operation so that its failure undoes nothing of the others."""
        execute, tx = self._connection.execute, self._tx
        for ticket in group:
            ticket.error = ticket.later = None
            execute("SAVEPOINT operation")
            cursors, notices = dict(tx.context.cursors), len(tx.context.notices)
            counted, rates = dict(tx.context.counted), len(self._rates.entries)
            try:
                ticket.answer = ticket.operation.run(tx)
            except Exception as error:
                if not self._connection.in_transaction:
                    raise
                execute("ROLLBACK TO operation")
                tx.undone()
                tx.context.cursors, tx.context.counted = cursors, counted
                del self._rates.entries[rates:]
                del tx.context.notices[notices:]
                ticket.error = self._translated(error) if isinstance(error, self.errors) else error
            execute("RELEASE operation")
        self._save_counts(tx)

    def _save_counts(self, tx: Transaction) -> None:
        """Write what the commit has counted of causes, and what earlier ones have of rates if that is due."""
        if tx.context.counted:
            tx.causes.save_counts()
        if self._rates.due and self._rates.any:
            tx.rates.add(self._rates.rows())

    def changes(self, key: int) -> int:
        """Return a number that grows when the subqueue that contains `key` may have new messages."""
        return self.notifier.count(key >> 42)

    def wait(self, key: int, seen: int, seconds: float, alike: str | None = None) -> bool:
        """Wait until `changes(key)` is no longer `seen`; return False on timeout.

        `alike`: of callers that wait for the same thing one may be woken, who must call `pass_on`.
        """
        return self.notifier.wait(key >> 42, seen, seconds, alike)

    def enlist(
        self, key: int, seen: int, wake: Callable[[], object], alike: str | None = None
    ) -> Caller | None:
        """Do as `wait` without a thread: have `wake` called; None if there are news already."""
        return self.notifier.enlist(key >> 42, seen, wake, alike)

    def pass_on(self, key: int, alike: str | None) -> None:
        """Wake one more caller that waits for the same thing, after finding something or failing."""
        self.notifier.pass_on(key >> 42, alike)

    def look_again(self) -> int | None:
        """Wake receivers that were told to look again now; return when the next ones are."""
        again, now = self.identity.again, self.clock.now()
        for place in [place for place, at in tuple(again.items()) if at <= now]:
            del again[place]
            self.notifier.notify({place: 1})
        return min(tuple(again.values()), default=None)

    def sleep(self, seconds: float) -> None:
        """Sleep, as the thread that looks for other processes' commits, until it is time to look again."""
        self._awake.wait(seconds)
        self._awake.clear()

    def wake(self) -> None:
        """End the `sleep` that is under way, or else the next one."""
        self._awake.set()

    def _first_waits(self) -> None:
        """A thread starts to wait, and none did before."""
        self.wake()

    def _tell(self, woken: Mapping[int, int], comes_due: int | None) -> None:
        """Wake the receivers of newly receivable messages; `comes_due`: when the next timer is due."""
        self.notifier.notify(woken)

    def _add_rates(self, context: CommitContext) -> None:
        """Add what a transaction with the user's own SQL has counted. Whoever may write does it."""
        if context.rates.entries:
            context.rates.keep()
            self._rates.add(context.rates)

    def _announce(self, context: CommitContext) -> None:
        """Tell of what such a transaction has committed."""
        if context.woken:
            # What it has scheduled besides is looked for.
            self._tell(context.woken, self.clock.now())
        if context.notices:
            self._notices.add(context.notices)
            self._notices.write()

    def rates_left(self) -> bool:
        """Return whether counts have waited long enough for a commit to write them."""
        return self._rates.left()

    def write_rates(self) -> None:
        """Write what this process has counted and no commit has written."""
        if self._rates.any:
            self._rates.due = True
            self.run(Nothing())

    def read(self, query: Callable[[Transaction], T]) -> T:
        """Return the result of `query` on one consistent snapshot."""
        with self._unless_closed():
            return self._read(query)

    @abstractmethod
    def _read(self, query: Callable[[Transaction], T]) -> T:
        """Run a query on the store's current state and return its result."""

    def mark_of_commits(self) -> str | None:
        """Return what stays the same while nobody commits, no newer than later reads; None: unknown."""
        with self._unless_closed():
            return self._mark_of_commits()

    @abstractmethod
    def _mark_of_commits(self) -> str | None: ...

    @abstractmethod
    def exclusive(self, *, pauses: bool = True) -> Exclusive:
        """Become the only writer, for the user's own SQL.

        `pauses`: a program's code runs between its statements. If not, a server ends it when it is silent.
        """

    @abstractmethod
    def version_reader(self) -> AbstractContextManager[Callable[[], tuple[int, int]]]:
        """Return a function for two numbers: one changes with other processes' commits, one with any."""

    @abstractmethod
    def tables(self) -> AbstractContextManager[Tables]:
        """Return all tables for copying, and block all other writers."""

    def stop_waiting(self) -> None:
        """Wait no longer for a server that is away."""
        return

    def tidy(self) -> None:
        """Remove the remains of deleted messages, if that is due."""
        return

    def check(self) -> list[str]:
        """Return the store's problems: an empty list if there are none."""
        with self._unless_closed():
            return self._check()

    @abstractmethod
    def _check(self) -> list[str]: ...

    def facts(self) -> dict[str, Any]:
        """Return the store's settings and sizes, for operators."""
        with self._unless_closed():
            return self._facts()

    @abstractmethod
    def _facts(self) -> dict[str, Any]: ...

    def _write_last(self) -> None:
        """Write rates before closing; wait for other writers only for a moment."""
        self._commit([Ticket(Nothing())])

    def close(self) -> None:
        """Close the store. Waiting callers get BrokerClosed."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self.forked:
            # Threads of the parent may have held any lock.
            return
        self.stop_waiting()
        self._group.close()
        self.notifier.close()
        # What these commit is counted here.
        self._group.wait_for_holders()
        self._group.acquire()
        try:
            if self._rates.any:
                with suppress(Exception):
                    self._rates.due = True
                    self._write_last()
            for connection in self._connections():
                connection.close()
        finally:
            # Those who wait learn from it that the store is closed.
            self._group.release()
