"""Maintains the tables of a store: vacuum, silent writers, checks, settings and sizes."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import psycopg

from lazaretto.store.postgres.commits import WRITING
from lazaretto.store.postgres.connection import PgConnection, translated, translating
from lazaretto.store.postgres.readers import Readers
from lazaretto.store.postgres.schema import migrations
from lazaretto.store.sql.statements import Dialect

_log = logging.getLogger(__name__)

#: The lock of whoever clears away dead rows, and how often that is looked for, in seconds; how soon again if
#: it was in vain, as a multiple of the time that took.
_TIDYING = 0x4C5A0003
_TIDY_EVERY = 2.0
_TIDY_IN_VAIN = 20.0
#: How long the server waits within a commit for the process that commits, in seconds, before others end it.
SILENCE = 5


class Upkeep:
    """Maintains the store in `schema`, on connections that it borrows from `readers`.

    `number`: the schema's half of its locks. `where` names the store in errors.
    """

    def __init__(
        self,
        dialect: Dialect,
        schema: str,
        number: int,
        where: str,
        readers: Readers,
    ) -> None:
        self._dialect = dialect
        self._schema = schema
        self._number = number
        self._where = where
        self._readers = readers
        self._tidy_at = time.monotonic() + _TIDY_EVERY

    def tidy(self) -> None:
        """Vacuum in a thread of its own, if that is due."""
        # The server's own vacuum looks once a minute: a long time at some thousand messages a second.
        now = time.monotonic()
        if now >= self._tidy_at:
            self._tidy_at = now + _TIDY_EVERY
            threading.Thread(target=self._tidy, name="lazaretto-tidy", daemon=True).start()

    def _tidy(self) -> None:
        try:
            connection = self._readers.borrow()
        except psycopg.Error as error:
            _log.debug("tidying failed: %s", translated(error, self._where))
            return
        try:
            begun = time.monotonic()
            if self._vacuum(connection) and self._vacuum(connection):
                # In vain, as long as some transaction may still see it all.
                now = time.monotonic()
                self._tidy_at = now + max(_TIDY_EVERY, _TIDY_IN_VAIN * (now - begun))
        except psycopg.Error as error:
            # With it goes the lock, if it has that.
            connection.close()
            _log.debug("tidying failed: %s", translated(error, self._where))
        finally:
            self._readers.give_back(connection)

    def _vacuum(self, connection: PgConnection) -> bool:
        """Vacuum the tables with many dead rows; return whether there were any."""
        values = (self._schema, _TIDYING, self._number)
        crowded = connection.execute(self._dialect.text("select_crowded"), values).fetchall()
        for (table,) in crowded:
            connection.script(f'VACUUM (TRUNCATE false) "{self._schema}"."{table}"')
        connection.execute("SELECT pg_advisory_unlock_all()")
        return bool(crowded)

    def end_silent_writers(self) -> int:
        """End commits of processes that are cut off from the server; return how many.

        A frozen process or network could hold the store's lock indefinitely.
        """
        try:
            connection = self._readers.borrow()
        except psycopg.Error:
            return 0
        try:
            query, store = self._dialect.text("end_silent_writers"), self._number & 0xFFFF_FFFF
            ended = len(connection.execute(query, (WRITING, store)).fetchall())
        except psycopg.Error as error:
            _log.debug("%s", translated(error, self._where))
            return 0
        finally:
            self._readers.give_back(connection)
        if ended:
            _log.warning("%s: %d writers were not heard of for %d s, and ended", self._where, ended, SILENCE)
        return ended

    def check(self) -> list[str]:
        """Return the store's problems: an empty list if there are none."""
        with translating(self._where):
            connection = self._readers.borrow()
            try:
                problems = connection.execute(self._dialect.text("select_problems")).fetchall()
            finally:
                self._readers.give_back(connection)
        return [f"{what}: {count}" for what, count in problems]

    def facts(self) -> dict[str, Any]:
        """Return the store's settings and sizes, for operators."""
        with translating(self._where):
            connection = self._readers.borrow()
            try:
                meta = dict(connection.execute(self._dialect.text("select_meta")).fetchall())
                row = connection.execute(self._dialect.text("select_facts"), (self._schema,)).fetchone()
                server, size, commit = row
                neighbours = connection.execute(self._dialect.text("select_neighbours"), (self._schema,))
                takers = connection.execute(
                    self._dialect.text("select_lock_takers"), (self._schema, WRITING, self._number)
                )
            finally:
                self._readers.give_back(connection)
        return {
            "schema_name": self._schema,
            "schema": int(meta["schema"]),
            "oldest_schema": int(meta["oldest"]),
            "newest_schema": migrations()[-1].number,
            "store_id": meta["store_id"],
            "postgresql": server,
            "synchronous_commit": commit,
            "bytes": size,
            "neighbours": [name for (name,) in neighbours.fetchall()],
            "lock_takers": [{"role": role, "pid": pid} for role, pid in takers.fetchall()],
        }
