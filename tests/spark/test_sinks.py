"""Where results go: what is visible is what the settled run of each shard wrote, once, whoever dies."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers import new_store

from lazaretto import Broker, InvalidOption, Message
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.claims.settle_claims import staged_rows
from lazaretto.spark import DatabaseResults, DeltaResults, IcebergResults, process
from lazaretto.spark.parquet_results import ParquetResults
from lazaretto.spark.pipeline import begin_results
from lazaretto.spark.results import ResultOwner, Results
from lazaretto.spark.sink import SettlingSink
from lazaretto.spark.source_options import parse
from lazaretto.spark.task_errors import Outage

from .driver import Told

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning"
)

SOAK = "LAZARETTO_SOAK" in os.environ
SCHEMA = pa.schema([("sequence_number", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
KINDS = ("parquet", "delta", "iceberg", "database")
#: The same with options of its file system, in a folder with a space; a table on a server.
MORE_KINDS = ("delta with options", "iceberg with a space", "server")


class Place:
    """A place for results of one kind, and what readers find in it."""

    def __init__(self, kind: str, folder: Path, server: str = "") -> None:
        self.server = server
        self.storage: dict[str, str] | None = {} if kind == "delta with options" else None
        if " " in kind:
            folder = folder / "my folder"
            folder.mkdir()
            kind = kind.split()[0]
        if server:
            kind = "database"
        self.kind = kind
        self.at = folder / kind
        self.file = folder / "results.db"
        self.catalog = {
            "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse",
        }  # fmt: skip
        if kind == "iceberg":
            from pyiceberg.catalog import load_catalog

            (folder / "warehouse").mkdir()
            load_catalog("tests", **self.catalog).create_namespace("shop")
        if kind == "database":
            self.sql("CREATE TABLE results (claim BIGINT, sequence_number BIGINT, n BIGINT, text VARCHAR)")

    def sql(self, text: str) -> list[Any]:
        if self.server:
            with psycopg.connect(self.server) as server:
                done = server.execute(text)
                return done.fetchall() if done.description else []
        with contextlib.closing(sqlite3.connect(self.file)) as connection, connection:
            return connection.execute(text).fetchall()

    def sink(self, consumer: int = 1) -> Any:
        owner = ResultOwner("store", "work", "spark", consumer)
        sink = self.new().owned_by(owner)
        return sink if self.kind == "parquet" else sink.prepared(SCHEMA)

    def new(self) -> Any:
        match self.kind:
            case "parquet":
                return ParquetResults(str(self.at))
            case "delta":
                return DeltaResults(str(self.at), self.storage)
            case "iceberg":
                return IcebergResults("shop.orders", "tests", **self.catalog)
            case _ if self.server:
                return DatabaseResults(functools.partial(psycopg.connect, self.server), "results", "pyformat")
            case _:
                return DatabaseResults(functools.partial(sqlite3.connect, str(self.file)), "results")

    def rows(self) -> list[tuple[Any, ...]]:
        """Return claim, number and text of what readers see."""
        if self.kind == "database":
            return sorted(self.sql("SELECT claim, sequence_number, text FROM results"))
        if self.kind == "parquet":
            found = [
                (int(file.parent.name[6:]), row["sequence_number"], row["text"])
                for file in self.at.glob("claim=*/part-*.parquet")
                for row in pq.read_table(file, partitioning=None).to_pylist()
            ]
            return sorted(found)
        if self.kind == "delta":
            from deltalake import DeltaTable

            table = pa.table(DeltaTable(self.at).to_pyarrow_table())
        else:
            from pyiceberg.catalog import load_catalog

            table = load_catalog("tests", **self.catalog).load_table("shop.orders").scan().to_arrow()
        return sorted((row["claim"], row["sequence_number"], row["text"]) for row in table.to_pylist())


@pytest.fixture(params=[*KINDS, *MORE_KINDS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param != "server":
        yield Place(request.param, tmp_path)
        return
    with new_store(request.getfixturevalue("postgres").url) as found:
        yield Place("server", tmp_path, re.sub("schema=[^&]*&", "", found))


def write(sink: Any, claim: int, stage: str, *numbers: int, shard: int = 0) -> None:
    part = sink.open_stage(SCHEMA, claim, shard, stage)
    rows = [{"sequence_number": n, "n": n, "text": stage} for n in numbers]
    part.write(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    part.close()


def test_only_what_the_settled_run_wrote_is_seen_and_once(place: Place) -> None:
    sink = place.sink()
    # Two attempts of a shard at the same time, with different outcomes; the second is settled.
    write(sink, 1, "aa", 1, 2, 3)
    write(sink, 1, "bb", 1, 2)
    write(sink, 1, "cc", 7, shard=1)
    assert place.rows() == []
    sink.publish(1, ["bb", "cc"])
    seen = [(1, 1, "bb"), (1, 2, "bb"), (1, 7, "cc")]
    assert place.rows() == seen
    for _ in range(2):
        # A replay, by a driver that does not know; the first attempt wakes up and writes again.
        write(place.sink(), 1, "aa", 1, 2, 3)
        place.sink().publish(1, ["bb", "cc"])
        assert place.rows() == seen
    # A stage without rows, and one that wrote nothing at all.
    write(sink, 2, "dd")
    sink.publish(2, ["dd", "ee"])
    write(sink, 3, "ff", 9)
    sink.publish(3, ["ff"])
    assert place.rows() == [*seen, (3, 9, "ff")]


def test_a_revoked_claim_leaves_nothing(place: Place) -> None:
    sink = place.sink()
    sink.remove(1)
    write(sink, 1, "aa", 1)
    sink.remove(1)
    sink.publish(1, ["aa"])
    write(sink, 2, "bb", 1)
    sink.publish(2, ["bb"])
    assert place.rows() == [(2, 1, "bb")]


@pytest.mark.parametrize("place", KINDS[1:], indirect=True)
def test_several_consumers_share_a_table(place: Place) -> None:
    for consumer in (1, 2):
        write(place.sink(consumer), 1, f"a{consumer}", consumer)
    for consumer in (2, 1):
        place.sink(consumer).publish(1, [f"a{consumer}"])
    assert place.rows() == [(1, 1, "a1"), (1, 2, "a2")]


def race(place: Place, step: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something after a driver has looked whether the table has a claim, and before it commits."""
    left = [step]

    def first() -> None:
        if left:
            left.pop()()

    if place.kind == "delta":
        from deltalake import DeltaTable

        commit = DeltaTable.create_write_transaction

        def slow(self: Any, *args: Any, **named: Any) -> Any:
            first()
            return commit(self, *args, **named)

        monkeypatch.setattr(DeltaTable, "create_write_transaction", slow)
    elif place.kind == "iceberg":
        from pyiceberg.table import Transaction

        add = Transaction.add_files

        def slow_add(self: Any, *args: Any, **named: Any) -> Any:
            add(self, *args, **named)
            first()

        monkeypatch.setattr(Transaction, "add_files", slow_add)


