"""Commits of a served store's writer, in the quickest of the ways that do what is asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import psycopg

from lazaretto.errors import CommitUnknown, LazarettoError, StoreError, StoreUnavailable
from lazaretto.store.postgres.connection import own_fault, translated
from lazaretto.store.postgres.lean_commits import LeanCommits
from lazaretto.store.postgres.pipelined_context import AHEAD, PgContext
from lazaretto.store.postgres.side_commits import SideCommits
from lazaretto.store.postgres.whole_context import RangesFirst
from lazaretto.store.sql.group_commit import Ticket
from lazaretto.store.sql.operation import Nothing
from lazaretto.store.sql.rows import Cursor

#: After how many commits in a row a process assumes that it is the only one that writes.
_LONE_COMMITS = 50
#: How often a commit is planned before it takes the store's lock, if what it is planned by always changes.
_ATTEMPTS = 4
#: Errors of a role that may not call functions, or of a store without them.
_WITHOUT_FUNCTIONS = (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFunction)


class WriterCommits(SideCommits):
    """The part of a served store that commits for the threads of its process together."""

    _lean: LeanCommits
    #: Whether functions of the server do what is plain: no worker is left that knows nothing of them.
    _calls: bool
    _begun_at = 0
    #: How many commits of this process have followed on each other, nobody else having written.
    _lone_commits = 0
    #: How often others were found to have written.
    _others = 0
    #: What a commit is begun with without waiting, if this process seems to be alone.
    _opening: Cursor | None = None

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
                rest, again = self._commit_whole(left, durable)
                # What could not be planned beside others may be without them.
                attempts = (_ATTEMPTS if len(rest) < len(left) else attempts - 1) if again else 0
                left = rest
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
            self._note_written(context, lean.queues, versions[-1], len(versions))
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
            is_committed, version = self._whole.send(connection, whole, durable=durable, flush=flush)
        except psycopg.errors.LockNotAvailable as error:
            # The lock of the store would be waited for as long, and all others would wait behind it.
            if not self._upkeep.end_silent_writers():
                raise self._translated(error) from error
            return group, True
        if not is_committed:
            return group, whole.plan.guarded
        if version is not None:
            self._note_written(whole, whole.locks.queues, version)
            self._changes += whole.plan.guarded
        whole.committed()
        self._answer([ticket for ticket in group if ticket not in left] if left else group)
        self._committed(whole)
        return left, any(ticket.operation.foreseeable for ticket in left) if left else False

    def _note_written(
        self, context: PgContext, queues: Collection[int], version: int, moves: int = 1
    ) -> None:
        """Record that a commit has changed queues, and whether others have written too."""
        due = context.first_due
        if due is not None and due < context.now + AHEAD:
            # Any later one is found when the timers are looked at anyway.
            self._changes += 1
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
