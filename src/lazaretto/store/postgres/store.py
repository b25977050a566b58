"""The served store: a schema in a PostgreSQL database, any number of threads, processes and machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import psycopg

from lazaretto.errors import CommitUnknown, LazarettoError, StoreError, StoreUnavailable
from lazaretto.model.clock import MICROSECONDS, Clock, SystemClock
from lazaretto.model.deadline import Deadline, current, too_long
from lazaretto.model.partitions import SLOTS
from lazaretto.store.postgres.commits import Commits
from lazaretto.store.postgres.confined_commits import ConfinedCommits
from lazaretto.store.postgres.connection import PgConnection, own_fault, translated, translating
from lazaretto.store.postgres.dialect import dialect
from lazaretto.store.postgres.due_mark import DueMark
from lazaretto.store.postgres.lean_commits import LeanCommits
from lazaretto.store.postgres.listener import Bell, Listener, ServerClock
from lazaretto.store.postgres.patience import Patience
from lazaretto.store.postgres.pipelined_context import AHEAD, PgContext
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
from lazaretto.store.postgres.side_commits import SideCommits
from lazaretto.store.postgres.tables import PgTables
from lazaretto.store.postgres.upkeep import Upkeep
from lazaretto.store.postgres.whole_commits import WholeCommits
from lazaretto.store.postgres.whole_context import RangesFirst, WholeContext
from lazaretto.store.postgres.whole_transaction import WholeTransaction
from lazaretto.store.sql.copy_store import Tables
from lazaretto.store.sql.group_commit import Ticket
from lazaretto.store.sql.idle_connections import Closable
from lazaretto.store.sql.operation import Nothing
from lazaretto.store.sql.rows import Connection, Cursor, Memory
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")

#: After how many commits in a row a process assumes that it is the only one that writes.
_LONE_COMMITS = 50
#: How often a commit is planned before it takes the store's lock, if what it is planned by always changes.
_ATTEMPTS = 4
#: How soon a timer is looked for after this process's own commits, in seconds.
_LOOK_EVERY = 0.1


#: Errors of a role that may not call functions, or of a store without them.
_WITHOUT_FUNCTIONS = (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFunction)
#: Seconds by which the server's clock may be before ours.
_CLOSE = 1.0


class PostgresStore(SideCommits):
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
        #: Whether functions of the server do what is plain: no worker is left that knows nothing of them.
        self._calls = state.oldest >= FUNCTIONS
        self._begun_at = 0
        #: How many commits of this process have followed on each other, nobody else having written.
        self._lone_commits = 0
        #: How often others were found to have written, and how often this process may have set a timer that
        #: must be looked for.
        self._others = self._changes = 0
        #: What a commit is begun with without waiting, if this process seems to be alone.
        self._opening: Cursor | None = None
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
        found = self._connection.execute(self.dialect.text("take_slot"), values).fetchone()
        return super()._take_slot() if found is None else int(found[0])

    # -- writing --------------------------------------------------------------------------------

    def _commit(self, group: list[Ticket]) -> None:
        durable = self._always_durable
        for ticket in group:
            durable = durable or ticket.operation.durable
        if self._calls and not self._rates.due:
            group = self._commit_lean(group, durable)
            if not group:
                return
        if self._alone and self._commit_as_expected(group, durable):
            return
        left: Sequence[Ticket] = group
        attempts = _ATTEMPTS
        try:
            while left and attempts:
                found, again = self._commit_whole(left, durable)
                # What could not be planned beside others may be without them.
                attempts = (_ATTEMPTS if len(found) < len(left) else attempts - 1) if again else 0
                left = found
            if left:
                super()._commit(list(left))
        except Exception as error:
            # The others are done.
            for ticket in left:
                ticket.error = error

    def _commit_lean(self, group: list[Ticket], durable: bool) -> list[Ticket]:
        """Commit what is plain in a group by functions of the server; return the tickets that are left."""
        connection = self._connection
        if connection.broken or connection.heard:
            return group
        lean, others = self._lean.plan(group, registered=self._memory.registered)
        if lean is None:
            return group
        flush = durable and not self._alone and lean.locks_alone
        try:
            undone, versions = self._lean.send(connection, lean, durable=durable, flush=flush)
        except psycopg.Error as error:
            connection.roll_back()
            self._settings.forget()
            # Without the right to call them, or without them, there is another way.
            self._calls = not isinstance(error, _WITHOUT_FUNCTIONS)
            waited = isinstance(error, psycopg.errors.LockNotAvailable)
            if not waited or self._upkeep.end_silent_writers():
                return group
            # The lock of the store would be waited for as long, and all others would wait behind it.
            lean.fail(self._translated(error))
            return others
        except CommitUnknown as error:
            lean.fail(error)
            return others
        except Exception:
            # Whose fault it is shows when each is committed by itself.
            connection.roll_back()
            return group
        except BaseException:
            connection.roll_back()
            raise
        context = self._lean.context
        if versions:
            self._note_written(lean.queues, versions[-1], len(versions))
            if context.first_due is not None and context.first_due < context.now + AHEAD:
                self._changes += 1
        self._committed(context)
        return others + undone

    def _commit_whole(self, group: Sequence[Ticket], durable: bool) -> tuple[Sequence[Ticket], bool]:
        """Commit as many operations as possible in one round trip, while others may write too.

        Return the remaining operations, and whether another attempt may succeed.
        """
        connection = self._connection
        if connection.broken or connection.heard:
            return group, False
        try:
            whole, left = self._whole.plan(group, registered=self._memory.registered)
        except RangesFirst as found:
            self._whole.write_ranges(connection, found.queues)
            return group, True
        if whole is None:
            return left, False
        # A commit that holds nothing alone keeps nobody waiting while it waits for its disk.
        flush = durable and not self._alone and whole.locks.alone
        try:
            done, version = self._whole.send(connection, whole, durable=durable, flush=flush)
        except psycopg.errors.LockNotAvailable as error:
            # The lock of the store would be waited for as long, and all others would wait behind it.
            if not self._upkeep.end_silent_writers():
                raise self._translated(error) from error
            return group, True
        if not done:
            return group, whole.plan.guarded
        if version is not None:
            self._note_whole(whole, version)
        whole.committed()
        self._answer([ticket for ticket in group if ticket not in left] if left else group)
        self._committed(whole)
        return left, any(ticket.operation.foreseeable for ticket in left) if left else False

    def _note_whole(self, whole: WholeContext, version: int) -> None:
        """Record what a planned commit has changed, and whether others have written too."""
        self._note_written(whole.locks.queues, version)
        due = whole.first_due
        if whole.plan.guarded or (due is not None and due < whole.now + AHEAD):
            # Any later one is found when the timers are looked at anyway.
            self._changes += 1

    def _note_written(self, queues: Collection[int], version: int, moves: int = 1) -> None:
        """Record that a commit has changed queues, beside what is remembered of them."""
        memory = self._memory
        if version == self._version + moves:
            self._lone_commits += 1
            memory.ranges = True
            memory.conversations.clear()
            memory.levels.clear()
            for queue_id in queues:
                memory.last_sequences.pop(queue_id, None)
        else:
            self._lone_commits = 0
            memory.forget()
        self._version = version

    @property
    def _alone(self) -> bool:
        """Whether nobody else seems to write to the store."""
        return self._lone_commits >= _LONE_COMMITS

    def _commit_as_expected(self, group: list[Ticket], durable: bool) -> bool:
        """Commit using remembered values; return False if others have written since, or it fails."""
        if self._connection.broken or self._connection.heard:
            return False
        try:
            self._begin_as_expected(durable)
            if self._run_together(group):
                self._save()
                self._answer(group)
                self._committed(self._tx.context)
                return True
        except psycopg.Error:
            # Either others have written meanwhile, or it fails again below, where that is known.
            pass
        except LazarettoError as error:
            # What an operation found wrong may be so only by what was remembered.
            if isinstance(error, CommitUnknown) or self._was_as_expected():
                self._start_over()
                raise
        except BaseException:
            self._start_over()
            raise
        self._lone_commits = 0
        self._start_over()
        return False

    def _commit_together(self, group: list[Ticket], durable: bool) -> bool:
        self._begin(durable)
        self._connection.send_ahead()
        try:
            if not self._run_together(group):
                return False
            self._save()
        except psycopg.Error:
            if self._connection.broken:
                raise
            return False
        self._answer(group)
        return True

    def _answer(self, group: Sequence[Ticket]) -> None:
        """Let the started operations read their answers."""
        for ticket in group:
            if ticket.later is not None:
                ticket.answer = ticket.later()

    def _begin_as_expected(self, durable: bool) -> None:
        """Begin without waiting for a reply, assuming that nobody else has written since."""
        self._begun_at = self._connection.total_changes
        self._flushes = False
        self._opening = self._commits.begin_as_expected(self._connection, self._version, durable)
        self._tx.begin(self.clock.now())

    def _was_as_expected(self) -> bool:
        try:
            self._connection.settle()
        except psycopg.Error:
            return False
        return True

    def _begin(self, durable: bool) -> None:
        # While several processes write, none waits for its disk with the lock in its hands.
        self._opening = None
        self._flushes = durable and not self._alone
        version, now, claimed = self._patience.begin(
            lambda: self._begin_writing(durable and not self._flushes)
        )
        self._begun_at = self._connection.total_changes
        others = version != self._version
        self._lone_commits = 0 if others else self._lone_commits + 1
        self._others += others
        self._begun(version, now)
        self._memory.claimed = claimed

    def _roll_back(self) -> None:
        self._connection.roll_back()

    def _begin_writing(self, durable: bool) -> tuple[int, int, bool]:
        if self._connection.broken:
            # It may be another server then, which a standby was, and know less than the former one did. No
            # thread takes what is known of one for what is known of the other.
            self._memory.cursors.clear()
            self._connection.reopen()
            self._version = -1
            self._memory.registered = False
            self._memory.homes.forget()
            self._whole.forget()
            self._lean.forget()
        try:
            return self._commits.begin(self._connection, durable)
        except psycopg.Error as error:
            if isinstance(translated(error, self._where), StoreUnavailable):
                self._connection.close()
            self._connection.roll_back()
            raise

    def _save(self) -> None:
        tells = bool(self._tx.context.woken)
        version = self._commits.finish(self._connection, self._begun_at, tells=tells, flush=self._flushes)
        if version is not None:
            self._version = version
            self._changes += 1
        if self._opening is not None:
            self._commits.note_time(self._opening.fetchone()[-1])

    def _translated(self, error: Exception) -> LazarettoError:
        assert isinstance(error, psycopg.Error)
        return translated(error, self._where)

    def own_fault(self, error: Exception) -> StoreError | None:
        assert isinstance(error, psycopg.Error)
        return own_fault(error, self._where)

    def _write_last(self) -> None:
        connection = self._connection
        if not (connection.broken or connection.heard):
            self._commit_whole([Ticket(Nothing())], durable=False)

    # -- reading --------------------------------------------------------------------------------

    def _read(self, query: Callable[[Transaction], T]) -> T:
        with translating(self._where):
            deadline = current()
            with self._lent(_begin_reading) as (connection, _), _until(connection, deadline):
                tx = self._transaction(connection, Memory(), reads=True)
                tx.begin(self.clock.now())
                found = query(tx)
                connection.script("COMMIT")
            return found

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
        listener = Listener(self._conninfo, self.schema, query, self._server_clock, self._bell)
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
