"""Copies a whole store, except locks, to another one on any database, and verifies the copy."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from lazaretto.errors import StoreError, StoreIncomplete
from lazaretto.store.records.access import (
    FINGERPRINT_KEY,
    FOUR_EYES,
    REDACTION,
    REDACTION_KEY,
    SIGNING,
    SPREAD,
)
from lazaretto.store.records.messages import DEFERRED, LOCKED, READY, SUSPECT
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

Row = tuple[Any, ...]

#: How many rows are read and committed at a time.
_CHUNK = 2_000
#: The name of the entry in which an unfinished copy records its source.
COPYING = "copying"


def unfinished(where: str) -> StoreIncomplete:
    """Return the error for an incomplete store."""
    return StoreIncomplete(
        f"{where}: this is an interrupted copy; run `lazaretto store copy` again to resume it, or remove it"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A table to copy: its name and the order of its rows. `only`: a condition, if not all are copied."""

    name: str
    key: tuple[str, ...]
    only: str = "true"


#: Not among them: workers, leases and open claims, which hold messages, and what is staged for claims.
TABLES = (
    Table("lazaretto_queues", ("queue_id",)),
    Table("lazaretto_high_water", ("queue_id",)),
    Table("lazaretto_deleted_queues", ("queue_id",)),
    Table("lazaretto_bodies", ("body_id",)),
    Table("lazaretto_shared_bodies", ("body_id",)),
    Table("lazaretto_messages", ("key",)),
    Table("lazaretto_samples", ("key",)),
    Table("lazaretto_rates", ("queue_id", "span", "start")),
    Table("lazaretto_sessions", ("queue_id", "session_id")),
    Table("lazaretto_message_ids", ("queue_id", "message_id", "partition_key")),
    Table("lazaretto_attempts", ("id",)),
    Table("lazaretto_dead_letters", ("key",)),
    Table("lazaretto_fingerprints", ("place", "fingerprint")),
    Table("lazaretto_cause_hours", ("place", "hour", "fingerprint")),
    Table("lazaretto_causes", ("place", "number")),
    Table("lazaretto_repairs", ("repair",)),
    Table("lazaretto_repair_members", ("repair", "part")),
    Table("lazaretto_repair_items", ("repair", "key")),
    Table("lazaretto_repair_originals", ("repair", "key")),
    Table("lazaretto_commands", ("key",)),
    Table("lazaretto_people", ("name",)),
    Table("lazaretto_secrets", ("id",), only="kind = 'token'"),
    Table("lazaretto_events", ("position",)),
    Table("lazaretto_audit", ("position",)),
    Table("lazaretto_consumers", ("queue_id", "consumer")),
    Table("lazaretto_claims", ("queue_id", "consumer", "number"), only="ended IS NOT NULL"),
    Table("lazaretto_writers", ("writer",)),
    Table("lazaretto_definitions", ("kind", "name")),
    Table("lazaretto_conversations", ("handle",)),
    Table("lazaretto_dialog_log", ("position",)),
)


#: Claims that keep what they have completed. In the copy it would be free.
_KEEPING = Table("lazaretto_claims", ("queue_id",), only="state = 'settled' AND lease_until IS NOT NULL")
#: What is said of the store as a whole that its copy has, too.
_KEPT = ("store_id", "created", FINGERPRINT_KEY, FOUR_EYES, REDACTION, REDACTION_KEY, SPREAD)


