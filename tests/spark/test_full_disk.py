"""The place where results go is full, or gone: the query ends, no message is charged, and nothing is lost."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pytest

from lazaretto import Broker, Message, SystemicFailure
from lazaretto.spark import process
from lazaretto.spark.parquet_results import FilePart, ParquetResults
from lazaretto.spark.results import ResultOwner, ResultPart
from lazaretto.spark.task_errors import is_of_place

from .acts import act
from .driver import Driver, seen

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)
COUNT = 12


class FullDisk(ParquetResults):
    """A folder on a disk that is full while a file stands there."""

    def __init__(self, root: str, mark: Path, owner: ResultOwner | None = None) -> None:
        super().__init__(root, owner)
        self._disk, self._mark = root, mark

    def owned_by(self, owner: ResultOwner) -> FullDisk:
        super().owned_by(owner)
        return FullDisk(self._disk, self._mark, owner)

    def open_stage(self, schema: pa.Schema, claim: int, shard: int, stage: str) -> ResultPart:
        part = super().open_stage(schema, claim, shard, stage)
        # A device that answers each write as a full disk does.
        return FilePart(pyarrow.fs.LocalFileSystem(), "/dev/full", schema) if self._mark.exists() else part


def files(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(f"claim=*/{pattern}"))


def test_a_full_disk_charges_nothing_however_often_it_is_tried(
    broker: Broker, url: str, tmp_path: Path
) -> None:
    folder, mark = tmp_path / "results", tmp_path / "full"
    mark.touch()
    numbers = broker.sender("work").send([Message(b"%d" % n) for n in range(COUNT)])
    for attempt in range(6):
        # More starts than a message may have deaths.
        driver = Driver(broker, url, folder, sink=FullDisk(str(folder), mark))
        claim = driver.take()
        assert claim == attempt + 1
        if attempt % 2:
            # As after a death: now messages are noted one at a time, and one of them might be blamed.
            ((_, shard),) = driver.consumer.shards(claim - 1, claim)
            driver.consumer.start(shard.token, "a task")
        told = driver.attempt(claim, act)
        with pytest.raises(SystemicFailure, match=r"results cannot be written \(OSError: .*No space left"):
            driver.settle(told)
        assert broker.queue("work").counts.active == COUNT
        assert {m.delivery_count for m in broker.peek("work", COUNT)} == {0}
        assert not files(folder, "*")
    mark.unlink()
    driver = Driver(broker, url, folder, sink=FullDisk(str(folder), mark))
    claim = driver.take()
    assert claim is not None
    driver.settle(driver.attempt(claim, act))
    assert [number for number, _ in seen(folder)] == numbers
    assert broker.queue("work").counts.total == 0


def test_a_query_on_a_full_disk_ends_with_one_sentence(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    folder, mark = tmp_path / "results", tmp_path / "full"
    mark.touch()
    broker.sender("work").send([Message(b"%d" % n) for n in range(COUNT)])

    def start() -> Any:
        return process(
            spark, act, store=url, queue="work", checkpoint=str(tmp_path / "checkpoint"),
            results=FullDisk(str(folder), mark), schema="n bigint, text string",
        )  # fmt: skip

    with pytest.raises(Exception, match=r"results cannot be written \(OSError: .*were released"):
        start().awaitTermination()
    assert broker.queue("work").counts.active == COUNT
    assert not files(folder, "*")
    mark.unlink()
    start().awaitTermination()
    assert len(seen(folder)) == COUNT
    assert broker.queue("work").counts.total == 0


class Table:
    """Results in a table, visible when a shard is done; the database fails with a shard's second claim."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def owned_by(self, owner: ResultOwner) -> Table:
        return self

    def open(self, schema: pa.Schema, claim: int, shard: int) -> ResultPart:
        return TablePart(self.path, claim)

    def remove(self, claim: int) -> None:
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("DELETE FROM results WHERE claim = ?", (claim,))


class TablePart:
    def __init__(self, path: Path, claim: int) -> None:
        self._path, self._claim = path, claim
        self._numbers: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._numbers += batch.column("sequence_number").to_pylist()

    def close(self) -> None:
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            rows = [(self._claim, number) for number in self._numbers]
            connection.executemany("INSERT INTO results VALUES (?, ?)", rows)


def test_results_of_a_claim_that_is_revoked_behind_a_dead_driver_go_at_the_next_start(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    table = Table(tmp_path / "results.db")
    with contextlib.closing(sqlite3.connect(table.path)) as connection:
        connection.execute("CREATE TABLE results (claim INTEGER, number INTEGER)")
    numbers = broker.sender("work").send([Message(b"%d" % n) for n in range(COUNT)])
    # Its results are there, and it dies before it settles.
    driver = Driver(broker, url, tmp_path, sink=table)
    claim = driver.take()
    assert claim is not None
    driver.attempt(claim, act)
    broker.revoke_claim("work", "spark", claim)
    process(
        spark, act, store=url, queue="work", checkpoint=str(tmp_path / "checkpoint"),
        results=table, schema="n bigint, text string",
    ).awaitTermination()  # fmt: skip
    with contextlib.closing(sqlite3.connect(table.path)) as connection:
        found = connection.execute("SELECT number FROM results ORDER BY number").fetchall()
    assert found == [(number,) for number in numbers]


def test_which_errors_are_of_the_place_and_which_of_a_result() -> None:
    class OperationalError(Exception):
        pass

    class DiskFull(OperationalError):
        pass

    class DataError(Exception):
        pass

    assert all(map(is_of_place, [OSError(28, "full"), ConnectionError(), DiskFull()]))
    assert not any(map(is_of_place, [DataError(), ValueError(), pa.ArrowInvalid("no")]))
