"""Results that their place refuses fail their message alone; those that are gone are missed, each time."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import lazaretto
from lazaretto import Broker, InvalidOption, Message, PoisonPolicy, PoisonSession, QueueOptions
from lazaretto.errors import SystemicFailure
from lazaretto.spark import DatabaseResults, DeltaResults
from lazaretto.spark.parquet_results import ParquetResults
from lazaretto.spark.pipeline import begin_results
from lazaretto.spark.results import ResultOwner
from lazaretto.spark.sink import SettlingSink

from .driver import SCHEMA, Driver, Told

ROWS = pa.schema([("sequence_number", pa.int64()), *SCHEMA])
TABLE = (
    "CREATE TABLE results (claim BIGINT, sequence_number BIGINT, n BIGINT UNIQUE CHECK (n <> 13), "
    "text VARCHAR(20) NOT NULL)"
)


def tell(message: Any) -> Any:
    text = message.body.decode()
    return {"n": int(text.partition(" ")[0]), "text": None if "null" in text else text.replace("nul", "\0")}


class Table:
    """A table of results, in SQLite or on a server."""

    def __init__(self, url: str, folder: Path) -> None:
        if url.startswith("postgres"):
            self._connect: Any = functools.partial(psycopg.connect, re.sub("schema=[^&]*&?", "", url))
            self._style = "pyformat"
            self.sql("DROP TABLE IF EXISTS results, results_staged, results_claims, results_refused")
        else:
            self._connect = functools.partial(sqlite3.connect, str(folder / "results.db"))
            self._style = "qmark"
        self.sql(TABLE)

    def sql(self, text: str) -> list[Any]:
        with contextlib.closing(self._connect()) as connection, connection:
            done = connection.execute(text)
            return done.fetchall() if done.description else []

    def sink(self) -> Any:
        return DatabaseResults(self._connect, "results", self._style)


class Prepared:
    """A sink that is made ready when it is told whose it is."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def owned_by(self, owner: ResultOwner) -> Any:
        return self._sink.owned_by(owner).prepared(ROWS)


def run(broker: Broker, url: str, folder: Path, sink: Any) -> Driver:
    driver = Driver(broker, url, folder, sink=Prepared(sink))
    begin_results(driver.results, driver.options)
    claim = driver.take()
    assert claim is not None
    driver.settle(driver.attempt(claim, tell))
    return driver


def letters(broker: Broker) -> dict[bytes, str]:
    found = {}
    for letter in broker.dead_letters("work"):
        assert letter.message is not None
        found[letter.message.body] = (letter.error_type or "").rpartition(".")[2]
    return found


