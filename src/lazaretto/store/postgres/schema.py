"""The schema of the server's store: created, recognised, and brought up to date by numbered migrations."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from psycopg.conninfo import conninfo_to_dict

from lazaretto.errors import InvalidOption, StoreForeign, StoreNotFound, StoreOutdated, StoreTooNew
from lazaretto.model.checks import shown
from lazaretto.model.clock import SystemClock
from lazaretto.store.postgres.connection import PgConnection, translating
from lazaretto.store.postgres.dialect import dialect, within
from lazaretto.store.postgres.poolers import refuse_transaction_pooling
from lazaretto.store.sql.copy_store import COPYING, unfinished
from lazaretto.store.sql.query_files import Migration, load_migrations

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}\Z")
_COMMENT = re.compile(r"^\s*--[^\n]*\n", re.MULTILINE)
_STATEMENT = re.compile(r"\s*\S(?:\$\$.*?\$\$|.)*?;[ ]*(?=\n|\Z)", re.DOTALL)
#: The schema from which on every worker knows of range locks.
RANGE_LOCKS = 4
#: The schema from which on every worker knows of claims that lock ranges.
CLAIMED_RANGES = 17
#: The schema from which on every worker keeps a queue's highest number when its message becomes a dead
#: letter, and holds a lock while it listens: functions that send rely on both.
FUNCTIONS = 26
#: What stands in a schema; functions and operators, too: the store's statements would call them.
_CONTENTS = """
    SELECT named.name::text FROM pg_namespace n JOIN (
        SELECT relnamespace, relname FROM pg_class
        UNION ALL SELECT pronamespace, proname FROM pg_proc
        UNION ALL SELECT oprnamespace, oprname FROM pg_operator
    ) AS named (schema, name) ON named.schema = n.oid WHERE n.nspname = $1
"""
#: The lock under which a store is made or migrated, by one process at a time.
_MIGRATING = 0x4C5A0001


def check_name(schema: str) -> str:
    """Return a valid schema name. Raises InvalidOption."""
    if not isinstance(schema, str) or not _NAME.match(schema) or schema.startswith("pg_"):
        raise InvalidOption(
            "expected schema to be a name of lower-case letters, digits and _, 1 to 51 characters, "
            f"got {shown(schema)}"
        )
    return schema


def migrations() -> list[Migration]:
    """Return all migrations, in order."""
    return load_migrations("lazaretto.store.postgres.migrations")


def statements(script: str) -> list[str]:
    """Return the statements of a script one by one, as distributed servers require.

    Each ends with a line that ends with a semicolon; a block between lines of $$ is one statement.
    """
    return [match[0].strip() for match in _STATEMENT.finditer(_COMMENT.sub("", script))]


class Found(NamedTuple):
    """The state of a schema: its version, and the oldest version whose workers can use it."""

    version: int
    oldest: int
    copying: bool = False


def steps_to_open(found: Found, steps: Sequence[Migration], where: str) -> list[Migration]:
    """Return the migrations to run when a store is opened: those that older workers can work with.

    Raises StoreTooNew if the store needs a newer version, and StoreOutdated if it first needs a migration
    that older workers cannot work with.
    """
    newest = steps[-1].number
    if newest < found.oldest:
        raise StoreTooNew(
            f"{where}: expected a store of schema {newest} or older, got {found.version}, which workers of "
            f"schema {found.oldest} and later can use. It was not changed; upgrade Lazaretto here"
        )
    steps_ahead = [step for step in steps if step.number > found.version]
    now = list(itertools.takewhile(lambda step: not step.after, steps_ahead))
    if any(not step.after for step in steps_ahead[len(now) :]):
        raise StoreOutdated(
            f"{where}: this version needs steps behind migration {steps_ahead[len(now)].number}, which older "
            "workers cannot work with. Stop them, then run `lazaretto store migrate --after`"
        )
    return now


def prepare(
    connection: PgConnection, schema: str, where: str, *, create: bool, copying: bool, now: int
) -> Found:
    """Make sure the schema holds a store that this version can use, and return what it holds.

    `create`: create it if missing. `copying`: accept an unfinished copy.
    """
    state = look(connection, schema, where)
    if state is not None and state.copying and not copying:
        raise unfinished(where)
    if state is None and not create:
        raise StoreNotFound(
            f"{where}: no store exists here; check the name, or make one by lazaretto.connect"
        )
    if state is None or steps_to_open(state, migrations(), where):
        migrate(connection, schema, where, now=now)
        state = look(connection, schema, where)
    assert state is not None
    return state


def migrate(
    connection: PgConnection, schema: str, where: str, *, now: int, after: bool = False
) -> list[Migration]:
    """Run the pending migrations in one commit, and return them.

    `after`: also those that workers of older versions cannot work with: none of these is left.
    """
    connection.script(f"BEGIN; SELECT pg_advisory_xact_lock({_MIGRATING})")
    try:
        # Another process may have migrated since the last check.
        state = look(connection, schema, where)
        steps = migrations()
        if state is None:
            due = steps
        elif after:
            due = [step for step in steps if step.number > state.version]
        else:
            due = steps_to_open(state, steps, where)
        connection.script(
            f'CREATE SCHEMA IF NOT EXISTS "{schema}"; SET LOCAL search_path TO "{schema}", pg_temp'
        )
        for step in due:
            for statement in statements(step.sql):
                # Functions run whatever the path of their caller is.
                connection.script(within(schema, statement))
        facts = {}
        if state is None:
            facts = {"store_id": uuid.uuid4().hex, "created": str(now)}
        if due:
            oldest = max([0 if state is None else state.oldest, *(s.number for s in due if s.after)])
            if state is None:
                oldest = due[-1].number
            facts |= {"schema": str(due[-1].number), "oldest": str(oldest)}
        if after:
            facts["oldest"] = str(steps[-1].number)
        for name, value in facts.items():
            connection.execute(
                "INSERT INTO lazaretto_meta (name, value) VALUES ($1, $2) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, value),
            )
        connection.script("COMMIT")
    except BaseException:
        connection.roll_back()
        raise
    return due


def migrate_at(address: str, schema: str, *, after: bool) -> list[int]:
    """Run the pending migrations of a schema; return their numbers. `conninfo`: libpq's address."""
    check_name(schema)
    where = shown_place(address, schema)
    with translating(where):
        connection = PgConnection(address, schema=schema)
        try:
            refuse_transaction_pooling(address, connection)
            if look(connection, schema, where) is None:
                raise StoreNotFound(f"{where}: no store exists here; connect() creates one")
            numbers = migrate(connection, schema, where, now=SystemClock().now(), after=after)
        finally:
            connection.close()
    return [step.number for step in numbers]


def shown_place(address: str, schema: str) -> str:
    """Return a store's location for errors, without the password."""
    parts = conninfo_to_dict(address)
    return f"store {schema} of {parts.get('dbname', '')} at {parts.get('host', 'the local server')}"


def look(connection: PgConnection, schema: str, where: str) -> Found | None:
    """Return the state of a schema, or None if it contains no store. Raises StoreForeign."""
    names = {name for (name,) in connection.execute(_CONTENTS, (schema,)).fetchall()}
    if "lazaretto_meta" in names:
        meta = dict(connection.execute(dialect(schema).text("select_meta")).fetchall())
        version = int(meta["schema"])
        return Found(version, int(meta.get("oldest", version)), COPYING in meta)
    if names:
        raise StoreForeign(
            f"{where}: the schema {schema!r} belongs to another application and was not changed; "
            "name another one: postgresql://…?schema=name"
        )
    return None
