"""Begins and finishes commits on the server, on any connection."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

import psycopg

from lazaretto.errors import CommitUnknown
from lazaretto.model.clock import Clock
from lazaretto.store.postgres.connection import UNHEARD, PgConnection
from lazaretto.store.postgres.listener import ServerClock, channel
from lazaretto.store.postgres.pipeline import Sent
from lazaretto.store.postgres.queue_locks import CommitLocks
from lazaretto.store.sql.rows import Cursor
from lazaretto.store.sql.statements import Dialect

#: The lock that whoever writes to a store holds until its commit; the other half is the schema's.
WRITING = 0x4C5A0002
#: Where the answer of `open_whole` has the server's time.
_OPENED_AT = 4


class Commits:
    """Begins and ends commits of the store in `schema`; `where` names it in errors.

    Without a `server_clock`, time is `clock`'s.
    """

    def __init__(
        self, dialect: Dialect, schema: str, where: str, clock: Clock, server_clock: ServerClock | None
    ) -> None:
        self.dialect = dialect
        self.clock = clock
        self.server_clock = server_clock
        self.channel = channel(schema)
        #: The schema's half of its locks.
        self.number = zlib.crc32(schema.encode()) - (1 << 31)
        self._where = where

    def begin(self, connection: PgConnection, durable: bool) -> tuple[int, int, bool]:
        """Begin as the one writer, in one round trip.

        Return the store's version, the time, and whether claims lock messages by ranges.
        """
        # What the server is set to may be more than "on".
        return self.lock(connection, f"BEGIN; {'' if durable else 'SET LOCAL synchronous_commit = off; '}")

    def lock(self, connection: PgConnection, opening: str = "") -> tuple[int, int, bool]:
        """Become the one writer in an open transaction, or in one that `opening` begins; else as `begin`."""
        ((version, now, claimed),) = connection.script(
            f"{opening}SELECT pg_advisory_xact_lock({WRITING}, {self.number}); "
            + self.dialect.text("select_begun")
        )
        if self.server_clock is not None:
            self.server_clock.set(now)
        return version, self.clock.now() if self.server_clock is None else now, claimed

    def begin_as_expected(self, connection: PgConnection, version: int, durable: bool) -> Cursor:
        """Begin without waiting for a reply, assuming that the store still has this version."""
        connection.send_ahead()
        connection.send("BEGIN")
        query = self.dialect.text("begin_as_expected")
        return connection.execute(query, (WRITING, self.number, version, not durable))

    def open(self, connection: PgConnection, locks: CommitLocks, *, relaxed: bool, due: int | None) -> Sent:
        """Send what takes queue locks, and the store's lock shared. `due`: as of `open_whole`.

        `relaxed`: the commit does not wait for the disk.
        """
        statement = self.dialect.statements["open_whole"]
        values = {
            "writing": WRITING,
            "store": self.number,
            "locks": locks.numbers(self.number),
            "relaxed": relaxed,
            "due": due,
        }
        return connection.send(statement.sql, statement.pick(values))

    def note_opened(self, opened: Sent) -> int:
        """Record the server's time from the answer to `open`, and return it."""
        now = opened.number(_OPENED_AT)
        assert now is not None
        self.note_time(now)
        return now

    def note_time(self, now: int) -> None:
        """Record the server's time, from the reply that began a commit."""
        if self.server_clock is not None:
            self.server_clock.set(now)

    def finish(
        self, connection: PgConnection, begun_at: int, *, tells: bool = True, flush: bool = False
    ) -> int | None:
        """Commit; return the store's new version if something was changed.

        `tells`: other processes hear of it, because there may be something to receive. `flush`: the commit
        is not on disk, and is to be before this returns.
        """
        move: Callable[[], Cursor] | None = None
        if connection.total_changes != begun_at:
            values = (self.channel,) if tells else ()
            move = partial(connection.execute, self.dialect.text("tell" if tells else "move_on"), values)
        moved = self.finish_with(connection, move, flush=flush)
        row = None if moved is None else moved.fetchone()
        return None if row is None else int(row[0])

    def finish_with(
        self, connection: PgConnection, move: Callable[[], Cursor] | None, *, flush: bool
    ) -> Cursor | None:
        """Commit. `move`: runs the last statement of a commit that changes something."""
        committed: Sent | None = None
        try:
            moved = None if move is None else move()
            if connection.sends_ahead:
                committed = connection.commit_ahead()
                if move is not None and flush:
                    connection.send(self.dialect.text("flush"))
                connection.settle()
            else:
                flushed = f"; {self.dialect.text('flush')}" if move is not None and flush else ""
                connection.script(f"COMMIT{flushed}")
        except psycopg.Error as error:
            # What was committed must not be done again, even if it could not be made sure that it is on disk.
            if committed is None:
                is_committed = flush and not connection.in_transaction
            else:
                is_committed = committed.result is not None
            if move is None or error.sqlstate == UNHEARD or not (connection.broken or is_committed):
                raise
            raise CommitUnknown(
                f"{self._where}: the connection was lost during the commit, or it may not be on disk: "
                "whether it took effect is unknown; check before you repeat it"
            ) from error
        return moved