class Tables(Protocol):
    """A store's tables while nobody else writes to it."""

    def columns(self, table: Table) -> list[str]:
        """Return the names of a table's columns."""
        ...

    def count(self, table: Table) -> int:
        """Return how many rows of a table are copied."""
        ...

    def last(self, table: Table) -> Row | None:
        """Return the highest key of a table, None if it is empty."""
        ...

    def rows(self, table: Table, columns: Sequence[str], after: Row | None, limit: int) -> list[Row]:
        """Return rows in the order of their keys."""
        ...

    def insert(self, table: Table, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Add rows, and commit."""
        ...

    def clear(self, table: Table) -> None:
        """Remove all rows, and commit."""
        ...

    def meta(self) -> dict[str, str]:
        """Return the store's own settings."""
        ...

    def finish(self, meta: Mapping[str, str | None]) -> None:
        """Set or remove the store's settings, continue numbering after the highest number, and commit."""
        ...


class Copyable(Protocol):
    """A store that can be copied, or copied into."""

    def tables(self) -> AbstractContextManager[Tables]:
        """Return its tables, and block all other writers."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """The result of copying one table."""

    table: str
    rows: int
    sha256: str


class RemoveKept(Operation[bool]):
    """Remove some of what settled claims keep; return whether any may be left."""

    durable = False

    def run(self, tx: Transaction) -> bool:
        """See Operation."""
        claims = tx.claims.keeping()
        if claims:
            tx.claims.remove_completed(claims[0], _CHUNK, tx.now)
        return bool(claims)


def copy(source: Copyable, target: Copyable, progress: Callable[[str, int, int], None]) -> list[Copied]:
    """Copy everything into an empty store, or resume an interrupted copy.

    `progress` is told the table, the rows that are there, and those there are to be. Locks are dropped:
    what was held is receivable again. Raises StoreError if the target holds something else, or if what was
    written is not what was read.
    """
    with source.tables() as theirs, target.tables() as ours:
        origin = theirs.meta()
        if theirs.count(_KEEPING):
            raise StoreError("a claim was settled just now: stop all users of the store, and copy again")
        _refuse(ours, origin["store_id"])
        ours.finish({COPYING: origin["store_id"]})
        copied = []
        for table in TABLES:
            columns = [name for name in ours.columns(table) if name in theirs.columns(table)]
            _copy_table(theirs, ours, table, columns, ours.last(table), progress)
            expected, got = _digest(theirs, table, columns), _digest(ours, table, columns)
            if expected != got:
                # The source has changed since the copy was interrupted.
                ours.clear(table)
                _copy_table(theirs, ours, table, columns, None, progress)
                got = _digest(ours, table, columns)
            if expected != got:
                raise StoreError(
                    f"{table.name}: expected {expected.rows} rows with the hash {expected.sha256[:12]}…, got "
                    f"{got.rows} with {got.sha256[:12]}…; the copy is not usable, remove it and copy again"
                )
            copied.append(got)
        kept = {name: origin.get(name) for name in _KEPT}
        kept |= {name: value for name, value in origin.items() if name.startswith(SIGNING)}
        ours.finish({**kept, COPYING: None})
        return copied


def _refuse(ours: Tables, store_id: str) -> None:
    begun = ours.meta().get(COPYING)
    if begun == store_id:
        return
    if begun is not None:
        raise StoreError(
            "the target holds an unfinished copy of another store; remove it, or name another one"
        )
    if any(ours.count(table) for table in TABLES):
        raise StoreError("the target is not empty; name a store that does not exist yet")


def _copy_table(
    theirs: Tables,
    ours: Tables,
    table: Table,
    columns: Sequence[str],
    after: Row | None,
    progress: Callable[[str, int, int], None],
) -> None:
    there = theirs.count(table)
    count = ours.count(table) if after is not None else 0
    progress(table.name, count, there)
    for rows in _chunks(theirs, table, columns, after):
        ours.insert(table, columns, rows)
        count += len(rows)
        progress(table.name, count, there)


def _chunks(tables: Tables, table: Table, columns: Sequence[str], after: Row | None) -> Iterator[list[Row]]:
    places = [columns.index(name) for name in table.key]
    while rows := tables.rows(table, columns, after, _CHUNK):
        after = tuple(rows[-1][place] for place in places)
        yield [free(table.name, columns, row) for row in rows]


def _digest(tables: Tables, table: Table, columns: Sequence[str]) -> Copied:
    digest, count = hashlib.sha256(), 0
    for rows in _chunks(tables, table, columns, None):
        count += len(rows)
        for row in rows:
            digest.update(msgspec.msgpack.encode(row))
    return Copied(table.name, count, digest.hexdigest())


def free(table: str, columns: Sequence[str], row: Row) -> Row:
    """Return a row without the lock that is on it, and as every database can have it."""
    values = dict(zip(columns, row, strict=True))
    for name, value in values.items():
        if isinstance(value, str) and "\0" in value:
            values[name] = value.replace("\0", "\ufffd")
    if table == "lazaretto_messages" and values["state"] == LOCKED:
        if values["deferred"]:
            values |= {"state": DEFERRED, "due": None}
        else:
            values |= {"state": SUSPECT if values["suspect"] else READY, "due": values["expires"]}
    if "lock_token" in values:
        values |= dict.fromkeys(values.keys() & {"lock_token", "locked_at", "locked_until", "locked_by"})
    return tuple(values.values())