@pytest.mark.stores("sqlite", "postgres")
def test_what_the_database_refuses_fails_its_message_alone(broker: Broker, url: str, tmp_path: Path) -> None:
    table = Table(url, tmp_path)
    table.sql("INSERT INTO results VALUES (0, 0, 4, 'there before')")
    good = [b"%d" % n for n in range(100, 120)]
    bad = [b"4", b"13", b"100 again", b"7 null", b"8 nul", b"9 a text that is far too long"]
    for body in [*good, *bad]:
        broker.sender("work").send(Message(body))
    run(broker, url, tmp_path, table.sink())
    served = url.startswith("postgres")
    kinds = dict.fromkeys([b"4", b"100 again"], "UniqueViolation" if served else "IntegrityError")
    kinds |= {b"13": "CheckViolation", b"7 null": "NotNullViolation"} if served else {}
    kinds |= (
        {b"8 nul": "DataError", b"9 a text that is far too long": "StringDataRightTruncation"}
        if served
        else {}
    )
    kinds |= {} if served else dict.fromkeys([b"13", b"7 null"], "IntegrityError")
    assert letters(broker) == kinds
    seen = {n for (n,) in table.sql("SELECT n FROM results")}
    # SQLite knows neither of a NUL nor of a length.
    assert seen == {4, *range(100, 120), *(() if served else (8, 9))}
    assert table.sql("SELECT count(*) FROM results_staged") == [(0,)]
    assert broker.queue("work").counts.active == 0


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.stores("sqlite", "postgres")
def test_a_row_of_others_between_the_check_and_publishing_stops_nothing(
    url: str, tmp_path: Path, deferred: bool
) -> None:
    """Nothing is lost: what the table takes no more is in a table of its own, with the error."""
    table = Table(url, tmp_path)
    if deferred and url.startswith("postgres"):
        table.sql("ALTER TABLE results DROP CONSTRAINT results_n_key")
        table.sql("ALTER TABLE results ADD CONSTRAINT late UNIQUE (n) DEFERRABLE INITIALLY DEFERRED")
    sink = table.sink().owned_by(ResultOwner("store", "work", "c", 7)).prepared(ROWS)
    for claim in (1, 2):
        numbers = [claim * 10 + n for n in range(5)]
        values = [pa.array(numbers), pa.array([100 + n for n in numbers]), pa.array(["text"] * 5)]
        with contextlib.closing(sink.open_stage(ROWS, claim, 0, "s")) as part:
            part.write(pa.record_batch(values, schema=ROWS))
    assert sink.refused(1, ["s"]) == {}
    table.sql("INSERT INTO results VALUES (0, 0, 112, 'of somebody else')")
    for claim in (1, 1, 2):
        sink.publish(claim, ["s"])
    assert {n for (n,) in table.sql("SELECT n FROM results WHERE claim = 1")} == {110, 111, 113, 114}
    assert table.sql("SELECT count(*) FROM results WHERE claim = 2") == [(5,)]
    ((number, n, error),) = table.sql("SELECT sequence_number, n, error FROM results_refused")
    assert (number, n) == (12, 112)
    assert error.startswith("UniqueViolation: " if url.startswith("postgres") else "IntegrityError: ")
    assert (sink.published(), table.sql("SELECT count(*) FROM results_staged")) == (2, [(0,)])


def test_a_session_waits_behind_a_result_that_is_refused(broker: Broker, url: str, tmp_path: Path) -> None:
    table = Table(url, tmp_path)
    broker.delete_queue("work")
    policy = PoisonPolicy(receive_retry_count=0)
    options = QueueOptions(requires_session=True, on_poison_session=PoisonSession.BLOCK, policy=policy)
    broker.create_queue("work", options)
    for session, body in [
        ("a", b"1"),
        ("a", b"13"),
        ("b", b"2"),
        ("a", b"3"),
        ("b", b"4"),
        ("c", b"2 again"),
    ]:
        broker.sender("work").send(Message(body, session_id=session))
    run(broker, url, tmp_path, table.sink())
    assert [held.session_id for held in broker.held_sessions("work")] == ["a", "c"]
    assert table.sql("SELECT n FROM results ORDER BY n") == [(1,), (2,), (4,)]
    assert [message.body for message in broker.peek("work", 9)] == [b"13", b"3", b"2 again"]


def test_a_table_that_is_gone_is_an_outage(broker: Broker, url: str, tmp_path: Path) -> None:
    table = Table(url, tmp_path)
    broker.sender("work").send([Message(b"1"), Message(b"2")])
    driver = Driver(broker, url, tmp_path, sink=Prepared(table.sink()))
    claim = driver.take()
    assert claim is not None
    told = driver.attempt(claim, tell)
    table.sql("DROP TABLE results")
    with pytest.raises(SystemicFailure, match="results cannot be written"):
        driver.settle(told)
    assert (broker.queue("work").counts.active, letters(broker)) == (2, {})


