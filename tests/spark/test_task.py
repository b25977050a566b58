"""What a task reads, and holds in memory while it works on a shard: bounded, whatever the messages are."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import importlib.util
import multiprocessing
import pickle
import resource
import sqlite3
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazaretto import Broker, Message
from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.errors import InvalidMessage
from lazaretto.host.handlers import Handler
from lazaretto.isolation import SandboxOptions
from lazaretto.spark.bodies import bounded
from lazaretto.spark.columns import MESSAGE, read_shard, rows_at_once, schema_of, shard_query
from lazaretto.spark.parquet_results import ParquetResults
from lazaretto.spark.pipeline_options import LARGEST_RESULT
from lazaretto.spark.results import Results
from lazaretto.spark.sandbox_handler import MOST_HELD, HandlerSetup
from lazaretto.spark.shard_task import ShardTask
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.task_settings import TaskSettings
from lazaretto.store.addresses import is_served, served_at
from lazaretto.store.postgres.dialect import within
from lazaretto.store.postgres.server_session import script, settings_of_commits
from lazaretto.store.records.claims import OPEN, ClaimRecord

from .acts import act
from .driver import Driver, seen

MIB = 1024 * 1024
LARGE = 50_000_000
SCHEMA = pa.schema([("text", pa.string())])
#: In which coroutines have run in this process.
LOOPS: list[asyncio.AbstractEventLoop] = []


async def note_loop(message: Any) -> None:
    """Note the event loop that this runs in."""
    LOOPS.append(asyncio.get_running_loop())


def batch_of(bodies: list[bytes], sessions: int = 0) -> pa.RecordBatch:
    row: dict[str, Any] = dict.fromkeys(MESSAGE, 0) | {
        "message_id": "x",
        "enqueued_time": datetime.datetime.now(datetime.UTC),
        "expires_at": None,
        "headers": None,
        "session_id": None,
    }
    rows = [
        row | {"sequence_number": n, "body": body, "session_id": f"s{n % sessions}" if sessions else None}
        for n, body in enumerate(bodies, 1)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema_of(MESSAGE, list(MESSAGE)))


def grow(message: Any) -> Any:
    if message.body == b"raise":
        raise ValueError("no")
    return {"text": "x" * int(message.body)}


def task_of(
    function: Any, folder: Path, *, inline: bool = False, refork_every: int | None = None
) -> tuple[ShardTask, ParquetResults]:
    """Return a task that runs a function, and where its results go."""
    results = ParquetResults(str(folder))
    settings = TaskSettings(
        options=SparkOptions(store="x", queue="work"),
        setup=HandlerSetup(Handler("work", function)),
        limits=SandboxOptions(refork_every=refork_every, max_result=LARGEST_RESULT),
        inline=inline,
        results=results,
        schema=SCHEMA.serialize().to_pybytes(),
        breaker=None,
    )
    return ShardTask(settings, 1, 0, 1, 0, None), results


def note_held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the bytes of results are added that are held at once."""
    held: list[int] = []
    add = Results.add

    def note(self: Results, numbers: Any, results: Any, sessions: Any) -> Any:
        held.append(sum(len(result["text"]) for result in results))
        return add(self, numbers, results, sessions)

    monkeypatch.setattr(Results, "add", note)
    return held


@pytest.mark.parametrize("sessions", [0, 3])
@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_a_session_waits_behind_a_failure_of_a_batch_before(
    tmp_path: Path, isolation: str, sessions: int
) -> None:
    def check(message: Any) -> None:
        if message.body == b"raise":
            raise ValueError("no")

    task, _ = task_of(check, tmp_path, inline=isolation == "inline")
    batch = batch_of([b"x"] * 9 + [b"raise"] + [b"x"] * 20, sessions)
    for start in range(0, 30, 6):
        task.run(batch.slice(start, 6))
    staged = task.finish()
    left = {10, *range(10, 31, 3)} if sessions else {10}
    assert sorted(staged.completed_keys()) == [n for n in range(1, 31) if n not in left]
    assert {row.key: row.outcome for row in staged.others} == {
        key: "failed" if key == 10 else "released" for key in left
    }


