"""Triage on Spark: `python -m bench.triage --letters 10000000` explains so many flights in four causes.

The letters are written into a SQLite store at once, as copies of some that were set aside through the
broker. Beside it, in the same run: counts by hour and by condition with DataFrames, whose rows go through the
JVM, and with DuckDB (`pip install duckdb`), which reads the file through Arrow. Both are given the conditions
that `triage` finds by itself. For each: seconds by the clock, of CPU, and the peak memory of each process.

`--broker` explains them without Spark, in a process that has just started; `--causes 15` makes so many.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import multiprocessing
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from adbc_driver_sqlite import dbapi

import lazaretto
from bench.family import Measured
from lazaretto import Message, PoisonPolicy, QueueOptions
from lazaretto.spark import spark_session, triage
from lazaretto.store.addresses import file_of

#: Letters that are set aside through the broker, of which all others are copies, and good messages.
SEED, GOOD = 1_000, 1_000
_AIRPORTS = [chr(65 + n // 26) + chr(65 + n % 26) + "X" for n in range(100)]
_MISSING = ["BQN", "PSE", "SJU", "STT"]
#: Errors, in the shares of the flights, and what is wrong with a body.
_KINDS: list[tuple[float, Exception, Callable[[random.Random], dict[str, Any]]]] = [
    (0.49, KeyError("no departure"), lambda _: {"dep_time": None, "dep_delay": None}),
    (0.44, LookupError("no such airport"), lambda r: {"dest": r.choice(_MISSING)}),
    (0.04, TypeError("no time in the air"), lambda _: {"air_time": None}),
    (0.03, ValueError("no arrival"), lambda _: {"arr_time": None}),
]


def _kinds(causes: int) -> list[tuple[float, Exception, Callable[[random.Random], dict[str, Any]]]]:
    """Return the kinds of letters for so many causes: those of the flights, and equal ones after them."""
    share = 1 / causes
    more: list[tuple[float, Exception, Callable[[random.Random], dict[str, Any]]]] = []
    for number in range(causes - len(_KINDS)):
        error = type(f"Unknown{number}", (ValueError,), {})(f"tail number {number} is not known")
        tails = [f"X{number}-{n}" for n in range(number + 1)]
        more.append((share, error, lambda r, tails=tails: {"tailnum": r.choice(tails)}))  # type: ignore[misc]
    left = 1 - share * len(more)
    return [(one * left, error, wrong) for one, error, wrong in _KINDS] + more


def _flight(r: random.Random) -> dict[str, Any]:
    return {
        "year": 2013, "month": r.randrange(1, 13), "day": r.randrange(1, 29), "dep_time": r.randrange(2400),
        "sched_dep_time": r.randrange(2400), "dep_delay": r.randrange(-20, 200),
        "arr_time": r.randrange(2400), "sched_arr_time": r.randrange(2400),
        "arr_delay": r.randrange(-60, 200), "carrier": r.choice(["UA", "B6", "AA"]),
        "flight": r.randrange(6000), "tailnum": f"N{r.randrange(9999)}",
        "origin": r.choice(["EWR", "JFK", "LGA"]), "dest": r.choice(_AIRPORTS),
        "air_time": r.randrange(20, 700), "distance": r.randrange(80, 5000), "hour": r.randrange(24),
        "minute": r.randrange(60), "time_hour": f"2013-01-{r.randrange(1, 29):02}T10:00:00Z",
    }  # fmt: skip


def fill(path: Path, letters: int, causes: int) -> None:
    """Make a store with so many letters of so many causes, and good messages."""
    r = random.Random(5)
    with lazaretto.connect(path) as broker:
        broker.create_queue("flights", QueueOptions(policy=PoisonPolicy(receive_retry_count=0), breaker=None))
        bodies: list[bytes] = []
        errors: list[Exception] = []
        reached = 0.0
        for share, error, wrong in _kinds(causes):
            reached += share * SEED
            for _ in range(round(reached) - len(bodies)):
                bodies.append(json.dumps(_flight(r) | wrong(r)).encode())
                errors.append(error)
        sender = broker.sender("flights")
        sender.send([Message(body) for body in bodies])
        with broker.receiver("flights") as receiver:
            for message, error in zip(receiver.receive(SEED), errors, strict=True):
                receiver.abandon(message, error=error)
        good = [Message(json.dumps(_flight(r)).encode()) for _ in range(GOOD)]
        sender.send(good)
        for cause in broker.triage("flights", explain_for=0).causes:
            assert cause.letters
    with contextlib.closing(sqlite3.connect(path)) as connection:
        # Nobody else has the file yet, and a crash begins anew.
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -1000000"):
            connection.execute(f"PRAGMA {setting}")
        # The good ones move behind all copies.
        connection.execute(f"UPDATE lazaretto_messages SET key = key + {letters} WHERE key & {3 << 42} = 0")
        _copy(connection, letters)
        share = letters // SEED
        connection.execute(
            "UPDATE lazaretto_fingerprints SET waiting = waiting * ?, total = total * ?", (share,) * 2
        )
        connection.execute("UPDATE lazaretto_cause_hours SET letters = letters * ?", (share,))
        connection.commit()
        connection.execute("PRAGMA journal_mode = WAL")


def _copy(connection: sqlite3.Connection, letters: int) -> None:
    for table in ("lazaretto_messages", "lazaretto_dead_letters"):
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        others = ", ".join(name for name in names if name != "key")
        step = SEED
        while step < letters:
            more = min(step, letters - step)
            connection.execute(
                f"INSERT INTO {table} (key, {others}) SELECT key + {step}, {others} FROM {table} "
                f"WHERE (key & 0x3ffffffffff) <= {more}"
            )
            step += more


@contextlib.contextmanager
def measured(name: str) -> Iterator[Measured]:
    """Measure what runs within it, and print that."""
    with Measured() as found:
        yield found
    print(
        f"{name:44} {found.seconds:8.1f} s {found.cpu:8.1f} s CPU  load {found.load:4.1f}  "
        f"MiB: {found.memory()}",
        flush=True,
    )


def through_rows(spark: Any, url: str) -> list[tuple[Any, ...]]:
    """Count letters by cause and hour, and those that conditions hold for, with rows through the JVM."""
    from pyspark.sql import functions as f

    def letters(schema: str) -> Any:
        reader = spark.read.format("lazaretto").option("store", url).option("queue", "flights")
        return reader.option("view", "dead_letters").option("shards", "8").schema(schema).load()

    counted = letters("sequence_number long, error_type string, dead_lettered_time timestamp")
    hour = f.date_trunc("hour", "dead_lettered_time").alias("hour")
    counted.groupBy("error_type", hour).agg(f.count("*"), f.min("sequence_number")).collect()
    checked = letters("error_type string, body binary")
    body = checked.body.cast("string")
    missing = f.get_json_object(body, "$.dest").isin(_MISSING)
    held = [f.get_json_object(body, f"$.{name}").isNull() for name in ("dep_time", "air_time", "arr_time")]
    sums = [f.sum(one.cast("int")) for one in (*held, missing)]
    return sorted(tuple(row) for row in checked.groupBy("error_type").agg(f.count("*"), *sums).collect())


def by_hand(path: Path) -> list[tuple[Any, ...]]:
    """Count the same with DuckDB, which gets the rows from Arrow's driver for SQLite."""
    connection = importlib.import_module("duckdb").connect()
    connection.execute("SET threads = 2")
    with (
        contextlib.closing(dbapi.connect(f"file:{path}?mode=ro")) as store,
        store.cursor() as cursor,
    ):
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": "10000"})
        cursor.execute(
            "SELECT d.error_type, d.dead_lettered, CAST(m.body AS TEXT) AS body FROM lazaretto_messages m "
            "JOIN lazaretto_dead_letters d ON d.key = m.key & ~(3 << 42)"
        )
        found: pa.RecordBatchReader = cursor.fetch_record_batch()
        connection.register("letters", found)
        missing = ", ".join(f"'{code}'" for code in _MISSING)
        held = ", ".join(
            f"sum(CAST(coalesce(body ->> '{name}', 'null') = 'null' AS INT))"
            for name in ("dep_time", "air_time", "arr_time")
        )
        rows = connection.execute(
            f"SELECT error_type, count(*), {held}, sum(CAST(body ->> 'dest' IN ({missing}) AS INT)), "
            "max(hours) FROM (SELECT *, dead_lettered // 3600000000 AS hours FROM letters) "
            "GROUP BY 1 ORDER BY 1"
        ).fetchall()
    return [tuple(map(_plain, row[:-1])) for row in rows]


