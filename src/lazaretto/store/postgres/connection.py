"""Connects to PostgreSQL: settings, text encoding, and translation of the server's errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import errors, generators, pq
from psycopg.errors import error_from_result
from psycopg.types.string import StrDumper

from lazaretto.errors import (
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from lazaretto.store.postgres.arrays import text
from lazaretto.store.postgres.pipeline import Pipeline, Sent
from lazaretto.store.postgres.polling import READ, new_poll
from lazaretto.store.postgres.server_session import (
    ENCODING,
    READ_ONLY,
    SILENT_WRITERS,
    WRITES,
    refuse_encoding,
    script,
    settings_beside_users,
    settings_of_sessions,
)
from lazaretto.store.postgres.watch import Watch, WatchedConnection, is_at_work
from lazaretto.store.sql.rows import Cursor

#: Plain numbers: what libpq says is asked at each commit.
_BAD, _IDLE = int(pq.ConnStatus.BAD), int(pq.TransactionStatus.IDLE)
_FAILED, _ROWS = int(pq.ExecStatus.FATAL_ERROR), int(pq.ExecStatus.TUPLES_OK)
#: The server has ended a transaction, and undone it, because nothing came for too long.
UNHEARD = "25P03"
#: How the server's kinds of errors are ours, by the beginning of their codes; the longest one counts.
_KINDS: dict[str, tuple[type[StoreError], str]] = {
    "55P03": (StoreBusy, "another process held the write lock for too long; try again"),
    "40": (StoreBusy, "the server ended this transaction in favour of another; try again"),
    "53100": (StoreFull, "no room is left on the server's disk; make room and try again"),
    "53": (StoreUnavailable, "the server is out of connections or memory; try again"),
    UNHEARD: (StoreUnavailable, "the server had not heard of this process for too long; try again"),
    "57": (StoreUnavailable, "the server is shutting down, starting, or ended the connection; try again"),
    "08": (StoreUnavailable, "the connection to the server was lost; try again"),
    "25006": (StoreReadOnly, "the server rejects changes: it is a standby, or set to read only"),
    "42501": (StoreReadOnly, "the user lacks the privilege; grant it"),
    "28": (StoreError, "the server rejected this user; check name and password"),
    "3D000": (StoreError, "the database does not exist; create it, or correct the name"),
}


#: What no statement is to blame for, whatever it asks; and what of that it is to blame for.
_OWN_FAULTS = ("08", "25006", UNHEARD, "40", "53", "55P03", "57", "58")
#: It was cancelled, as one that takes too long.
_CANCELED = "57014"


def own_fault(error: psycopg.Error, where: str) -> StoreError | None:
    """Translate an error that the server caused; return None if the statement caused it."""
    code = error.sqlstate
    lost = not code and isinstance(error, errors.OperationalError | errors.InterfaceError)
    own = lost or (code is not None and code.startswith(_OWN_FAULTS) and code != _CANCELED)
    return translated(error, where) if own else None


def translated(error: psycopg.Error, where: str) -> StoreError:
    """Translate a server's error to one that says where it happened and what to do."""
    code = error.sqlstate or ""
    prefix = max((k for k in _KINDS if code.startswith(k)), key=len, default=None)
    if prefix is not None:
        kind, advice = _KINDS[prefix]
    elif not code and isinstance(error, errors.OperationalError | errors.InterfaceError):
        kind, advice = StoreUnavailable, "the server cannot be reached, or ended the connection; try again"
    else:
        kind, advice = StoreError, "unexpected error from PostgreSQL"
    return kind(f"{where}: {advice} ({str(error).strip().splitlines()[0] if str(error) else code})")


@contextlib.contextmanager
def translating(where: str) -> Iterator[None]:
    """Raise the server's errors as Lazaretto's own."""
    try:
        yield
    except psycopg.Error as error:
        raise translated(error, where) from error


_STARTED = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"


