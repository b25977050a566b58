"""Settings that a session on the server relies on: all are set when it is opened, in one place.

Servers, databases, roles, libpq's variables and a URL's options may all say otherwise, for good reasons of
their own. What cannot be set is refused, before anything is read or written.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from lazaretto.errors import ServerUnsuitable

#: What libpq is told whatever PGCLIENTENCODING says: psycopg decodes by it, and statements are sent in it.
ENCODING: Final = "UTF8"
#: The server ends a transaction of which it has heard nothing for so long, in milliseconds: a process that is
#: alive and cut off must not hold the locks of a commit.
SILENCE: Final = "idle_in_transaction_session_timeout"
SILENT_WRITERS: Final = {SILENCE: "10000"}
#: A machine that is gone without a word must not hold the writer's lock for long: 25 seconds.
DEAD_CLIENTS: Final = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
#: How the store's queries mean what they say.
_MEANING: Final = {
    "client_encoding": "'UTF8'",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "bytea_output": "'hex'",
    "datestyle": "'ISO, YMD'",
    "intervalstyle": "'postgres'",
    "timezone": "'UTC'",
    "extra_float_digits": "1",
}
#: Commits know themselves how long they may take: what ends them elsewhere is never the server's clock.
_TIMES: Final = {"statement_timeout": "0", SILENCE: "0"}
#: Every query of the store has an index to go by. A table that is empty now and full in a moment misleads
#: the planner, whose statistics are older.
_PLANNING: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
#: Settings that came with a version of the server.
_SINCE: Final = {"idle_session_timeout": 140_000, "transaction_timeout": 170_000}

#: Whether transactions are read-only by the role's, the database's or the address's wish: that is set
#: otherwise. By the server's own, nobody is to change anything, and each commit says so.
READ_ONLY: Final = (
    "current_setting('default_transaction_read_only') = 'on' AND EXISTS (SELECT FROM pg_settings "
    "WHERE name = 'default_transaction_read_only' "
    "AND source NOT IN ('configuration file', 'command line', 'global'))"
)
WRITES: Final = "SET default_transaction_read_only = off; "


def path_of(schema: str | None) -> str:
    """Return the path of the store's own statements: nobody else's functions and operators are on it.

    Each table is qualified besides. Temporary tables, which come first unless they are named, come last.
    """
    return f'pg_catalog, "{schema}", pg_temp' if schema else "pg_catalog, pg_temp"


def settings_of_commits(schema: str | None, version: int) -> dict[str, str]:
    """Return what the store's statements rely on, in whatever session they run; `version`: the server's."""
    later = {name: "0" for name, since in _SINCE.items() if version >= since}
    return {"search_path": path_of(schema), **_MEANING, **_TIMES, **later, **_PLANNING}


def settings_of_sessions(schema: str | None, version: int, lock_timeout: int) -> dict[str, str]:
    """Return what a session of the store's own is set to. `lock_timeout`: in milliseconds."""
    return {
        **settings_of_commits(schema, version),
        "default_transaction_isolation": "'read committed'",
        "default_transaction_deferrable": "off",
        **settings_beside_users(lock_timeout),
    }


def settings_beside_users(lock_timeout: int) -> dict[str, str]:
    """Return what a session is set to while a user's own SQL runs on it, which has its role's settings."""
    return {**DEAD_CLIENTS, "lock_timeout": str(lock_timeout)}


def script(settings: dict[str, str], *, local: bool = False) -> str:
    """Return statements that set these. `local`: up to the end of the transaction."""
    return "".join(f"SET {'LOCAL ' * local}{name} = {value}; " for name, value in settings.items())


def refuse_encoding(raw: psycopg.Connection[Any]) -> None:
    """Raise ServerUnsuitable if the database cannot keep every text."""
    encoding = raw.info.parameter_status("server_encoding")
    if encoding != ENCODING:
        raise ServerUnsuitable(
            f"expected a database in the encoding UTF8, got {raw.info.dbname!r} in {encoding}, which garbles "
            "or refuses texts; make another one, with CREATE DATABASE name ENCODING 'UTF8' TEMPLATE "
            "template0, and name it in the store's address"
        )
