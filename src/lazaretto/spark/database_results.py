"""Results in a table of a database, by a driver of Python's DB-API: each claim is one transaction, once."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown
from lazaretto.spark.results import ResultOwner, ResultPart, ResultsRefused
from lazaretto.spark.task_errors import Outage, is_of_place

_log = logging.getLogger(__name__)
#: How a parameter is written, by the driver's paramstyle.
_MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s"}
#: Tables beside the user's that have its columns, and a column of their own.
_BESIDE = {"_staged": "stage", "_refused": "error"}
#: Stands for a parameter until then: no name has it.
_VALUE = "\0"


class DatabaseResults:
    """A table in SQLite or PostgreSQL, with the columns `sequence_number`, `claim` and the schema's.

    The table must be there.
    `connect`: a function that returns a connection of the DB-API, which is sent to the tasks, such as
    `functools.partial(psycopg.connect, "service=shop")`. `paramstyle`: of the driver: "qmark" (sqlite3), or
    "format" or "pyformat" (psycopg). Beside the table are three more, which the sink creates: `TABLE_staged`
    has the rows of claims that are not settled, `TABLE_claims` one row for each claim that the table has,
    and `TABLE_refused` rows that the table refused only when their claim was settled already, with the error.
    A result that the table or a constraint refuses before fails its message.
    """

    refuses = True

    def __init__(self, connect: Callable[[], Any], table: str, paramstyle: str = "qmark") -> None:
        if paramstyle not in _MARKS:
            raise InvalidOption(
                f"expected paramstyle to be one of {', '.join(_MARKS)}, got {shown(paramstyle)}"
            )
        self._connect, self._table, self._mark = connect, table, _MARKS[paramstyle]
        self._owner = ""
        self._columns: list[str] = []

    def owned_by(self, owner: ResultOwner) -> Self:
        """Return the sink for one consumer's results. A table may have those of several."""
        return self._copied(_owner=owner.key)

    def _copied(self, **changes: Any) -> Self:
        copied = copy.copy(self)
        copied.__dict__.update(changes)
        return copied

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Yield a cursor; commit what it did, or roll it back."""
        with contextlib.closing(self._connect()) as connection:
            try:
                with contextlib.closing(connection.cursor()) as cursor:
                    yield cursor
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

    def prepared(self, schema: pa.Schema) -> Self:
        """Return the sink for results of a schema. Raises InvalidOption: the table has no such columns."""
        number, *others = schema.names
        columns = [_quoted(name) for name in (number, "claim", *others)]
        # By the table: where there is no such column, SQLite takes a name in quotes alone for a text.
        listed, table = ", ".join(f"r.{name}" for name in columns), self._table
        try:
            with self._transaction() as cursor:
                cursor.execute(f"SELECT {listed} FROM {table} r WHERE 1 = 0")  # noqa: S608 - the user's table
        except Exception as error:
            raise InvalidOption(
                f"the results need a table {table!r} with the columns {', '.join(schema.names)} and claim: "
                f"{type(error).__name__}: {error}"
            ) from error
        try:
            self._create(listed)
        except Exception:
            # Two drivers at once: PostgreSQL may refuse what one creates while the other does.
            self._create(listed)
        for beside, own in _BESIDE.items():
            try:
                with self._transaction() as cursor:
                    cursor.execute(f"SELECT r.consumer, r.{own}, {listed} FROM {table}{beside} r WHERE 1 = 0")  # noqa: S608
            except Exception as error:
                raise InvalidOption(
                    f"the table {table + beside!r}, which an earlier schema of results has made, lacks one "
                    f"of the columns {', '.join(schema.names)}: add it there too, with ALTER TABLE "
                    f"({type(error).__name__}: {error})"
                ) from error
        return self._copied(_columns=columns)

    def _create(self, listed: str) -> None:
        """Create the tables beside the user's, unless they are there."""
        table = self._table
        with self._transaction() as cursor:
            for beside, own in _BESIDE.items():
                cursor.execute(
                    f"CREATE TABLE IF NOT EXISTS {table}{beside} AS "  # noqa: S608
                    f"SELECT 'x' AS consumer, 'x' AS {own}, {listed} FROM {table} r WHERE 1 = 0"
                )
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {table}_claims "
                "(consumer VARCHAR(16), claim BIGINT, PRIMARY KEY (consumer, claim))"
            )

    @property
    def _published(self) -> str:
        """Return what is selected of a staged row for the table: rows of a source have no number there."""
        number, *others = self._columns
        return ", ".join([f"CASE WHEN {number} < 0 THEN NULL ELSE {number} END", *others])

    def _marked(self, sql: str) -> str:
        """Return a statement with its parameters as the driver wants them."""
        if self._mark == "%s":
            sql = sql.replace("%", "%%")
        return sql.replace(_VALUE, self._mark)

    def _run(self, cursor: Any, sql: str, *values: object) -> Any:
        cursor.execute(self._marked(sql), values)
        return cursor

    def published(self) -> int:
        """Return the last claim that the table has, 0 if it has none."""
        query = f"SELECT max(claim) FROM {self._table}_claims WHERE consumer = {_VALUE}"  # noqa: S608
        with self._transaction() as cursor:
            (last,) = self._run(cursor, query, self._owner).fetchone()
        return max(0, last or 0)

    def open_stage(self, schema: pa.Schema, claim: int, shard: int, stage: str) -> ResultPart:
        """Return where the results of one run of a shard go: rows that are not in the table yet."""
        return _DatabasePart(self, claim, stage)

    def stage(self, claim: int, stage: str, batch: pa.RecordBatch) -> None:
        """Store some rows of one run of a shard."""
        marks = ", ".join([_VALUE] * (len(self._columns) + 2))
        columns = ", ".join(self._columns)
        sql = f"INSERT INTO {self._table}_staged (consumer, stage, {columns}) VALUES ({marks})"  # noqa: S608
        number, *others = (column.to_pylist() for column in batch.columns)
        rows = [(self._owner, stage, key, claim, *more) for key, *more in zip(number, *others, strict=True)]
        self._insert(sql, rows, keep=True)

    def _insert(self, sql: str, rows: Sequence[tuple[Any, ...]], *, keep: bool) -> None:
        """Insert all rows, or none. Raises ResultsRefused, Outage. `keep`: else none is kept in any case."""
        sql = self._marked(sql)
        try:
            with self._transaction() as cursor:
                cursor.executemany(sql, rows)
                if not keep:
                    raise _NotKept
            return
        except _NotKept:
            return
        except Exception as error:
            _raise_unless_refusal(error)
        refused: dict[int, BaseException] = {}
        with contextlib.suppress(_NotKept), self._transaction() as cursor:
            # Begins a transaction: SQLite would commit where the outermost savepoint ends.
            cursor.execute(f"DELETE FROM {self._table}_staged WHERE 1 = 0")  # noqa: S608
            _insert_parts(cursor, sql, rows, 0, refused)
            raise _NotKept
        raise ResultsRefused(refused)

    def refused(self, claim: int, stages: Sequence[str]) -> dict[int, BaseException]:
        """Return why the table would refuse results of these stages, by sequence number."""
        table, columns = self._table, ", ".join(self._columns)
        own = f"FROM {table}_staged WHERE consumer = {_VALUE} AND claim = {_VALUE}"
        query = f"SELECT 1 FROM {table}_claims WHERE consumer = {_VALUE} AND claim = {_VALUE}"  # noqa: S608
        try:
            with self._transaction() as cursor:
                if self._run(cursor, query, self._owner, claim).fetchone():
                    return {}
                for stage in stages:
                    copy = (
                        f"INSERT INTO {table} ({columns}) SELECT {self._published} {own} AND stage = {_VALUE}"
                    )
                    self._run(cursor, copy, self._owner, claim, stage)
                if self._mark == "%s":
                    # Those that wait for the commit, too.
                    cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
                raise _NotKept
        except _NotKept:
            return {}
        except Exception as error:
            _raise_unless_refusal(error)
        with self._transaction() as cursor:
            rows = [
                row
                for stage in stages
                for row in self._run(
                    cursor,
                    f"SELECT {columns} {own} AND stage = {_VALUE} ORDER BY 1",
                    self._owner,
                    claim,
                    stage,
                ).fetchall()
            ]
        marks = ", ".join([_VALUE] * len(self._columns))
        try:
            insert = f"INSERT INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608
            self._insert(insert, [_without_own_number(row) for row in rows], keep=False)
        except ResultsRefused as refused:
            return {rows[index][0]: error for index, error in refused.errors.items()}
        return {}

    def forget(self, claim: int, numbers: Sequence[int]) -> None:
        """Take the results of some messages away, which are not published yet."""
        sql = (
            f"DELETE FROM {self._table}_staged WHERE consumer = {_VALUE} AND claim = {_VALUE} "  # noqa: S608
            f"AND {self._columns[0]} = {_VALUE}"
        )
        with self._transaction() as cursor:
            cursor.executemany(self._marked(sql), [(self._owner, claim, number) for number in numbers])

    def begin(self, claim: int) -> None:
        """Note that claims up to this one have nothing here that is not published, unless it was noted."""
        with self._transaction() as cursor:
            query = f"SELECT 1 FROM {self._table}_claims WHERE consumer = {_VALUE}"  # noqa: S608
            if not self._run(cursor, query, self._owner).fetchone():
                sql = f"INSERT INTO {self._table}_claims VALUES ({_VALUE}, {_VALUE})"  # noqa: S608
                # Below the number of every claim.
                self._run(cursor, sql, self._owner, -1 - claim)

    def lost(self, claim: int, results: Mapping[str, int]) -> list[str]:
        """Return what is missing of a claim that was not published yet."""
        table = self._table
        first = f"SELECT min(claim) FROM {table}_claims WHERE consumer = {_VALUE}"  # noqa: S608
        query = f"SELECT 1 FROM {table}_claims WHERE consumer = {_VALUE} AND claim = {_VALUE}"  # noqa: S608
        count = (
            f"SELECT count(*) FROM {table}_staged "  # noqa: S608
            f"WHERE consumer = {_VALUE} AND claim = {_VALUE} AND stage = {_VALUE}"
        )
        with self._transaction() as cursor:
            (begun,) = self._run(cursor, first, self._owner).fetchone()
            if (
                begun is None
                or claim <= -1 - begun
                or self._run(cursor, query, self._owner, claim).fetchone()
            ):
                return []
            counts = {
                stage: self._run(cursor, count, self._owner, claim, stage).fetchone()[0] for stage in results
            }
        return [
            f"{rows - counts[stage]} of {rows} rows of stage {stage!r} in {table}_staged"
            for stage, rows in results.items()
            if counts[stage] < rows
        ]

    def publish(self, claim: int, stages: Sequence[str]) -> None:
        """Move a claim's rows to the table, unless it has them."""
        table, key = self._table, (self._owner, claim)
        of_claim = f"WHERE consumer = {_VALUE} AND claim = {_VALUE}"
        query = f"SELECT 1 FROM {table}_claims {of_claim}"  # noqa: S608
        columns = ", ".join(self._columns)
        try:
            with self._transaction() as cursor:
                # The key makes the claim one of the table's, once, whoever publishes.
                if self._run(cursor, query, *key).fetchone():
                    return
                self._run(cursor, f"INSERT INTO {table}_claims VALUES ({_VALUE}, {_VALUE})", *key)  # noqa: S608
                for stage in stages:
                    self._run(
                        cursor,
                        f"INSERT INTO {table} ({columns}) SELECT {self._published} FROM {table}_staged "  # noqa: S608
                        f"{of_claim} AND stage = {_VALUE}",
                        *key,
                        stage,
                    )
                self._forget(cursor, claim)
        except Exception as error:
            with self._transaction() as cursor:
                if self._run(cursor, query, *key).fetchone():
                    return
            if _is_of_table(error):
                raise
            self._publish_each(claim, stages)

    def _publish_each(self, claim: int, stages: Sequence[str]) -> None:
        """Do the same row by row, and keep apart those that the table refuses.

        It took them when the claim was settled, so somebody has changed it since. Their messages are settled.
        """
        table, columns = self._table, ", ".join(self._columns)
        marks = ", ".join([_VALUE] * len(self._columns))
        staged = (
            f"SELECT {columns} FROM {table}_staged WHERE consumer = {_VALUE} AND claim = {_VALUE} "  # noqa: S608
            f"AND stage = {_VALUE} ORDER BY 1"
        )
        refused: dict[int, BaseException] = {}
        with self._transaction() as cursor:
            if self._mark == "%s":
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            claims = f"INSERT INTO {table}_claims VALUES ({_VALUE}, {_VALUE})"  # noqa: S608
            self._run(cursor, claims, self._owner, claim)
            rows = [
                _without_own_number(row)
                for stage in stages
                for row in self._run(cursor, staged, self._owner, claim, stage).fetchall()
            ]
            insert = self._marked(f"INSERT INTO {table} ({columns}) VALUES ({marks})")  # noqa: S608
            _insert_parts(cursor, insert, rows, 0, refused)
            keep = (
                f"INSERT INTO {table}_refused (consumer, error, {columns}) "  # noqa: S608
                f"VALUES ({_VALUE}, {_VALUE}, {marks})"
            )
            for place, error in refused.items():
                self._run(cursor, keep, self._owner, f"{type(error).__name__}: {error}", *rows[place])
            self._forget(cursor, claim)
        for place, error in refused.items():
            _log.error(
                "the result of message %s is in %s_refused: %r took it when claim %d was settled, not "
                "any more: %s", rows[place][0], table, table, claim, error,
            )  # fmt: skip

    def remove(self, claim: int) -> None:
        """Remove the rows of a revoked claim: the table has none of them."""
        with self._transaction() as cursor:
            self._forget(cursor, claim)

    def _forget(self, cursor: Any, claim: int) -> None:
        sql = f"DELETE FROM {self._table}_staged WHERE consumer = {_VALUE} AND claim = {_VALUE}"  # noqa: S608
        self._run(cursor, sql, self._owner, claim)