def _in_broker(path: Path, letters: int, causes: int) -> None:
    """Explain all causes in this process, and check that each has its difference."""
    with measured("triage in the broker") as ours, lazaretto.connect(path) as broker:
        found = broker.triage("flights", explain_for=600).causes
    for one in found:
        assert one.difference is not None
        print(f"  {one.letters:>10,}  {one.difference.filter}")
    assert len(found) == causes
    assert sum(one.letters for one in found) == letters // SEED * SEED
    print(f"  {ours.seconds:.1f} s")


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else int(value)


def main() -> None:
    """Fill a store, and measure."""
    parser = argparse.ArgumentParser(description="Measure how long Spark takes to explain dead letters.")
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--causes", type=int, default=len(_KINDS), help="4 or more (4)")
    parser.add_argument("--broker", action="store_true", help="explain them without Spark")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--store", type=Path, default=None, help="the folder of the store, to be used again")
    parser.add_argument("--only", action="store_true", help="triage alone, nothing beside it")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    folder = given.store or Path(tempfile.mkdtemp())
    path = folder / f"triage-{given.letters}-{given.causes}.db"
    if not path.exists():
        with measured(f"writing {given.letters:,} letters"):
            # In a process of its own, whose memory is gone then.
            filler = multiprocessing.get_context("spawn").Process(
                target=fill, args=(path, given.letters, given.causes)
            )
            filler.start()
            filler.join()
        assert filler.exitcode == 0
    print(f"{path}: {path.stat().st_size / 1e9:.1f} GB, {os.cpu_count()} cores", flush=True)
    if given.broker:
        for _ in range(given.rounds):
            again = folder / "again.db"
            # What was found is kept: each time begins with a store in which nothing is explained.
            shutil.copy(path, again)
            process = multiprocessing.get_context("spawn").Process(
                target=_in_broker, args=(again, given.letters, given.causes)
            )
            process.start()
            process.join()
            assert process.exitcode == 0
        if given.store is None:
            shutil.rmtree(folder)
        return
    with measured("Spark starts") as start:
        spark = spark_session()
        spark.sparkContext.setLogLevel("OFF")
    try:
        for number in range(given.rounds):
            with measured("triage") as ours:
                found = triage(spark, str(path), "flights")
            if not number:
                print(f"  with Spark's start: {start.seconds + ours.seconds:.1f} s")
            for one in found:
                print(f"  {one.letters:>10,}  {one.filter}")
                assert one.filter is not None
                assert one.differences[0].letters == one.letters
            assert sum(one.letters for one in found) == given.letters // SEED * SEED
            if given.only:
                continue
            with measured("the same counts with rows through the JVM") as rows:
                theirs = through_rows(spark, str(file_of(str(path))))
            print(f"  {rows.seconds / ours.seconds:.2f} times as long")
            with contextlib.suppress(ImportError):
                importlib.import_module("duckdb")
                with measured("the same counts with DuckDB, by hand") as duck:
                    by_duckdb = by_hand(path)
                assert by_duckdb == theirs
                print(f"  {duck.seconds / ours.seconds:.2f} times as long")
    finally:
        spark.stop()
        if given.store is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
