"""Plans whole commits, and sends each in one round trip."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import psycopg

from lazaretto.store.postgres.commits import Commits
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.pipeline import Sent
from lazaretto.store.postgres.plan import Unforeseen
from lazaretto.store.postgres.settings import Settings
from lazaretto.store.postgres.whole_context import WholeContext
from lazaretto.store.postgres.whole_transaction import WholeTransaction
from lazaretto.store.sql.group_commit import Ticket, in_order, run_merged
from lazaretto.store.sql.transaction import Transaction

#: Where the answer of the last statement has the store's version.
_VERSION = 1


class WholeCommits:
    """Commits that wait for no reply before their end, even while other processes write.

    `transaction`: returns the transaction that plans them. `save_counts`: writes what ends each commit.
    """

    def __init__(
        self,
        commits: Commits,
        settings: Settings,
        transaction: Callable[[], WholeTransaction],
        save_counts: Callable[[Transaction], None],
    ) -> None:
        self._commits = commits
        self._settings = settings
        self._make = transaction
        self._save_counts = save_counts
        self._tx = transaction()

    def forget(self) -> None:
        """Forget everything about the server: it may be another one now."""
        self._tx = self._make()
        self.forget_settings()

    @property
    def floors(self) -> dict[int, int]:
        """The highest sequence numbers that are known, of those queues of which all places were looked at."""
        return self._tx.whole.floors

    def forget_settings(self) -> None:
        """Forget how queues are set."""
        self._settings.forget()

    def plan(self, group: Sequence[Ticket], *, registered: bool) -> tuple[WholeContext | None, list[Ticket]]:
        """Plan a commit of operations.

        Return the plan (None if it is empty) and the operations that cannot be planned. `registered`:
        whether this process is registered in the store.
        """
        foreseeable: list[Ticket] = []
        others: list[Ticket] = []
        for ticket in group:
            (foreseeable if ticket.operation.foreseeable else others).append(ticket)
        if not foreseeable:
            return None, others
        tx = self._tx
        try:
            tx.whole.memory.registered = registered
            tx.begin(self._commits.clock.now())
            left = _plan_operations(foreseeable, tx)
            self._save_counts(tx)
            tx.whole.finish()
        except (Unforeseen, psycopg.Error):
            return None, list(group)
        return (tx.whole if len(left) < len(foreseeable) else None), others + left

    def write_ranges(self, connection: PgConnection, queues: Collection[int]) -> None:
        """Write the range locks of some queues into their messages, in a whole commit."""
        whole = self._tx.whole
        whole.begin(self._commits.clock.now())
        whole.locks.hold_all(queues)
        whole.write_range_locks()
        whole.finish()
        with contextlib.suppress(psycopg.errors.LockNotAvailable):
            self.send(connection, whole, durable=False, flush=False)

    def send(
        self, connection: PgConnection, whole: WholeContext, *, durable: bool, flush: bool
    ) -> tuple[bool, int | None]:
        """Send a planned commit; return whether it is done, and the store's new version.

        The version is None if nothing was changed. `flush`: the commit is put on disk once its locks are
        free. Raises LockNotAvailable if another commit holds one of these too long.
        """
        try:
            return True, self.append(connection, whole, durable=durable, flush=flush)
        except psycopg.Error as error:
            connection.roll_back()
            self._settings.forget()
            if isinstance(error, psycopg.errors.LockNotAvailable):
                raise
            return False, None
        except BaseException:
            connection.roll_back()
            raise

    def append(
        self, connection: PgConnection, whole: WholeContext, *, durable: bool = True, flush: bool = False
    ) -> int | None:
        """Commit a plan, with what the connection's open transaction has done before, if there is one.

        Return the store's new version, as `send` does. Raises psycopg's errors; whoever began the
        transaction may go back then.
        """
        commits = self._commits
        clock = commits.server_clock
        connection.send_ahead(whole=not connection.in_transaction, more=flush)
        due = None if clock is None else whole.first_due
        opened = commits.open(connection, whole.locks, relaxed=flush or not durable, due=due)
        whole.send(connection)
        close = functools.partial(connection.execute, *self._closing(whole))
        closed = commits.finish_with(connection, close, flush=flush)
        assert isinstance(closed, Sent)
        commits.note_opened(opened)
        return closed.number(_VERSION)

    def _closing(self, whole: WholeContext) -> tuple[str, Sequence[Any]]:
        """Return the last statement of a plan, which checks what it depends on."""
        values: dict[str, Any] = {"tells": bool(whole.woken), "channel": self._commits.channel}
        if len(whole.asked) == 1 and not whole.asked_topics:
            (queue_id,) = whole.asked
            name, values["queue_id"], values["mark"] = "close_one", queue_id, whole.settings.mark(queue_id)
        else:
            name = "close_whole"
            values["queues"], values["marks"] = whole.marks()
            values["topics"], values["topic_marks"] = whole.marks_of_topics()
        statement = self._commits.dialect.statements[name]
        return statement.sql, statement.pick(values)


def _plan_operations(group: Sequence[Ticket], tx: WholeTransaction) -> list[Ticket]:
    """Plan operations; return those that cannot be planned."""
    for ticket in group:
        ticket.error = ticket.later = None
    left: list[Ticket] = []
    for kind, some in in_order(group):
        for ticket, later in zip(some, kind.start_all(tx, [t.operation for t in some]), strict=True):
            ticket.later = later
        some = [ticket for ticket in some if ticket.later is None]
        if (
            len(some) > 1
            and kind.mergeable
            and tx.whole.attempt(functools.partial(run_merged, kind, some, tx))
        ):
            continue
        left += [ticket for ticket in some if not tx.whole.attempt(functools.partial(ticket.run, tx))]
    return left
