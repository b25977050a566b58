"""The embedded store: one SQLite file, any number of threads and processes."""

from __future__ import annotations

import ctypes
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from lazaretto.errors import LazarettoError, StoreBusy, StoreError, StoreGone
from lazaretto.model.clock import MICROSECONDS, Clock, Deadline, current, too_long
from lazaretto.store.sql.commit_context import CommitContext
from lazaretto.store.sql.copy_store import Tables
from lazaretto.store.sql.idle_connections import Closable, IdleConnections
from lazaretto.store.sql.rows import Memory
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction
from lazaretto.store.sqlite.connection import Log, connect, has_reset_bug, own_fault, translated, translating
from lazaretto.store.sqlite.news import News
from lazaretto.store.sqlite.schema import SQLITE, prepare
from lazaretto.store.sqlite.store_file import CommitMarks, WatchedFile, refuse_inherited, refuse_second_name
from lazaretto.store.sqlite.tables import SqliteTables
from lazaretto.store.sqlite.user_sql import SqliteExclusive
from lazaretto.store.sqlite.wake_file import WakeFile
from lazaretto.store.sqlite.writers_line import WritersLine

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: How long a writer sleeps before it asks again for a file that another process is writing, in
#: seconds: the first and the longest time. SQLite's own waits are longer, and so less fair.
_FIRST_NAP = 0.000_2
_LONGEST_NAP = 0.005
#: How long closing waits for other writers, in seconds, to write what was counted last.
_LAST_WAIT = 0.5
#: How often a process that gets news still checks for others' commits, in seconds.
_POLL = 0.25
#: Writers wait here, not in SQLite.
_NO_PATIENCE = "PRAGMA busy_timeout = 0"


#: Steps of SQLite's machine between two looks at the clock.
_STEPS = 20_000


