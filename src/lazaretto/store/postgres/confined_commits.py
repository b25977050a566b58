"""Commits operations that need one queue for themselves, while others write to all other queues.

They read what they have written, so they cannot be planned: their commits wait for the network while they
hold the locks of their queue. All commits take queue locks in one order, so no two wait for each other.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

import psycopg

from lazaretto.store.postgres.commits import Commits
from lazaretto.store.postgres.confined_transaction import ConfinedContext, ConfinedTransaction, Unheld
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.plan import Unforeseen
from lazaretto.store.postgres.queue_locks import CommitLocks, QueueLock, lock_of
from lazaretto.store.postgres.server_session import SILENT_WRITERS
from lazaretto.store.postgres.settings import Settings
from lazaretto.store.postgres.whole_context import LOG
from lazaretto.store.records.messages import Again, QueueRecord
from lazaretto.store.runtime.measures import measuring_commit
from lazaretto.store.sql.operation import Operation

T = TypeVar("T")

#: How often a commit begins anew because it needs more queues than those it holds.
_ATTEMPTS = 4
#: How many commits of a process are under way at once: each has a connection, and those of one queue wait for
#: each other on the server.
_AT_ONCE = 4
#: How often it tries to become the one that writes events before it begins anew, and how long it naps
#: in between, in seconds.
_TRIES, _NAP = 20, 0.005


#: Gives a connection for a block, and what a function returned that has begun a transaction on it.
Lend = Callable[
    [Callable[[PgConnection], ConfinedTransaction]],
    contextlib.AbstractContextManager[tuple[PgConnection, ConfinedTransaction]],
]


class ConfinedCommits:
    """Commits of one process that hold single queues, each on a connection of its own. Threads can share it.

    `transaction` returns a transaction on a connection, for one queue and for all that its commit holds.
    """

    def __init__(
        self,
        commits: Commits,
        settings: Settings,
        lend: Lend,
        transaction: Callable[[PgConnection, int, Collection[int]], ConfinedTransaction],
    ) -> None:
        self._commits = commits
        self._settings = settings
        self._lend = lend
        self._transaction = transaction
        self._few = threading.BoundedSemaphore(_AT_ONCE)

    def run(
        self, operation: Operation[T], path_key: str, *, durable: bool
    ) -> tuple[T, ConfinedContext] | None:
        """Run an operation on the queue at a path, and commit; return its answer and what follows the commit.

        None: it needs the store for itself, or the server failed, and nothing was done.
        """
        others: frozenset[int] = frozenset()
        for _ in range(_ATTEMPTS):
            try:
                with self._few, measuring_commit(1), self._held(path_key, others) as tx:
                    return self._commit(operation, tx, durable=durable), tx.confined
            except Unheld as found:
                others |= found.queues
            except psycopg.errors.LockNotAvailable:
                raise
            except (Unforeseen, psycopg.Error):
                break
        self._settings.forget()
        return None

    @contextlib.contextmanager
    def _held(self, path_key: str, others: Collection[int]) -> Iterator[ConfinedTransaction]:
        """Hold a queue and others within a block."""
        with self._lend(lambda c: self._begin(c, path_key, others)) as (connection, begun):
            try:
                yield begun
            finally:
                connection.roll_back()

    def _begin(self, connection: PgConnection, path_key: str, others: Collection[int]) -> ConfinedTransaction:
        """Begin a transaction that holds a queue and others."""
        settings = self._settings.on(connection)
        queue = settings.by_path(path_key)
        records = [queue, *(settings.by_id(one) for one in others if one != LOG)]
        # What was read for this one is known to the next.
        self._settings = settings
        locks = CommitLocks()
        if LOG in others:
            locks.hold(LOG, QueueLock.END)
        for one in records:
            locks.hold_all({one.queue_id, *one.lanes})
        tx = self._transaction(connection, queue.queue_id, {queue.queue_id, *others})
        tx.begin(self._open(connection, locks))
        # From here on, nobody changes how queues are set.
        now = [tx.queues.by_path(path_key), *(tx.queues.by_id(one.queue_id) for one in records[1:])]
        if list(map(_place, now)) != list(map(_place, records)):
            raise Unforeseen
        return tx

    def _open(self, connection: PgConnection, locks: CommitLocks) -> int:
        """Begin a transaction with these locks; return the time."""
        commits = self._commits
        connection.send_ahead()
        connection.send("BEGIN ISOLATION LEVEL READ COMMITTED")
        for name, value in SILENT_WRITERS.items():
            connection.send(f"SET LOCAL {name} = {value}")
        # It is put on disk once the locks are free.
        now = commits.note_opened(commits.open(connection, locks, relaxed=True, due=None))
        return commits.clock.now() if commits.server_clock is None else now

    def _commit(self, operation: Operation[T], tx: ConfinedTransaction, *, durable: bool) -> T:
        """Run an operation and commit."""
        connection, begun_at = tx.connection, tx.connection.total_changes
        answer = operation.run(tx)
        if isinstance(answer, Again):
            raise Unforeseen
        tx.bodies.finish()
        tx.causes.save_counts()
        if tx.history.any_left:
            self._hold_log(tx)
            tx.history.finish()
        due = tx.confined.first_due
        if due is not None and self._commits.server_clock is not None:
            # Others may have looked for timers up to now.
            tx.confined.run("due_later", {"due": due})
        self._commits.finish(connection, begun_at, tells=bool(tx.context.woken), flush=durable)
        return answer

    def _hold_log(self, tx: ConfinedTransaction) -> None:
        """Become the one that writes events, at the end: others need not wait for all of this commit.

        They take this lock before those of queues, so it is not waited for: they may wait for this commit.
        """
        if tx.confined.holds(LOG):
            return
        lock = {"lock": lock_of(self._commits.number, LOG, QueueLock.END)}
        for _ in range(_TRIES):
            (got,) = tx.confined.run("try_lock", lock).fetchone()
            if got:
                return
            time.sleep(_NAP)
        raise Unheld({LOG})


def _place(queue: QueueRecord | None) -> tuple[int, ...] | None:
    """Return the number and the lanes of a queue."""
    return None if queue is None else (queue.queue_id, *queue.lanes)
