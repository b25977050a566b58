"""Commits of a served store on connections of their own, beside those of its writer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import psycopg

from lazaretto.model.partitions import SLOTS, Homes, partition_of
from lazaretto.store.postgres.commits import Commits
from lazaretto.store.postgres.confined_commits import ConfinedCommits
from lazaretto.store.postgres.confined_transaction import ConfinedContext, ConfinedTransaction
from lazaretto.store.postgres.connection import PgConnection, translating
from lazaretto.store.postgres.due_mark import DueMark
from lazaretto.store.postgres.patience import Patience
from lazaretto.store.postgres.readers import Readers
from lazaretto.store.postgres.settings import Settings
from lazaretto.store.postgres.upkeep import Upkeep
from lazaretto.store.postgres.user_commits import UserCommits, save_causes
from lazaretto.store.postgres.user_sql import GUARD, PgExclusive
from lazaretto.store.postgres.whole_commits import WholeCommits
from lazaretto.store.postgres.whole_context import WholeContext
from lazaretto.store.postgres.whole_transaction import WholeTransaction
from lazaretto.store.sql.commit_context import CommitContext
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.rows import Connection, Memory
from lazaretto.store.sql.store import Store
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")


class SideCommits(Store):
    """The part of a served store that commits beside its writer: claims, and the user's own SQL."""

    schema: str
    _connection: PgConnection
    _readers: Readers
    _patience: Patience
    _upkeep: Upkeep
    _commits: Commits
    _settings: Settings
    _whole: WholeCommits
    _confined: ConfinedCommits
    _mark: DueMark
    _ranges: bool
    #: How often this process may have set a timer that must be looked for.
    _changes: int

    @abstractmethod
    def _transaction(
        self, connection: Connection, memory: Memory, *, reads: bool = False, mark: DueMark | None = None
    ) -> Transaction:
        """Return a transaction for the commits of a connection. `mark`: its own look at timers."""

    # -- commits that hold single queues ----------------------------------------------------------

    def run(self, operation: Operation[T]) -> T:
        path_key = operation.confined_to()
        if path_key is not None:
            pair = self._run_confined(operation, path_key)
            if pair is not None:
                return pair[0]
        return super().run(operation)

    def _run_confined(self, operation: Operation[T], path_key: str) -> tuple[T, ConfinedContext] | None:
        """Run an operation beside other commits; return None if that cannot be, and nothing was done."""
        self.refuse_fork()
        durable = self._always_durable or operation.durable
        holder = self._group.hold()
        try:
            self._refuse_closed()
            with self._group.writing():
                if self._connection.broken or self._connection.heard:
                    # It may be another server now, where what is remembered does not hold.
                    return None
            with translating(self._where):
                pair = self._confined.run(operation, path_key, durable=durable)
            if pair is None:
                return None
            _, context = pair
            with self._group.writing():
                self._note(context)
                if context.era == self._connection.era:
                    cursors = self._memory.cursors
                    cursors.update(
                        {lane: max(key, cursors.get(lane, 0)) for lane, key in context.cursors.items()}
                    )
                if context.first_due is not None:
                    self._mark.lower(context.first_due)
        finally:
            self._group.let_go(holder)
        self._announce(context)
        return pair

    @contextmanager
    def _lent(
        self, begin: Callable[[PgConnection], T], *, waits: bool = True
    ) -> Iterator[tuple[PgConnection, T]]:
        """Lend a connection on which a transaction has been begun, with what `begin` returned.

        `waits`: for a server that is away, and with a new connection for one that the server has ended.
        """
        connection, begun = self._patience.begin(lambda: self._readers.borrow_with(begin), waits=waits)
        try:
            yield connection, begun
        finally:
            self._readers.give_back(connection)

    def _confined_transaction(
        self, connection: PgConnection, queue_id: int, held: Collection[int]
    ) -> ConfinedTransaction:
        memory, mark = self._other_memory(connection), self._mark.copied()
        context = ConfinedContext(connection, self.dialect, memory, self.identity, mark, held)
        context.claims_ranges = self._tx.context.claims_ranges
        return ConfinedTransaction(connection, context, self._new_message_id, queue_id, ranges=self._ranges)

    # -- the user's own SQL ---------------------------------------------------------------------

    def exclusive(self, *, pauses: bool = True) -> PgExclusive:
        self.refuse_fork()
        holder = self._group.hold()
        try:
            self._refuse_closed()
            with translating(self._where):
                connection, _ = self._patience.begin(
                    lambda: self._readers.borrow_with(
                        lambda c: c.begin_for_user(GUARD, pauses=pauses), for_user=True
                    )
                )
            commits = self._user_commits(connection)
        except BaseException:
            # Closing waits for whoever holds.
            self._group.let_go(holder)
            raise

        def ended(connection: PgConnection, context: CommitContext | None) -> None:
            self._end_user_sql(connection, context, holder)

        return PgExclusive(connection, self.opener, commits, self._translated, ended)

    def _user_commits(self, connection: PgConnection) -> UserCommits:
        """Return what commits on a connection that other threads do not use."""
        mark, settings = DueMark(), self._settings.on(connection)

        def plan() -> WholeTransaction:
            memory = self._other_memory(connection)
            context = WholeContext(connection, settings, self.dialect, memory, self.identity, mark)
            return WholeTransaction(context, self._new_message_id, ranges=self._ranges)

        plans = WholeCommits(self._commits, settings, plan, save_causes)

        def locked() -> Transaction:
            return self._transaction(connection, self._other_memory(connection), mark=mark)

        return UserCommits(
            connection, self._commits, plans, locked, self._write_ranges, self._upkeep.end_silent_writers
        )

    def _other_memory(self, connection: PgConnection) -> Memory:
        """Return what is remembered for commits on another connection than the writer's."""
        memory = Memory()
        # Cursors only ever move on, so the writer's are good enough to start from, if both are at one server.
        if connection.era == self._connection.era:
            memory.cursors.update(self._memory.cursors)
        memory.homes = Homes(self._known_slot)
        return memory

    def _known_slot(self) -> int:
        """Return this process's slot if it has one; only the writer's thread can take one."""
        slot = self._memory.homes.slot
        return partition_of(self.worker, SLOTS) if slot is None else slot

    def _write_ranges(self, queues: Collection[int]) -> None:
        """Write the range locks of some queues into their messages, in a commit of the writer's."""
        with self._group.writing():
            if not (self._connection.broken or self._connection.heard):
                self._whole.write_ranges(self._connection, queues)

    def _end_user_sql(self, connection: PgConnection, context: CommitContext | None, holder: int) -> None:
        try:
            with suppress(psycopg.Error):
                connection.roll_back()
                if context is None and not connection.broken:
                    # What was set in it is gone, and what one before it has set is there again.
                    connection.set_again()
            self._readers.give_back(connection)
        finally:
            self._group.let_go(holder)
        if context is None:
            return
        with self._group.writing():
            self._note(context)
        self._announce(context)

    def _note(self, context: CommitContext) -> None:
        """Record what a commit has counted, and that it may have set a timer. Whoever may write does it."""
        self._add_rates(context)
        self._changes += 1