#: Undoes what a user's SQL has set in a session.
_RESET = "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; "


class _Text(StrDumper):
    """Replaces NUL characters, which PostgreSQL's texts cannot contain."""

    def dump(self, obj: str) -> bytes | bytearray | memoryview | None:
        return super().dump(text(obj))


class PgConnection:
    """A connection that knows whether it is in a transaction, and counts its changes."""

    def __init__(
        self, conninfo: str, lock_timeout: int = 0, *, schema: str | None = None, commits: bool = False
    ) -> None:
        """`schema`: of the store that it is for. `lock_timeout`: in milliseconds.

        `commits`: all its transactions are commits of the broker's own, which are never idle for long.
        """
        self._conninfo = conninfo
        self._lock_timeout = lock_timeout
        self.schema = schema
        self._more = SILENT_WRITERS if commits else {}
        self.total_changes = 0
        self._open()

    def _open(self) -> None:
        conninfo = self._conninfo
        raw = WatchedConnection.connect(
            conninfo, autocommit=True, application_name="lazaretto", client_encoding=ENCODING
        )
        # Until the server has said which of its processes it is, it is believed gone when it is silent.
        raw.watch = Watch(lambda: False)
        raw.adapters.register_dumper(str, _Text)
        # psycopg cleans its own up after each ROLLBACK, and would take those of the pipeline with them.
        raw.prepare_threshold = None
        try:
            refuse_encoding(raw)
            settings = settings_of_sessions(self.schema, raw.info.server_version, self._lock_timeout)
            self._settings = script({**settings, **self._more})
            facts = f"SELECT pg_backend_pid(), {_STARTED}, {READ_ONLY}"
            # What the user's own path is must be asked first, by what needs no path.
            cursor = raw.execute(f"SHOW search_path; {self._settings}{facts}".encode())
            ((path,),) = cursor.fetchall()
            while cursor.nextset():
                pass
            ((pid, era, read_only),) = cursor.fetchall()
            self._writes = WRITES if read_only else ""
            if read_only:
                self._settings += WRITES
                raw.execute(WRITES.encode())
        except BaseException:
            raw.close()
            raise
        raw.watch = Watch(lambda: is_at_work(conninfo, pid))
        self.raw = raw
        self.pid: int = pid
        # A socket's address is its folder, which has no port.
        host = raw.info.host
        #: The address and port of the server.
        self.server = (host, None if host.startswith("/") else raw.info.port)
        #: When the server was started, in microseconds: that of another one, as after a failover, is another.
        self.era: int = era
        #: The path of a user's own SQL.
        self.users_path: str = path
        #: Whether a user's own SQL has run on it, which may have set anything.
        self.set_by_user = False
        self._pipeline = Pipeline(raw, raw.watch)
        self._pg = raw.pgconn
        self._whole = False
        self._poll = new_poll()
        self._poll.register(raw.fileno(), READ)

    def reopen(self) -> None:
        """Reconnect after the connection broke."""
        self.close()
        self._open()

    @property
    def broken(self) -> bool:
        return bool(self._pg.status == _BAD)

    @property
    def in_transaction(self) -> bool:
        connection = self._pg
        return connection.status != _BAD and connection.transaction_status != _IDLE

    @property
    def heard(self) -> bool:
        """Whether the server has sent an unsolicited message, most often that it shuts down."""
        return bool(self._poll.poll(0))

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Run a statement. Its parameters are named $1, $2 and so on."""
        if not sql.startswith("SELECT"):
            self.total_changes += 1
        if self._pipeline.is_open:
            return self._pipeline.send(sql, parameters)
        # With parameters, even none, it is one statement alone, and results come in binary.
        return psycopg.RawCursor(self.raw).execute(sql.encode(), parameters, binary=True)

    # -- several statements in one round trip ---------------------------------------------------

    @property
    def sends_ahead(self) -> bool:
        """Whether statements are sent without waiting for earlier replies."""
        return self._pipeline.is_open

    def send_ahead(self, *, whole: bool = False, more: bool = False) -> None:
        """Send statements without waiting. An error may show at any later statement, or at `settle`.

        After a failed statement, the server skips all others up to `settle`. `whole`: the statements are one
        transaction, which needs no BEGIN and COMMIT: it ends at `settle`; but with `more`, others follow it.
        """
        self._pipeline.open()
        self._whole = whole and not more
        if whole and more:
            self._pipeline.send_encoded("BEGIN", (), ())

    def send(self, sql: str, parameters: Sequence[Any] = ()) -> Sent:
        """Send a statement, but do not count it as a change."""
        return self._pipeline.send(sql, parameters)

    def send_encoded(self, sql: str, parameters: Sequence[bytes | None], formats: Sequence[int]) -> Sent:
        """Do the same with parameters as `encode` returns them."""
        return self._pipeline.send_encoded(sql, parameters, formats)

    def commit_ahead(self) -> Sent | None:
        """Send the COMMIT, if one is needed. The result arrives once it is done."""
        if not self._whole:
            return self._pipeline.send_encoded("COMMIT", (), ())
        self._whole = False
        return None

    def settle(self) -> None:
        """Wait for all replies. Raises the first error."""
        self._pipeline.settle()

    def roll_back(self) -> None:
        """Roll back the transaction, if there is one."""
        with contextlib.suppress(psycopg.Error):
            if self._whole and self.sends_ahead:
                # It would be committed where it ends.
                self._pipeline.send("ROLLBACK")
            self._whole = False
        with contextlib.suppress(psycopg.Error):
            self.settle()
        if self.in_transaction:
            self.raw.execute("ROLLBACK")

    def copy(self, sql: str, types: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows with a binary COPY. The columns have these types."""
        ahead = self.sends_ahead
        self.settle()
        self.total_changes += 1
        with self.raw.cursor() as cursor, cursor.copy(sql.encode()) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)
        if ahead:
            self.send_ahead()

    def script(self, sql: str) -> list[tuple[Any, ...]]:
        """Run several statements in one round trip; return the rows of the last one that has any."""
        # A cursor would do much for each of the answers, most of which are to settings.
        self._pg.send_query(sql.encode())
        rows: pq.abc.PGresult | None = None
        for result in self.raw.wait(generators.execute(self._pg)):
            if result.status == _FAILED:
                raise error_from_result(result)
            if result.status == _ROWS:
                rows = result
        return [] if rows is None else self._pipeline.rows(rows)

    # -- a user's own SQL -------------------------------------------------------------------------

    def begin_for_user(self, guard: str, *, pauses: bool) -> None:
        """Begin a transaction that is set as the user's role has it, but for what the commit needs.

        `guard`: what is run behind that. `pauses`: the server may hear nothing of it for a while.
        """
        beside = settings_beside_users(self._lock_timeout)
        path = ", ".join(part for part in (self.users_path.strip(), f'"{self.schema}"') if part)
        self.set_by_user = True
        # What is committed with the SQL must see what others have committed since it began. The broker's
        # tables can be read, behind whatever the user's own path says.
        self.script(
            f"BEGIN ISOLATION LEVEL READ COMMITTED; {_RESET}{script(beside)}{self._writes}"
            f"{'' if pauses else script(SILENT_WRITERS, local=True)}"
            f"SELECT pg_catalog.set_config('search_path', {self._quoted(path)}, true); {guard}"
        )

    def set_again(self) -> None:
        """Set all as it was when the session was opened, whatever a user's SQL has set."""
        self.script(_RESET + self._settings)
        self.set_by_user = False

    def _quoted(self, text: str) -> str:
        return pq.Escaping(self.raw.pgconn).escape_literal(text.encode()).decode()

    def let_go(self) -> None:
        """Make the thread that uses the connection release it soon: only that thread may close it."""
        self.raw.watch.end()

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self.raw.close()