class SqliteStore(Store):
    """A store in the file at `path`.

    `busy`: how many seconds a caller waits for other processes before StoreBusy.
    `durable_attempts`: sync the record of each delivery to disk before the receiver gets the message.
    Without it the record survives the death of any process, but a power cut may lose the latest ones.
    """

    dialect = SQLITE
    paramstyle = "qmark"
    errors = sqlite3.Error
    _connection: sqlite3.Connection

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        create: bool = True,
        adopt: bool = False,
        copying: bool = False,
        busy: float = 10.0,
        durable_attempts: bool = False,
    ) -> None:
        self.path = path
        self._busy = busy
        where = f"store {path}"
        refuse_inherited(path)
        refuse_second_name(path)
        prepare(path, create=create, adopt=adopt, copying=copying, busy=busy, now=clock.now())
        with translating(where):
            # Opening retries: another process may be creating the store in this file.
            connection = connect(path, busy=busy)
            # Opens the log, too.
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            connection.execute(_NO_PATIENCE)
            self._file = WatchedFile(path)
            (page_size,) = connection.execute("PRAGMA page_size").fetchone()
            self._log = Log(self._file.log, page_size, self._connect)
        super().__init__(where, connection, clock, durable_attempts=durable_attempts)
        self._synced: bool | None = True
        self._open_wake_file()
        self._readers: IdleConnections[sqlite3.Connection] = IdleConnections(self._closed)
        self._marks = CommitMarks(lambda: self._connect(read_only=True), self._closed)

    def _open_wake_file(self) -> None:
        self._line: WritersLine | None = None
        self._news: News | None = None
        self._wake_file: WakeFile | None = None
        try:
            self._wake_file = WakeFile(self.path)
        except (OSError, ValueError) as error:
            # Naps and polls do, too.
            _log.debug("%s: no wake file: %s", self._where, error)
            return
        self._line = WritersLine(self._wake_file)
        self._news = News(self._wake_file)
        self.notifier.elsewhere = self._news
        self.poll = _POLL

    def _connect(self, *, read_only: bool = False) -> sqlite3.Connection:
        """Return another connection to the same file. Raises StoreGone if the file was replaced."""
        self._file.refuse_gone()
        try:
            connection = connect(self.path, read_only=read_only, busy=self._busy)
        except sqlite3.Error:
            # Of a folder further up nothing was heard.
            self._file.look()
            raise
        try:
            self._file.refuse_gone()
        except BaseException:
            connection.close()
            raise
        return connection

    # -- writing --------------------------------------------------------------------------------

    def _begin(self, durable: bool) -> None:
        """Start a transaction, when no other process is in one."""
        execute = self._connection.execute
        if durable != self._synced:
            # Not known, should a signal's exception come between the setting and its note.
            self._synced = None
            execute("PRAGMA synchronous = FULL" if durable else "PRAGMA synchronous = NORMAL")
            self._synced = durable
        self._begin_alone(self._connection)
        (version,) = execute("PRAGMA data_version").fetchone()
        self._begun(version, self.clock.now())

    def _begin_alone(self, connection: sqlite3.Connection) -> None:
        """Start a transaction of the one writer there can be, with a log that is not too long."""
        line = self._line
        waits = line is not None and line.turn_ends is not None and line.is_others_turn()
        if not waits:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                _refuse_unless_busy(error)
                waits = True
        if waits:
            self._wait_to_begin(connection, line)
        if not next(self._log.turns) or not self._log.is_due():
            return
        with suppress(sqlite3.Error, StoreGone):
            # Whatever keeps it from this will keep it from its commit, too, which tells.
            self._log.copy()
        # Only a transaction that begins now finds all of it copied, and begins the log anew.
        connection.execute("ROLLBACK")
        self._begin_alone(connection)

    def _wait_to_begin(self, connection: sqlite3.Connection, line: WritersLine | None) -> None:
        """Start a transaction once no other process is in one and it is this one's turn.

        Naps are shorter than SQLite's own, which may miss every gap that a busy writer leaves for seconds.
        """
        end = time.monotonic() + self._busy
        nap = _FIRST_NAP
        with nullcontext(_nap) if line is None else line.standing() as sleep:
            while True:
                if sleep(nap):
                    try:
                        connection.execute("BEGIN IMMEDIATE")
                        return
                    except sqlite3.OperationalError as error:
                        _refuse_unless_busy(error)
                if time.monotonic() >= end:
                    raise StoreBusy(
                        f"{self._where}: another process held the write lock for {self._busy:g} seconds; "
                        "try again"
                    )
                nap = min(2 * nap, _LONGEST_NAP)

    def _save(self) -> None:
        self._file.refuse_gone()
        self._connection.execute("COMMIT")
        if self._line is not None:
            self._line.pass_on()

    def _roll_back(self) -> None:
        super()._roll_back()
        self._pass_on()

    def _pass_on(self) -> None:
        if self._line is not None:
            self._line.pass_on()

    def _translated(self, error: Exception) -> LazarettoError:
        assert isinstance(error, sqlite3.Error)
        return translated(error, self._where)

    def own_fault(self, error: Exception) -> StoreError | None:
        assert isinstance(error, sqlite3.Error)
        return own_fault(error, self._where)

    def _write_last(self) -> None:
        self._busy = min(self._busy, _LAST_WAIT)
        super()._write_last()

    # -- reading --------------------------------------------------------------------------------

    def _read(self, query: Callable[[Transaction], T]) -> T:
        self._file.refuse_gone()
        with translating(self._where):
            connection = self._readers.take()
            if connection is None:
                connection = self._connect(read_only=True)
            try:
                with _until(connection, current()):
                    connection.execute("BEGIN")
                    tx = self._transaction(connection, Memory(), reads=True)
                    tx.begin(self.clock.now())
                    answer = query(tx)
                    connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
            self._readers.keep(connection)
            return answer

    def _mark_of_commits(self) -> str:
        self._file.refuse_gone()
        with translating(self._where):
            return self._marks.mark()

    # -- waiting --------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        if self._news is None or self._wake_file is None:
            super().sleep(seconds)
        else:
            self._wake_file.clear_dead()
            self._news.listen(seconds, self.notifier.notify_where)

    def wake(self) -> None:
        if self._news is None:
            super().wake()
        else:
            self._news.wake()

    def _first_waits(self) -> None:
        # Who has a wake file is told of news.
        if self._news is None:
            self.wake()

    def _tell(self, woken: Mapping[int, int], comes_due: int | None) -> None:
        news = self._news
        if news is None:
            super()._tell(woken, comes_due)
            return
        news.tell(woken)
        self.notifier.notify(woken)
        if comes_due is not None and comes_due - self.clock.now() < _POLL * MICROSECONDS:
            news.ring_for_timer()

    # -- the user's own SQL ---------------------------------------------------------------------

    def exclusive(self, *, pauses: bool = True) -> SqliteExclusive:
        self.refuse_fork()
        self._group.acquire()
        try:
            self._refuse_closed()
            # Cursors only ever move on, so the writer's are good enough to start from.
            memory = Memory()
            memory.cursors.update(self._memory.cursors)
            memory.homes = self._memory.homes
            return self._open_exclusive(memory)
        except BaseException:
            self._group.release()
            raise

    def _end_exclusive(self, context: CommitContext | None) -> None:
        self._pass_on()
        if context is not None:
            self._add_rates(context)
        self._group.release()
        if context is not None:
            self._announce(context)

    def _open_exclusive(self, memory: Memory) -> SqliteExclusive:
        with translating(self._where):
            connection = self._connect()
        try:
            with translating(self._where):
                connection.execute(_NO_PATIENCE)
                self._begin_alone(connection)
            tx = self._transaction(connection, memory)
            tx.begin(self.clock.now())
            file, end = self._file, self._end_exclusive
            return SqliteExclusive(connection, self.opener, tx, memory, self._where, file, end)
        except BaseException:
            connection.close()
            raise

    def _take_slot(self) -> int:
        return super()._take_slot() if self._wake_file is None else self._wake_file.slot

    @contextmanager
    def version_reader(self) -> Iterator[Callable[[], tuple[int, int]]]:
        """Return a function for two numbers: one changes with other processes' commits, one with any."""
        with translating(self._where):
            connection = self._connect(read_only=True)

        def read() -> tuple[int, int]:
            self._file.look()
            try:
                (version,) = connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error as error:
                raise translated(error, self._where) from error
            # The file does not tell whose commit it was.
            return version, version

        try:
            yield read
        finally:
            connection.close()

    @contextmanager
    def tables(self) -> Iterator[Tables]:
        with translating(self._where):
            connection = self._connect()
            try:
                self._begin_alone(connection)
                yield SqliteTables(connection, lambda: self._begin_alone(connection))
            finally:
                connection.close()

    def _check(self) -> list[str]:
        """Read the whole file."""
        with translating(self._where):
            connection = self._connect(read_only=True)
            try:
                damage = [row[0] for row in connection.execute("PRAGMA quick_check")]
                faults = [] if damage == ["ok"] else damage
                if not faults:
                    problems = connection.execute(self.dialect.text("select_problems"))
                    faults = [f"{what}: {count}" for what, count in problems]
            finally:
                connection.close()
        return faults

    def _facts(self) -> dict[str, Any]:
        def pragma(name: str) -> Any:
            return connection.execute(f"PRAGMA {name}").fetchone()[0]

        with translating(self._where):
            connection = self._connect(read_only=True)
            try:
                meta = dict(connection.execute("SELECT name, value FROM lazaretto_meta"))
                pages, free, size = pragma("page_count"), pragma("freelist_count"), pragma("page_size")
                journal = pragma("journal_mode")
            finally:
                connection.close()
        log_bytes = 0
        # Whoever closes the file last removes its log.
        with suppress(FileNotFoundError):
            log_bytes = Path(f"{self.path}-wal").stat().st_size
        return {
            "path": str(self.path),
            "schema": int(meta["schema"]),
            "store_id": meta["store_id"],
            "sqlite": sqlite3.sqlite_version,
            "sqlite_has_wal_reset_bug": has_reset_bug(sqlite3.sqlite_version_info),
            "journal_mode": journal,
            "file_bytes": pages * size,
            "free_bytes": free * size,
            "log_bytes": log_bytes,
            "disk_free_bytes": shutil.disk_usage(self.path.absolute().parent).free,
        }

    def _connections(self) -> Sequence[Closable]:
        others: list[Closable] = [*self._readers.take_all(), self._marks, self._log, self._file]
        if self._wake_file is not None:
            others.append(self._wake_file)
        if self._file.gone:
            # SQLite's last connection removes the log by its name, which may be that of another file now.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            return others
        return [*others, self._connection]


def _nap(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def _refuse_unless_busy(error: sqlite3.OperationalError) -> None:
    """Raise an error of beginning again, unless it says that another process is in a transaction."""
    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
        raise error


@contextmanager
def _until(connection: sqlite3.Connection, deadline: Deadline | None) -> Iterator[None]:
    """End statements at a deadline. Raises QueryTooLong then."""
    if deadline is None:
        yield
        return
    connection.set_progress_handler(lambda: deadline.over, _STEPS)
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT and deadline.over:
            raise too_long() from None
        raise
    finally:
        connection.set_progress_handler(None, 0)
