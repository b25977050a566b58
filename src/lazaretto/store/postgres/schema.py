"""The schema of the server's store: created, recognised, and brought up to date by numbered migrations."""

from __future__ import annotations

import re
import uuid

from lazaretto.errors import InvalidOption, StoreForeign, StoreNotFound, StoreTooNew
from lazaretto.options import shown
from lazaretto.store.postgres.connection import PgConnection
from lazaretto.store.postgres.dialect import dialect
from lazaretto.store.queries import load_migrations

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}\Z")
#: The lock under which a store is made or migrated, by one process at a time.
_MIGRATING = 0x4C5A0001


def check_name(schema: str) -> str:
    """Return a schema's name, else raise InvalidOption."""
    if not isinstance(schema, str) or not _NAME.match(schema) or schema.startswith("pg_"):
        raise InvalidOption(
            "expected schema to be a name of lower-case letters, digits and _, 1 to 51 characters, "
            f"got {shown(schema)}"
        )
    return schema


def migrations() -> list[tuple[int, str]]:
    """Return all migrations: number and SQL, in order."""
    return load_migrations("lazaretto.store.postgres.migrations")


def prepare(connection: PgConnection, schema: str, where: str, *, create: bool, now: int) -> None:
    """Make sure the schema holds a store of this version. Creates it if `create`."""
    newest = migrations()[-1][0]
    found = _version(connection, schema, where)
    if found == newest:
        return
    if found is None and not create:
        raise StoreNotFound(f"{where}: there is no store here; leave out create=False to make one")
    if found is not None and found > newest:
        raise StoreTooNew(
            f"{where}: expected a store of schema {newest} or older, got {found}. It was written by a newer "
            "version of Lazaretto and was left as it is; upgrade this one"
        )
    connection.script(f"BEGIN; SELECT pg_advisory_xact_lock({_MIGRATING})")
    try:
        # Another process may have been here since the look above.
        found = _version(connection, schema, where)
        connection.script(f'CREATE SCHEMA IF NOT EXISTS "{schema}"; SET LOCAL search_path TO "{schema}"')
        for number, sql in migrations():
            if found is None or number > found:
                connection.script(sql)
        if found is None:
            connection.execute(
                "INSERT INTO lazaretto_meta (name, value) VALUES ('store_id', %s), ('created', %s)",
                (uuid.uuid4().hex, str(now)),
            )
        connection.execute(
            "INSERT INTO lazaretto_meta (name, value) VALUES ('schema', %s) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (str(newest),),
        )
        connection.script("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.script("ROLLBACK")
        raise


def _version(connection: PgConnection, schema: str, where: str) -> int | None:
    """Return a store's schema version, None where there is none. Raises StoreForeign."""
    tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    names = {name for (name,) in tables}
    if "lazaretto_meta" in names:
        meta = dict(connection.execute(dialect(schema).queries["select_meta"]).fetchall())
        return int(meta["schema"])
    if names:
        raise StoreForeign(
            f"{where}: the schema {schema!r} belongs to another application and was left as it is; "
            "name another one: postgresql://…?schema=name"
        )
    return None
