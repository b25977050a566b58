"""The embedded store: one SQLite file, any number of threads and processes."""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lazaretto.clock import Clock
from lazaretto.errors import BrokerClosed, StoreBusy, StoreError
from lazaretto.store.bell import Bell
from lazaretto.store.contract import Operation, Transaction
from lazaretto.store.group import GroupCommit, Ticket
from lazaretto.store.sqlite.connection import connect, translated, translating
from lazaretto.store.sqlite.exclusive import SqliteExclusive
from lazaretto.store.sqlite.rows import Memory
from lazaretto.store.sqlite.schema import prepare
from lazaretto.store.sqlite.transaction import SqliteTransaction

T = TypeVar("T")

#: How long a writer sleeps before it asks again for a file that another process is writing, in
#: seconds: the first and the longest time. SQLite's own waits are longer, and so less fair.
_FIRST_NAP = 0.000_2
_LONGEST_NAP = 0.005


class SqliteStore:
    """A store in the file at `path`.

    `busy` is how many seconds a caller waits for other processes before StoreBusy.
    `durable_attempts` also syncs the record of each hand-over to disk before the receiver gets the
    message; without it that record survives the death of any process, but a power cut may lose
    the latest ones.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        create: bool = True,
        adopt: bool = False,
        busy: float = 10.0,
        durable_attempts: bool = False,
    ) -> None:
        self.path = path
        self.clock = clock
        self._busy = busy
        self._pid = os.getpid()
        self._where = f"store {path}"
        self._always_durable = durable_attempts
        prepare(path, create=create, adopt=adopt, busy=busy, now=clock.now())
        # The random part tells it from a former process of the same number, as in a container.
        self.worker = f"{socket.gethostname()}:{self._pid}:{uuid.uuid4().hex[:8]}"
        self._prefix = secrets.token_hex(8)
        self._memory = Memory()
        with translating(self._where):
            # Opened with patience: another process may just be making the file a store.
            self._connection = connect(path, busy=busy)
            self._connection.execute("PRAGMA busy_timeout = 0")
        self._tx = self._transaction(self._connection, self._memory)
        self._version = -1
        self._synced: bool | None = True
        self._readers: list[sqlite3.Connection] = []
        self._closed = threading.Event()
        self._monitor: Callable[[], None] = lambda: None
        self._group = GroupCommit(self._commit)
        self.bell = Bell(self._wake_monitor)

    def _transaction(self, connection: sqlite3.Connection, memory: Memory) -> SqliteTransaction:
        return SqliteTransaction(connection, memory, self.worker, self._prefix)

    # -- writing --------------------------------------------------------------------------------

    def run(self, operation: Operation[T]) -> T:
        self._refuse_fork()
        answer: T = self._group.run(operation)
        return answer

    def _refuse_fork(self) -> None:
        if self._pid != os.getpid():
            raise StoreError("this broker was opened before a fork; open one of its own in each process")

    def _commit(self, group: list[Ticket]) -> None:
        durable = self._always_durable
        for ticket in group:
            durable = durable or ticket.operation.durable
        try:
            try:
                # Within, because a signal may raise an exception as soon as the transaction is open.
                self._begin(durable)
                if not self._run_together(group):
                    # A full disk has ended the transaction by itself.
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    self._memory.forget()
                    self._begin(durable)
                    self._run_apart(group)
                self._connection.execute("COMMIT")
            except BaseException:
                self._memory.forget()
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise translated(error, self._where) from error
        tx = self._tx
        if tx.cursors:
            self._memory.cursors.update(tx.cursors)
        if tx.registers:
            self._memory.registered = True
        if tx.woken:
            self.bell.ring(tx.woken)

    def _begin(self, durable: bool) -> None:
        """Start a transaction, when no other process is in one."""
        execute = self._connection.execute
        if durable != self._synced:
            # Not known, should a signal's exception come between the setting and its note.
            self._synced = None
            execute("PRAGMA synchronous = FULL" if durable else "PRAGMA synchronous = NORMAL")
            self._synced = durable
        nap, end = _FIRST_NAP, 0.0
        while True:
            try:
                execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                now = time.monotonic()
                end = end or now + self._busy
                if now >= end:
                    raise StoreBusy(
                        f"{self._where}: another process kept writing for {self._busy:g} seconds; try again"
                    ) from error
                time.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP)
        (version,) = execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._memory.forget()
            self._version = version
        self._tx.begin(self.clock.now())

    def _run_together(self, group: list[Ticket]) -> bool:
        """Run all operations; return False if one failed and left something half done."""
        connection, tx = self._connection, self._tx
        if len(group) == 1:
            # Alone, a failure undoes everything, and there is nobody to run again.
            group[0].answer = group[0].operation.run(tx)
            return True
        index = 0
        while index < len(group):
            ticket = group[index]
            kind = type(ticket.operation)
            end = index + 1
            if kind.mergeable:
                while end < len(group) and type(group[end].operation) is kind:
                    end += 1
            changes = connection.total_changes
            try:
                if end == index + 1:
                    ticket.answer = ticket.operation.run(tx)
                else:
                    operations = [t.operation for t in group[index:end]]
                    for ticket, answer in zip(group[index:end], kind.run_all(tx, operations), strict=True):
                        ticket.answer = answer
            except Exception as error:
                if end > index + 1 or connection.total_changes != changes or not connection.in_transaction:
                    return False
                ticket.error = error
                # Numbers it may have taken are not in the file, and must not count as the last ones.
                self._memory.forget()
            index = end
        return True

    def _run_apart(self, group: list[Ticket]) -> None:
        """Run each operation so that its failure undoes nothing of the others."""
        execute, tx = self._connection.execute, self._tx
        for ticket in group:
            ticket.error = ticket.answer = None
            execute("SAVEPOINT operation")
            cursors = dict(tx.cursors)
            try:
                ticket.answer = ticket.operation.run(tx)
            except Exception as error:
                if not self._connection.in_transaction:
                    raise
                execute("ROLLBACK TO operation")
                self._memory.forget()
                tx.cursors = cursors
                ticket.error = translated(error, self._where) if isinstance(error, sqlite3.Error) else error
            execute("RELEASE operation")

    # -- reading --------------------------------------------------------------------------------

    def read(self, query: Callable[[Transaction], T]) -> T:
        self._refuse_fork()
        if self._closed.is_set():
            raise BrokerClosed("the broker is closed")
        with translating(self._where):
            try:
                connection = self._readers.pop()
            except IndexError:
                connection = connect(self.path, read_only=True, busy=self._busy)
            try:
                connection.execute("BEGIN")
                tx = self._transaction(connection, Memory())
                tx.begin(self.clock.now())
                found = query(tx)
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
            self._readers.append(connection)
            return found

    # -- the user's own SQL ---------------------------------------------------------------------

    def exclusive(self) -> SqliteExclusive:
        self._refuse_fork()
        self._group.hold()
        connection = None
        try:
            if self._closed.is_set():
                raise BrokerClosed("the broker is closed")
            with translating(self._where):
                connection = connect(self.path, busy=self._busy)
                connection.execute("BEGIN IMMEDIATE")
            # Cursors only ever move on, so the writer's are good enough to start from.
            memory = Memory()
            memory.cursors.update(self._memory.cursors)
            tx = self._transaction(connection, memory)
            tx.begin(self.clock.now())
            return SqliteExclusive(connection, tx, memory, self._where, self._end_exclusive)
        except BaseException:
            if connection is not None:
                connection.close()
            self._group.let_go()
            raise

    def _end_exclusive(self, woken: set[int]) -> None:
        self._group.let_go()
        if woken:
            self.bell.ring(woken)

    # -- waiting --------------------------------------------------------------------------------

    def changes(self, key: int) -> int:
        return self.bell.count(key >> 42)

    def wait(self, key: int, seen: int, seconds: float) -> bool:
        return self.bell.wait(key >> 42, seen, seconds)

    def on_waiting(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a thread starts to wait and none did before."""
        self._monitor = wake

    def _wake_monitor(self) -> None:
        self._monitor()

    @contextmanager
    def version_reader(self) -> Iterator[Callable[[], int]]:
        """Give a function that tells a number which changes with every commit of any process."""
        with translating(self._where):
            connection = connect(self.path, read_only=True, busy=self._busy)

        def read() -> int:
            try:
                (version,) = connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error as error:
                raise translated(error, self._where) from error
            return int(version)

        try:
            yield read
        finally:
            connection.close()

    def check(self) -> list[str]:
        """Return what is wrong with the file: nothing, if all is well. Reads the whole file."""
        with translating(self._where):
            connection = connect(self.path, read_only=True, busy=self._busy)
            try:
                found = [row[0] for row in connection.execute("PRAGMA quick_check")]
            finally:
                connection.close()
        return [] if found == ["ok"] else found

    def facts(self) -> dict[str, Any]:
        """Return the store's settings and sizes, for people who look after it."""

        def pragma(name: str) -> Any:
            return connection.execute(f"PRAGMA {name}").fetchone()[0]

        with translating(self._where):
            connection = connect(self.path, read_only=True, busy=self._busy)
            try:
                meta = dict(connection.execute("SELECT name, value FROM lazaretto_meta"))
                pages, free, size = pragma("page_count"), pragma("freelist_count"), pragma("page_size")
                journal = pragma("journal_mode")
            finally:
                connection.close()
        log = Path(f"{self.path}-wal")
        return {
            "path": str(self.path),
            "schema": int(meta["schema"]),
            "store_id": meta["store_id"],
            "sqlite": sqlite3.sqlite_version,
            "journal_mode": journal,
            "file_bytes": pages * size,
            "free_bytes": free * size,
            "log_bytes": log.stat().st_size if log.exists() else 0,
        }

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._group.closed = True
        self.bell.close()
        if self._pid != os.getpid():
            return
        self._group.hold()
        while self._readers:
            self._readers.pop().close()
        self._connection.close()
        self._group.let_go()