@pytest.mark.parametrize("kind", ["parquet", "delta", "database"])
def test_results_that_were_removed_before_they_were_published_are_missed(
    broker: Broker, url: str, tmp_path: Path, kind: str
) -> None:
    table = Table(url, tmp_path)
    folder = tmp_path / "results"
    sink: Any = {
        "parquet": ParquetResults(str(folder)), "delta": DeltaResults(str(folder)), "database": table.sink(),
    }[kind]  # fmt: skip
    broker.sender("work").send([Message(b"1"), Message(b"2")])
    run(broker, url, folder, sink)
    broker.sender("work").send([Message(b"3")])
    driver = Driver(broker, url, folder, sink=Prepared(sink))
    claim = driver.take()
    assert claim is not None
    told = driver.attempt(claim, tell)
    # It dies between settling and publishing; then somebody cleans up.
    SettlingSink({"work": (driver.options, None)})(Told(told), 0)  # type: ignore[arg-type]
    kept = tmp_path / "kept"
    if kind == "database":
        table.sql("DELETE FROM results_staged")
    else:
        (lost,) = [file for file in folder.rglob("*") if told[0]["stage"] in file.name]
        shutil.move(lost, kept)
    for _ in range(2):
        with pytest.raises(SystemicFailure, match=r"claim 2 were removed before they were published: .*"):
            begin_results(driver.results, driver.options)
    if kind != "database":
        shutil.move(kept, lost)
        begin_results(driver.results, driver.options)
        # What readers have may be moved away.
        shutil.rmtree(folder / "claim=0000000002", ignore_errors=True)
        begin_results(driver.results, driver.options)
    # A place that is new lacks nothing that was never meant for it.
    other = Driver(broker, url, tmp_path / "other", sink=None)
    begin_results(other.results, other.options)


def fits(folder: Path, *columns: tuple[str, pa.DataType]) -> bool:
    """Return whether results of a schema may be added to a folder; write some."""
    schema = pa.schema([("sequence_number", pa.int64()), *columns])
    sink: Any = ParquetResults(str(folder)).owned_by(ResultOwner("store", "work", "spark", 1))
    try:
        sink = sink.prepared(schema)
    except InvalidOption as error:
        assert "no reader could read both" in str(error)
        return False
    sink.begin(0)
    claim = sink.published() + 1
    part = sink.open_stage(schema, claim, 0, "aa")
    part.write(pa.RecordBatch.from_pylist([{}], schema=schema))
    part.close()
    sink.publish(claim, ["aa"])
    return True


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_a_folder_keeps_the_types_of_its_columns(tmp_path: Path, state: str) -> None:
    folder = tmp_path / "results"
    assert fits(folder, ("n", pa.int64()), ("text", pa.string()))
    assert fits(folder, ("n", pa.int64()), ("more", pa.float64()))
    if state == "lost":
        # As an earlier version left it.
        shutil.rmtree(folder / "_lazaretto_state")
    assert not fits(folder, ("n", pa.float64()))
    assert not fits(folder, ("n", pa.int32()))
    assert not fits(folder, ("N", pa.int64()))
    assert not fits(folder, ("more", pa.string()))
    assert fits(folder, ("n", pa.int64()))
    assert fits(folder, ("text", pa.binary())) is (state == "lost")


def test_results_of_a_damaged_process_fail_their_message(broker: Broker, url: str, tmp_path: Path) -> None:
    broker.sender("work").send([Message(b"%d" % n) for n in range(12)])
    driver = Driver(broker, url, tmp_path / "results")
    claim = driver.take()
    assert claim is not None
    driver.settle(driver.attempt(claim, damage))
    found = letters(broker)
    assert sorted(found) == [b"%d" % n for n in range(1, 9)]
    assert set(found.values()) == {"ZeroDivisionError"}
    assert lazaretto.connect(url).queue("work").counts.active == 0


class Unreadable:
    """Cannot be made again from what was pickled."""

    def __reduce__(self) -> Any:
        return divmod, (1, 0)


def damage(message: Any) -> Any:
    import pickle

    from lazaretto.spark import sandbox_handler

    if 1 <= int(message.body) < 9:
        sandbox_handler.pack_result = lambda *_: pickle.dumps(Unreadable())
    else:
        sandbox_handler.pack_result = PACK
    return {"n": 1, "text": "x"}


def _pack() -> Any:
    from lazaretto.spark.sandbox_handler import pack_result

    return pack_result


PACK = _pack()
