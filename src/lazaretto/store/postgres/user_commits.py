"""Commits operations together with the user's own SQL, which ran before them on the same connection.

The broker's locks are taken once all SQL has run, with the last round trip. So whoever holds them waits for
no lock of a user's rows, and no two transactions wait for each other's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import TypeVar

import psycopg

from lazaretto.store.postgres.commits import Commits
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.server_session import SILENT_WRITERS, script, settings_of_commits
from lazaretto.store.postgres.whole_commits import WholeCommits
from lazaretto.store.postgres.whole_context import RangesFirst
from lazaretto.store.records.messages import Again
from lazaretto.store.sql.commit_context import CommitContext
from lazaretto.store.sql.group_commit import Ticket
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

T = TypeVar("T")

#: How often a commit is planned before it takes the store's lock.
_ATTEMPTS = 4
_GO_BACK = "ROLLBACK TO operations"


def _opening(connection: PgConnection) -> str:
    """Return the statements that stand between a user's SQL and the store's.

    Constraints that PostgreSQL would look at in the COMMIT are looked at before any lock of the broker's is
    taken: they may wait for the rows of other transactions. From here on, all is as in any commit of the
    broker's, whatever the SQL has set.
    """
    settings = settings_of_commits(connection.schema, connection.raw.info.server_version)
    own = script({"role": "DEFAULT", **settings, **SILENT_WRITERS}, local=True)
    return f"SET CONSTRAINTS ALL IMMEDIATE; {own}SAVEPOINT operations"


def save_causes(tx: Transaction) -> None:
    """Write what a commit has counted of causes."""
    if tx.context.counted:
        tx.causes.save_counts()


class UserCommits:
    """The commit of one transaction with the user's own SQL.

    `plans` works on its connection, and so does what `locked` returns. `write_ranges` writes the range locks
    of some queues into their messages, in a commit of its own. `end_silent` ends writers that hold the
    store's lock and are cut off, and returns how many there were.
    """

    def __init__(
        self,
        connection: PgConnection,
        commits: Commits,
        plans: WholeCommits,
        locked: Callable[[], Transaction],
        write_ranges: Callable[[Collection[int]], None],
        end_silent: Callable[[], int],
    ) -> None:
        self._connection = connection
        self._commits = commits
        self._plans = plans
        self._locked = locked
        self._write_ranges = write_ranges
        self._end_silent = end_silent

    def run(self, operation: Operation[T]) -> tuple[T, CommitContext]:
        """Run an operation and commit; return its answer, and what follows the commit."""
        self._connection.script(_opening(self._connection))
        for _ in range(_ATTEMPTS):
            ticket = Ticket(operation)
            context, again = self._commit_whole(ticket)
            if context is not None:
                return ticket.answer, context
            # The locks that it took are gone with what it did.
            self._connection.script(_GO_BACK)
            if not again:
                break
        return self._commit_locked(operation)

    def _commit_whole(self, ticket: Ticket) -> tuple[CommitContext | None, bool]:
        """Commit in one round trip; return what follows, or else whether another attempt may succeed."""
        try:
            whole, _ = self._plans.plan([ticket], registered=False)
        except RangesFirst as found:
            self._write_ranges(found.queues)
            return None, True
        if whole is None or isinstance(ticket.answer, Again):
            return None, False
        try:
            self._plans.append(self._connection, whole)
        except psycopg.Error:
            self._plans.forget_settings()
            with contextlib.suppress(psycopg.Error):
                self._connection.settle()
            if not self._connection.in_transaction:
                # There is nothing to go back to: the server has undone the user's SQL too.
                raise
            return None, whole.plan.guarded
        whole.committed()
        if ticket.later is not None:
            ticket.answer = ticket.later()
        return whole, False

    def _commit_locked(self, operation: Operation[T]) -> tuple[T, CommitContext]:
        """Commit as the one writer of the store; return as `run` does."""
        connection, tx = self._connection, self._locked()
        while True:
            try:
                _, now, claimed = self._commits.lock(connection)
                break
            except psycopg.errors.LockNotAvailable:
                if not self._end_silent():
                    raise
                connection.script(_GO_BACK)
        tx.begin(now)
        tx.context.memory.claimed = claimed
        while isinstance(answer := operation.run(tx), Again):
            pass
        save_causes(tx)
        # Whatever the user's own statements did counts as a change.
        self._commits.finish(connection, connection.total_changes - 1)
        return answer, tx.context
