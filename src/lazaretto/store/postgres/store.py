"""The served store: a schema in a PostgreSQL database, any number of threads, processes and machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import psycopg

from lazaretto.model.clock import MICROSECONDS, Clock, Deadline, SystemClock, current, too_long
from lazaretto.model.partitions import SLOTS
from lazaretto.store.postgres.commits import Commits
from lazaretto.store.postgres.confined_commits import ConfinedCommits
from lazaretto.store.postgres.connection import PgConnection, translating
from lazaretto.store.postgres.dialect import dialect
from lazaretto.store.postgres.due_mark import DueMark
from lazaretto.store.postgres.lean_commits import LeanCommits
from lazaretto.store.postgres.listener import Bell, Listener, ServerClock
from lazaretto.store.postgres.patience import Patience
from lazaretto.store.postgres.pipelined_context import PgContext
from lazaretto.store.postgres.pipelined_transaction import PgTransaction
from lazaretto.store.postgres.poolers import refuse_transaction_pooling
from lazaretto.store.postgres.queue_locks import SLOT, lock_of
from lazaretto.store.postgres.readers import Readers
from lazaretto.store.postgres.restraint import Restraint
from lazaretto.store.postgres.schema import (
    CLAIMED_RANGES,
    FUNCTIONS,
    RANGE_LOCKS,
    check_name,
    prepare,
    shown_place,
)
from lazaretto.store.postgres.settings import Settings
from lazaretto.store.postgres.tables import PgTables
from lazaretto.store.postgres.upkeep import Upkeep
from lazaretto.store.postgres.whole_commits import WholeCommits
from lazaretto.store.postgres.whole_context import WholeContext
from lazaretto.store.postgres.whole_transaction import WholeTransaction
from lazaretto.store.postgres.writer_commits import WriterCommits
from lazaretto.store.sql.copy_store import Tables
from lazaretto.store.sql.idle_connections import Closable
from lazaretto.store.sql.rows import Connection, Memory
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")

#: How soon a timer is looked for after this process's own commits, in seconds.
_LOOK_EVERY = 0.1


#: Seconds by which the server's clock may be before ours.
_CLOSE = 1.0


class PostgresStore(WriterCommits):
    """A store in the schema `schema` of the database that `conninfo` names.

    Threads of a process commit together. Planned commits of several processes run at the same time; all other
    commits take the store's lock. `busy`: how many seconds a caller waits for other processes before
    StoreBusy, and for an unreachable server before StoreUnavailable. Without a `clock`, time is the server's.
    """

    poll = 0.25
    paramstyle = "format"
    errors = psycopg.Error
    _starts = True
    _connection: PgConnection
    _readers: Readers

    def __init__(
        self,
        conninfo: str,
        *,
        schema: str = "lazaretto",
        clock: Clock | None = None,
        create: bool = True,
        copying: bool = False,
        busy: float = 10.0,
        durable_attempts: bool = False,
    ) -> None:
        self.schema = check_name(schema)
        self.dialect = dialect(schema)
        self._conninfo = conninfo
        self._lock_timeout = round(busy * 1000) or 1
        where = shown_place(conninfo, schema)
        self._server_clock = ServerClock() if clock is None else None
        with translating(where):
            connection = PgConnection(conninfo, self._lock_timeout, schema=schema, commits=True)
            try:
                refuse_transaction_pooling(conninfo, connection)
                now = (clock or SystemClock()).now()
                state = prepare(connection, schema, where, create=create, copying=copying, now=now)
            except BaseException:
                connection.close()
                raise
        self._mark = DueMark()
        self._bell = Bell()
        #: Whether messages are locked by ranges: no worker is left that knows none.
        self._ranges = state.oldest >= RANGE_LOCKS
        #: The same of claims.
        self._claims_ranges = state.oldest >= CLAIMED_RANGES
        super().__init__(
            where,
            connection,
            clock or self._server_clock or SystemClock(),
            durable_attempts=durable_attempts,
        )
        self._commits = Commits(self.dialect, schema, where, self.clock, self._server_clock)
        self._number = self._commits.number
        self._settings = Settings(connection, self.dialect)
        self._whole = WholeCommits(self._commits, self._settings, self._whole_transaction, self._save_counts)
        # Body ids of its own are good for as long as the server is the same.
        self._lean = LeanCommits(
            self._commits, self._settings, self._lean_transaction(), lambda: self._whole.floors
        )
        self._calls = state.oldest >= FUNCTIONS
        self._changes = 0
        self._readers = Readers(conninfo, schema, self._lock_timeout, self._closed)
        self._upkeep = Upkeep(self.dialect, schema, self._number, where, self._readers)
        self._patience = Patience(busy, where, self._upkeep)
        # What it cannot do is done by the writer, which waits.
        lend = partial(self._lent, waits=False)
        self._confined = ConfinedCommits(
            self._commits, Settings(connection, self.dialect), lend, self._confined_transaction
        )
        self._listener: Listener | None = None
        #: Whether something that was written comes due soon.
        self._comes_due = False

    @property
    def server(self) -> tuple[str, int | None]:
        return self._connection.server

    def _transaction(
        self, connection: Connection, memory: Memory, *, reads: bool = False, mark: DueMark | None = None
    ) -> Transaction:
        own = cast(PgConnection, connection)
        context = PgContext(own, self.dialect, memory, self.identity, mark or self._mark, reads=reads)
        context.claims_ranges = self._claims_ranges
        return PgTransaction(context, self._new_message_id, ranges=self._ranges)

    def _whole_transaction(self) -> WholeTransaction:
        memory = Memory()
        # What holds for ever, and what is no more than a hint.
        memory.cursors, memory.unclear = self._memory.cursors, self._memory.unclear
        memory.homes = self._memory.homes
        context = WholeContext(
            self._connection, self._settings, self.dialect, memory, self.identity, self._mark
        )
        context.rates = self._rates
        return WholeTransaction(context, self._new_message_id, ranges=self._ranges)

    def _lean_transaction(self) -> PgTransaction:
        memory = Memory()
        memory.cursors, memory.unclear = self._memory.cursors, self._memory.unclear
        context = PgContext(self._connection, self.dialect, memory, self.identity, self._mark)
        context.rates = self._rates
        return PgTransaction(context, self._new_message_id, ranges=self._ranges)

    def _take_slot(self) -> int:
        # The connection holds it as long as it lives.
        values = (SLOTS, lock_of(self._number, 0, SLOT))
        row = self._connection.execute(self.dialect.text("take_slot"), values).fetchone()
        return super()._take_slot() if row is None else int(row[0])

    # -- reading --------------------------------------------------------------------------------

    def _read(self, query: Callable[[Transaction], T]) -> T:
        with translating(self._where):
            deadline = current()
            with self._lent(_begin_reading) as (connection, _), _until(connection, deadline):
                tx = self._transaction(connection, Memory(), reads=True)
                tx.begin(self.clock.now())
                answer = query(tx)
                connection.script("COMMIT")
            return answer

    def _mark_of_commits(self) -> str | None:
        query = self.dialect.text("select_snapshot")

        def look(connection: PgConnection) -> str:
            ((snapshot,),) = connection.execute(query)
            return str(snapshot)

        with translating(self._where), self._lent(look) as (_, snapshot):
            return snapshot

    # -- waiting --------------------------------------------------------------------------------

    @contextmanager
    def version_reader(self) -> Iterator[Callable[[], tuple[int, int]]]:
        """Give a function for two numbers: one changes with other processes' commits, one with any."""
        query = self.dialect.text("select_now")
        listener = Listener(self._conninfo, self.schema, self._number, query, self._server_clock, self._bell)
        seen, looked_at = 0, 0.0
        restraint = Restraint()

        def listen() -> int:
            with translating(self._where):
                waiting = bool(self.notifier.waiting)
                return listener.listen(self._connection.pid, self._version, waiting=waiting)

        def read() -> tuple[int, int]:
            nonlocal seen, looked_at
            heard = listen()
            if pause := restraint.before_looking(heard, self._version):
                time.sleep(pause)
                heard = restraint.heard = listen()
            heard += self._others
            now = time.monotonic()
            if now >= looked_at + _LOOK_EVERY or self._comes_due:
                self._comes_due = False
                seen, looked_at = self._changes + heard, now
            return heard, seen

        self._listener = listener
        try:
            yield read
        finally:
            self._listener = None
            listener.close()

    def sleep(self, seconds: float) -> None:
        if self._listener is None or not self.notifier.waiting:
            self._bell.sleep(seconds)
        else:
            self._listener.sleep(seconds)

    def wake(self) -> None:
        self._bell.ring()

    def _tell(self, woken: Mapping[int, int], comes_due: int | None) -> None:
        super()._tell(woken, comes_due)
        if comes_due is not None and comes_due - self.clock.now() < self.poll * MICROSECONDS:
            self._comes_due = True
            self.wake()

    @contextmanager
    def tables(self) -> Iterator[Tables]:
        with translating(self._where):
            connection = PgConnection(self._conninfo, self._lock_timeout, schema=self.schema)
            try:
                self._commits.begin(connection, durable=True)
                # Copies know no ranges.
                connection.execute(self.dialect.text("write_range_locks"))
                yield PgTables(connection, self.schema, lambda: self._commits.begin(connection, durable=True))
            finally:
                connection.close()

    def stop_waiting(self) -> None:
        self._patience.end()

    def tidy(self) -> None:
        if not self._closed.is_set():
            self._upkeep.tidy()

    def _check(self) -> list[str]:
        return self._upkeep.check()

    def _facts(self) -> dict[str, Any]:
        return self._upkeep.facts()

    def _connections(self) -> Sequence[Closable]:
        self._readers.close_lent()
        return [*self._readers.take_idle(), self._connection, self._bell]


def _begin_reading(connection: PgConnection) -> None:
    connection.script("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")


@contextmanager
def _until(connection: PgConnection, deadline: Deadline | None) -> Iterator[None]:
    """Have the server end statements at a deadline. Raises QueryTooLong then."""
    if deadline is None:
        yield
        return
    connection.script(f"SET LOCAL statement_timeout = {max(1, round(deadline.left * 1000))}")
    deadline.cancel = connection.raw.cancel
    try:
        yield
    except psycopg.errors.QueryCanceled:
        if deadline.over or deadline.left < _CLOSE:
            raise too_long() from None
        raise
    finally:
        deadline.cancel = None