@pytest.mark.parametrize("place", KINDS[1:3], indirect=True)
def test_of_two_drivers_that_publish_at_once_one_does(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = place.sink()
    write(sink, 1, "aa", 1)
    race(place, lambda: place.sink().publish(1, ["aa"]), monkeypatch)
    sink.publish(1, ["aa"])
    assert place.rows() == [(1, 1, "aa")]
    # Whoever else writes to the table does not keep a claim from being committed.
    write(sink, 2, "bb", 2)
    write(place.sink(2), 1, "cc", 3)
    race(place, lambda: place.sink(2).publish(1, ["cc"]), monkeypatch)
    sink.publish(2, ["bb"])
    assert place.rows() == [(1, 1, "aa"), (1, 3, "cc"), (2, 2, "bb")]


DATABASE = """\
import functools, os, signal, sqlite3, sys
import pyarrow as pa
from lazaretto.spark import DatabaseResults
from lazaretto.spark.results import ResultOwner

file, after = sys.argv[1], int(sys.argv[2])
done = 0

class Cursor(sqlite3.Cursor):
    def execute(self, *args):
        global done
        done += 1
        if done > after:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(*args)

class Connection(sqlite3.Connection):
    def cursor(self):
        return super().cursor(Cursor)

schema = pa.schema([("sequence_number", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
sink = DatabaseResults(functools.partial(sqlite3.connect, file, factory=Connection), "results")
sink = sink.owned_by(ResultOwner("store", "work", "spark", 1)).prepared(schema)
sink.publish(1, ["aa"])
"""


def test_a_driver_that_dies_within_a_transaction_of_the_database(tmp_path: Path) -> None:
    place = Place("database", tmp_path)
    write(place.sink(), 1, "aa", 1, 2)
    died = 0
    for after in range(20):
        done = subprocess.run([sys.executable, "-c", DATABASE, str(place.file), str(after)])
        if done.returncode == 0:
            break
        died += 1
        assert place.rows() == []
    # It dies before each statement that prepares the three tables, or publishes.
    assert died == 10
    assert place.rows() == [(1, 1, "aa"), (1, 2, "aa")]
    assert place.sql("SELECT count(*) FROM results_staged") == [(0,)]


def test_one_object_serves_several_consumers(tmp_path: Path) -> None:
    place = Place("database", tmp_path)
    one = place.new()
    sinks = [one.owned_by(ResultOwner("store", "work", "spark", n)).prepared(SCHEMA) for n in (1, 2)]
    for n, sink in enumerate(sinks, 1):
        write(sink, 1, f"a{n}", n)
    for n, sink in enumerate(sinks, 1):
        sink.publish(1, [f"a{n}"])
    assert place.rows() == [(1, 1, "a1"), (1, 2, "a2")]


def test_the_last_claim_that_is_published_is_known(place: Place) -> None:
    sink = place.sink()
    assert sink.published() == 0
    write(sink, 7, "aa", 1)
    assert sink.published() == 0
    sink.publish(7, ["aa"])
    assert place.sink().published() == 7
    if place.kind != "parquet":
        assert place.sink(2).published() == 0


@pytest.mark.parametrize("place", ["database", "server"], indirect=True)
def test_columns_of_a_database_have_any_names(place: Place) -> None:
    place.sql('ALTER TABLE results ADD COLUMN "who? 100%s ""really""" VARCHAR')
    schema = SCHEMA.append(pa.field('who? 100%s "really"', pa.string()))
    sink = place.new().owned_by(ResultOwner("store", "work", "spark", 1)).prepared(schema)
    part = sink.open_stage(schema, 1, 0, "aa")
    part.write(pa.record_batch([[1], [2], ["x"], ["me"]], schema=schema))
    part.close()
    sink.publish(1, ["aa"])
    assert place.sql("SELECT * FROM results") == [(1, 1, 2, "x", "me")]


@pytest.mark.parametrize("place", ["database", "server"], indirect=True)
def test_a_database_that_lacks_a_column_is_refused(place: Place) -> None:
    owner, wider = ResultOwner("store", "work", "spark", 1), SCHEMA.append(pa.field("more", pa.int64()))
    place.sink()
    with pytest.raises(InvalidOption, match=r"need a table 'results' with the columns .* more"):
        place.new().owned_by(owner).prepared(wider)
    # The user adds the column, and the table beside theirs is of the earlier schema.
    place.sql("ALTER TABLE results ADD COLUMN more BIGINT")
    with pytest.raises(InvalidOption, match=r"'results_staged', which an earlier schema .* ALTER TABLE"):
        place.new().owned_by(owner).prepared(wider)
    place.sql("ALTER TABLE results_staged ADD COLUMN more BIGINT")
    with pytest.raises(InvalidOption, match=r"'results_refused', which an earlier schema .* ALTER TABLE"):
        place.new().owned_by(owner).prepared(wider)
    place.sql("ALTER TABLE results_refused ADD COLUMN more BIGINT")
    place.new().owned_by(owner).prepared(wider)


@pytest.mark.parametrize("place", ["parquet", "delta", "iceberg"], indirect=True)
def test_a_task_that_sees_another_place_writes_nothing(place: Place, tmp_path: Path) -> None:
    sink = place.sink()
    results = Results(sink, pa.schema(list(SCHEMA)[1:]), 1, 0, "aa")
    place_of = tmp_path / "warehouse" if place.kind == "iceberg" else place.at
    place_of.rename(tmp_path / "elsewhere")
    with pytest.raises(Outage, match="does not see the place of results"):
        results.close()
    assert not place_of.exists()


@pytest.mark.parametrize(
    ("kind", "text"),
    [("delta", "column 'n' is .*string"), ("iceberg", "no column 'text'"), ("database", "need a table")],
)
def test_a_table_that_does_not_fit_is_refused(kind: str, text: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path)
    other = pa.schema([("sequence_number", pa.int64()), ("n", pa.string())])
    owner = ResultOwner("store", "work", "spark", 1)
    if kind == "database":
        place.sql("ALTER TABLE results RENAME TO others")
    else:
        place.new().owned_by(owner).prepared(other)
    with pytest.raises(InvalidOption, match=text):
        place.sink()
    if kind != "database":
        with pytest.raises(InvalidOption, match="the sink's own"):
            place.new().owned_by(owner).prepared(pa.schema([*SCHEMA, ("claim", pa.int64())]))


def take(consumer: ClaimConsumer, sink: Any, claim: int) -> Told:
    """Take a claim of one message and stage that it is completed, with a result; return what is told."""
    assert consumer.take(claim - 1, max_rows=1) == claim
    ((_, shard),) = consumer.shards(claim - 1, claim)
    stage = f"stage{claim}"
    write(sink, claim, stage, claim)
    consumer.stage(stage, staged_rows(shard.token, [shard.first], [], {}))
    row = dict.fromkeys(("origins", "began", "ended")) | {"queue": "work", "rows": 1}
    return Told([row | {"claim": claim, "epoch": consumer.epoch, "shard": shard.token, "stage": stage}])


def test_a_claim_that_was_settled_just_before_a_driver_took_over_is_published(
    place: Place, broker: Broker, url: str
) -> None:
    broker.sender("work").send([Message(b"1"), Message(b"2")])
    options = parse({"store": url, "queue": "work"})
    first, second = (ClaimConsumer(broker._store, "work", "spark") for _ in range(2))
    first.attach()
    told = take(first, place.sink(), 1)
    # The second one looks what there is to publish; then the first settles, and dies before it publishes.
    begin_results(place.sink(), options)
    first.settle([1], [told.collect()[0]["stage"]])
    second.attach()
    sink = place.sink()
    SettlingSink({"work": (options, sink)})(cast(Any, take(second, sink, 2)), 0)
    assert place.rows() == [(1, 1, "stage1"), (2, 2, "stage2")]


def test_a_store_that_is_older_than_its_results_is_refused(place: Place, broker: Broker, url: str) -> None:
    sink = place.sink()
    write(sink, 5, "aa", 1)
    sink.publish(5, ["aa"])
    with pytest.raises(InvalidOption, match=r"the results have claim 5 .*, and the store only 0"):
        begin_results(sink, parse({"store": url, "queue": "work"}))


# -- on Spark --------------------------------------------------------------------------------------


def act(message: Any) -> Any:
    if message.body == b"raise":
        raise ValueError("no")
    return {"n": int(message.body), "text": "x"}


def run(spark: Any, url: str, place: Place, folder: Path, **options: Any) -> None:
    process(
        spark, act, store=url, queue="work", checkpoint=str(folder / "check"), results=place.new(),
        schema="n bigint, text string", max_rows=20, breaker=None, **options,
    ).awaitTermination()  # fmt: skip


@pytest.mark.parametrize("place", KINDS[1:] if SOAK else KINDS[1:2], indirect=True)
def test_a_pipeline_writes_to_it(
    spark: Any, broker: Broker, url: str, tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.sender("work").send([Message(b"%d" % n) for n in range(30)] + [Message(b"raise")])
    run(spark, url, place, tmp_path)
    assert [(claim, number) for claim, number, _ in place.rows()] == [
        (1 if n <= 20 else 2, n) for n in range(1, 31)
    ]
    # The driver dies when a claim is settled, and nobody has published it; its checkpoint is lost, too.
    broker.sender("work").send([Message(b"7")])
    monkeypatch.setattr(type(place.new()), "publish", _die)
    with pytest.raises(Exception, match="the driver dies"):
        run(spark, url, place, tmp_path)
    monkeypatch.undo()
    assert len(place.rows()) == 30
    (tmp_path / "check").rename(tmp_path / "lost")
    run(spark, url, place, tmp_path)
    assert place.rows()[-1] == (3, 32, "x")
    assert len(place.rows()) == 31
    sink = place.new().owned_by(ResultOwner("", "", "", _identity(broker)))
    assert (sink if place.kind == "delta" else sink.prepared(SCHEMA)).published() == 3


def _identity(broker: Broker) -> int:
    return ClaimConsumer(broker._store, "work", "spark").identify()


def _die(self: Any, claim: int, stages: Any) -> None:
    raise RuntimeError("the driver dies")