class _DatabasePart:
    """Stores the rows of one run of a shard. No transaction is open while a handler runs."""

    def __init__(self, sink: DatabaseResults, claim: int, stage: str) -> None:
        self._sink, self._claim, self._stage = sink, claim, stage

    def write(self, batch: pa.RecordBatch) -> None:
        self._sink.stage(self._claim, self._stage, batch)

    def close(self) -> None:
        return


class _NotKept(Exception):
    """Ends a transaction that only looks what would happen."""


def _insert_parts(
    cursor: Any, sql: str, rows: Sequence[tuple[Any, ...]], first: int, refused: dict[int, BaseException]
) -> None:
    """Insert what can be inserted, in halves; note why others cannot, by their place."""
    cursor.execute("SAVEPOINT lazaretto_rows")
    try:
        cursor.executemany(sql, rows)
    except Exception as error:
        _raise_unless_refusal(error)
        cursor.execute("ROLLBACK TO SAVEPOINT lazaretto_rows")
        cursor.execute("RELEASE SAVEPOINT lazaretto_rows")
        if len(rows) == 1:
            refused[first] = error
            return
        half = len(rows) // 2
        _insert_parts(cursor, sql, rows[:half], first, refused)
        _insert_parts(cursor, sql, rows[half:], first + half, refused)
        return
    cursor.execute("RELEASE SAVEPOINT lazaretto_rows")


def _without_own_number(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a staged row as the table has it: a number below 0 only tells a source's row from others."""
    return (None if row[0] < 0 else row[0], *row[1:])


def _raise_unless_refusal(error: Exception) -> None:
    """Raise Outage if an error is not one of a value: the database or the table is to blame."""
    if _is_of_table(error):
        raise Outage(f"results cannot be written ({type(error).__name__}: {error})") from error


def _is_of_table(error: Exception) -> bool:
    kinds = {one.__name__ for one in type(error).__mro__}
    # SQLite's module says so of a value that it has no type for, others of a table that is not there.
    of_table = "ProgrammingError" in kinds and type(error).__module__ != "sqlite3"
    return is_of_place(error) or of_table or "NotSupportedError" in kinds


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