@pytest.mark.parametrize("sessions", [0, 3])
@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_large_results_are_held_a_part_at_a_time(
    tmp_path: Path, isolation: str, sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = note_held(monkeypatch)
    task, results = task_of(grow, tmp_path, inline=isolation == "inline")
    bodies = [b"%d" % MIB] * 50 + [b"raise"] + [b"1"] * 30
    task.run(batch_of(bodies, sessions))
    staged = task.finish()
    results.publish(1, [task.stage])
    done = staged.completed_keys()
    # Message 51 fails, and the rest of its session is left.
    left = {51, *range(51, 82, 3)} if sessions else {51}
    assert sorted(done) == [n for n in range(1, 82) if n not in left]
    assert {row.key for row in staged.others} == left
    assert max(held) <= MOST_HELD + MIB
    (file,) = tmp_path.glob("claim=*/part-*")
    table = pq.read_table(file, partitioning=None)
    assert sorted(table.column("sequence_number").to_pylist()) == sorted(done)
    assert pq.ParquetFile(file).num_row_groups > 1


@pytest.mark.parametrize("sessions", [0, 2])
def test_results_of_50_mib_are_held_one_at_a_time(
    tmp_path: Path, sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = note_held(monkeypatch)
    task, results = task_of(grow, tmp_path)
    task.run(batch_of([b"%d" % (50 * MIB), b"1", b"%d" % (LARGEST_RESULT + 1), b"%d" % (50 * MIB)], sessions))
    staged = task.finish()
    results.publish(1, [task.stage])
    left = {3: "failed"}
    assert {row.key: row.outcome for row in staged.others} == left
    (failure,) = [row.failure for row in staged.others]
    assert failure is not None
    assert failure.type == "ResultTooLarge"
    assert sorted(staged.completed_keys()) == [1, 2, 4]
    assert max(held) == 50 * MIB


def echo(message: Any) -> Any:
    return {"text": message.body.decode()}


def peaks_of(rows: int, folder: str) -> tuple[int, int]:
    """Run rows of 50 MB whose results are as large; return the peaks of this process and of its sandbox."""
    task, _ = task_of(echo, Path(folder))
    for _ in range(rows):
        task.run(batch_of([b"x" * LARGE]))
    task.finish()
    task._settings.sandbox().close()
    # Of this program alone, which what Python says of its own resources is not.
    own = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are told by /proc")
def test_the_memory_of_a_task_does_not_grow_with_rows_of_50_mb(tmp_path: Path) -> None:
    peaks = []
    for rows in (4, 8):
        # A process of its own for each: a peak is never taken back.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            peaks.append(pool.submit(peaks_of, rows, str(tmp_path / str(rows))).result())
    (own, others), (own_of_more, others_of_more) = peaks
    # Twice as many, with their results, would be eight more.
    assert own_of_more < own + 2 * LARGE
    assert others_of_more < others + 2 * LARGE


@pytest.mark.parametrize("refork_every", [1, 3, 15])
@pytest.mark.parametrize("sessions", [0, 3])
def test_a_sandbox_that_is_replaced_runs_each_message_once(
    tmp_path: Path, sessions: int, refork_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left for later, for want of room or behind a failure, is left by the next process too."""
    runs = tmp_path / "runs"
    held = note_held(monkeypatch)

    def write(message: Any) -> Any:
        with runs.open("a") as file:
            file.write(f"{message.key}\n")
        if message.body == b"invalid":
            raise InvalidMessage("no")
        return {"text": "x" * int(message.body)}

    task, _ = task_of(write, tmp_path / "results", refork_every=refork_every)
    task.run(batch_of([b"%d" % (2 * MIB)] * 24 + [b"invalid"] + [b"1"] * 20, sessions))
    task.finish()
    behind = {*range(28, 46, 3)} if sessions else set()
    assert [int(line) for line in runs.read_text().split()] == [n for n in range(1, 46) if n not in behind]
    assert max(held) <= MOST_HELD + 2 * MIB


def tell(message: Any) -> Any:
    return {"text": 5 if message.body == b"misfit" else "good"}


@pytest.mark.parametrize("isolation", ["process", "inline"])
@pytest.mark.parametrize("sessions", [0, 3])
def test_a_session_waits_behind_a_result_that_does_not_fit(
    tmp_path: Path, isolation: str, sessions: int
) -> None:
    task, results = task_of(tell, tmp_path, inline=isolation == "inline")
    task.run(batch_of([b"1", b"2", b"3", b"misfit", b"5", b"6", b"misfit", b"8", b"9", b"10"], sessions))
    staged = task.finish()
    results.publish(1, [task.stage])
    outcomes = {row.key: row.outcome for row in staged.others}
    rest = {7: "released", 10: "released"} if sessions else {7: "failed"}
    assert outcomes == {4: "failed", **rest}
    done = [n for n in range(1, 11) if n not in outcomes]
    assert staged.completed_keys() == done
    (file,) = tmp_path.glob("claim=*/part-*")
    assert pq.read_table(file, partitioning=None).column("sequence_number").to_pylist() == done


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_a_coroutine_says_that_a_message_is_invalid(tmp_path: Path, isolation: str) -> None:
    async def refuse(message: Any) -> Any:
        await asyncio.sleep(0)
        if message.body == b"2":
            raise InvalidMessage("no")
        return {"text": "good"}

    task, _ = task_of(refuse, tmp_path, inline=isolation == "inline")
    with contextlib.closing(task):
        task.run(batch_of([b"1", b"2", b"3"]))
        staged = task.finish()
    assert [(row.key, row.outcome) for row in staged.others] == [(2, "invalid")]
    assert staged.completed_keys() == [1, 3]


def test_a_task_ends_the_event_loop_of_its_coroutines(broker: Broker, url: str, tmp_path: Path) -> None:
    driver = Driver(broker, url, tmp_path)
    broker.sender("work").send(Message(b"1"))
    claim = driver.take()
    assert claim is not None
    driver.attempt(claim, note_loop, inline=True)
    assert [loop.is_closed() for loop in LOOPS] == [True]


def test_a_batch_is_taken_in_parts_of_bounded_bytes() -> None:
    bodies = [b"x" * size for size in (3, 3, 3, 50, 1, 1, 0, 9)]
    parts = [part.column("sequence_number").to_pylist() for part in bounded(batch_of(bodies), 10)]
    assert parts == [[1, 2, 3], [4], [5, 6, 7], [8]]
    assert [part.num_rows for part in bounded(batch_of([b"x"] * 5), 1_000)] == [5]


@pytest.mark.parametrize(("rows", "size", "most"), [(10, 0, 10_000), (10, 10 * MIB, 32), (3, 300 * MIB, 1)])
def test_fewer_messages_are_read_at_once_where_they_are_large(rows: int, size: int, most: int) -> None:
    assert rows_at_once(ClaimRecord(1, "spark", 1, OPEN, 0, 0, None, rows, size)) == most


@pytest.mark.stores("sqlite", "postgres")
def test_a_shard_is_read_by_one_scan_of_its_range(broker: Broker, url: str) -> None:
    broker.sender("work").send([Message(b"x") for _ in range(500)])
    consumer = ClaimConsumer(store_of(broker), "work", "spark")
    consumer.attach()
    assert consumer.take(0, shards=2) == 1
    for _, shard in consumer.shards(0, 1):
        sql, parameters = shard_query(url, shard, MESSAGE)
        plan = explained(url, sql, parameters)
        assert not any("TEMP" in line or "Sort" in line or "SCAN m" in line for line in plan), plan
        scans = [
            line
            for line in plan
            if "PRIMARY KEY (rowid>? AND rowid<?)" in line or "lazaretto_messages_pkey" in line
        ]
        assert len(scans) == 1, plan


@pytest.mark.stores("postgres")
def test_a_shard_of_a_server_is_read_while_the_server_sends_it(broker: Broker, url: str) -> None:
    broker.sender("work").send([Message(bytes(250_000)) for _ in range(110)])
    consumer = ClaimConsumer(store_of(broker), "work", "spark")
    consumer.attach()
    assert consumer.take(0) == 1
    ((_, shard),) = consumer.shards(0, 1)
    batches = read_shard(url, shard, list(MESSAGE), 1)
    assert next(batches).num_rows == 1
    copying = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY%'"
    with psycopg.connect(served_at(url)[0], autocommit=True) as connection:
        assert connection.execute(copying).fetchall() == [(1,)]
        assert sum(batch.num_rows for batch in batches) == 109
        # Whoever stops early takes no more.
        batches = read_shard(url, shard, list(MESSAGE), 1)
        next(batches)
        del batches


@pytest.mark.stores("postgres")
def test_a_shard_is_the_same_without_arrows_driver_and_with_fewer_columns(
    broker: Broker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("news")
    broker.create_subscription("news", "a")
    path = "news/subscriptions/a"
    sender = broker.sender("news")
    sender.send([Message(b"again"), Message(b"x", time_to_live=3_600)])
    with broker.receiver(path) as receiver:
        receiver.abandon(receiver.receive(1)[0])
    sender.send(
        [
            Message(b""),
            Message(bytes(range(256)) * 900),
            Message(b"y" * 3_000, message_id="\u00e9\u2028\U0001f600", session_id="\u00fc"),
            Message(b"z", properties={"n": 1, "raw": b"\0\xff", "text": "x" * 5_000}, subject="s"),
        ]
    )
    consumer = ClaimConsumer(store_of(broker), path, "spark")
    consumer.attach()
    assert consumer.take(0, shards=1) == 1
    ((_, shard),) = consumer.shards(0, 1)

    def read(names: list[str]) -> pa.Table:
        return pa.Table.from_batches(read_shard(url, shard, names, 4)).combine_chunks()

    whole = read(list(MESSAGE))
    assert [len(body) for body in whole.column("body").to_pylist()] == [5, 1, 0, 230_400, 3_000, 1]
    assert whole.column("attempt").to_pylist() == [2, 1, 1, 1, 1, 1]
    some = ["body", "sequence_number", "session_id"]
    assert read(some).equals(whole.select(some))
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if "adbc" in name else find(name, *more)
    )
    assert read(list(MESSAGE)).equals(whole)


@pytest.mark.stores("postgres")
def test_a_task_finds_the_server_and_password_in_a_file(
    broker: Broker, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, schema = served_at(url)
    parts = psycopg.conninfo.conninfo_to_dict(address)
    lines = [f"{name}={parts[name]}" for name in ("host", "port", "user", "dbname") if name in parts]
    (tmp_path / "services").write_text("\n".join(["[queues]", *lines, "password=secret", ""]))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    broker.sender("work").send([Message(b"1") for _ in range(3)])
    driver = Driver(broker, f"postgresql:///?service=queues&schema={schema}", tmp_path / "results")
    claim = driver.take()
    assert claim is not None
    driver.settle(driver.attempt(claim, act))
    assert [number for number, _ in seen(tmp_path / "results")] == [1, 2, 3]
    assert b"secret" not in pickle.dumps(driver.settings(act))


#: Locks a file as a process does that closes it, in the moment before it knows whether others have it open.
CLOSING = """\
import fcntl
import sys
import time

with open(sys.argv[1], "rb+") as file:
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 0x40000000)
    print("locked", flush=True)
    time.sleep(0.5)
"""


def test_a_file_is_read_that_another_process_closes_just_now(broker: Broker, url: str) -> None:
    broker.sender("work").send([Message(b"x") for _ in range(5)])
    consumer = ClaimConsumer(store_of(broker), "work", "spark")
    consumer.attach()
    assert consumer.take(0) == 1
    ((_, shard),) = consumer.shards(0, 1)
    # Arrow's driver reads only where no other SQLite has the file open.
    broker.close()
    (before,) = read_shard(url, shard, list(MESSAGE), 10)
    words = [sys.executable, "-c", CLOSING, url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as closing:
        assert closing.stdout is not None
        assert closing.stdout.readline() == "locked\n"
        (batch,) = read_shard(url, shard, list(MESSAGE), 10)
    assert batch.equals(before)


def explained(url: str, sql: str, parameters: tuple[int, ...]) -> list[str]:
    """Return how a query is planned that Arrow's driver is given."""
    if not is_served(url):
        with contextlib.closing(sqlite3.connect(url)) as connection:
            return [line for *_, line in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]
    address, schema = served_at(url)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(script(settings_of_commits(schema, connection.info.server_version)).encode())
        for parameter in parameters:
            sql = sql.replace("?", str(parameter), 1)
        return [line for (line,) in connection.execute(f"EXPLAIN {within(schema, sql)}".encode())]
