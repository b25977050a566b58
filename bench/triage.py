"""Triage on Spark: `python -m bench.triage --letters 1000000` explains so many flights in four causes.

The letters are written into a SQLite store at once, as copies of some that were set aside through the
broker. Beside it: the same counts by a DataFrame, whose rows go through the JVM, and by DuckDB, if it is
installed, with the conditions written by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import os
import random
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lazaretto
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


def fill(path: Path, letters: int) -> None:
    """Make a store with so many letters of four causes, and good messages."""
    r = random.Random(5)
    with lazaretto.connect(path) as broker:
        broker.create_queue("flights", QueueOptions(policy=PoisonPolicy(receive_retry_count=0), breaker=None))
        bodies, errors = [], []
        for share, error, wrong in _KINDS:
            for _ in range(round(share * SEED)):
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
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        # The good ones move behind all copies.
        low = "(key & 0x3ffffffffff)"
        connection.execute(
            f"UPDATE lazaretto_messages SET key = key + {letters} WHERE state = 1 AND {low} > {SEED}"
        )
        _copy(connection, letters)
        share = letters // SEED
        connection.execute(
            "UPDATE lazaretto_fingerprints SET waiting = waiting * ?, total = total * ?", (share,) * 2
        )
        connection.execute("UPDATE lazaretto_cause_hours SET letters = letters * ?", (share,))


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
def timed(name: str) -> Iterator[None]:
    """Print how long it took."""
    began = time.perf_counter()
    yield
    print(f"{name:44} {time.perf_counter() - began:8.1f} s  load {os.getloadavg()[0]:.1f}", flush=True)


def through_rows(spark: Any, url: str) -> list[Any]:
    """Count what the differences hold for, with rows that go through the JVM."""
    from pyspark.sql import functions as f

    reader = spark.read.format("lazaretto").option("store", url).option("queue", "flights")
    letters = reader.option("view", "dead_letters").option("shards", "8").load()
    body = letters.body.cast("string")
    missing = f.get_json_object(body, "$.dest").isin(_MISSING)
    held = [f.get_json_object(body, f"$.{name}").isNull() for name in ("dep_time", "air_time", "arr_time")]
    sums = [f.sum(one.cast("int")) for one in (*held, missing)]
    found: list[Any] = letters.groupBy("error_type").agg(f.count("*"), *sums).collect()
    return found


def by_hand(path: Path) -> Any:
    """Count the same with DuckDB."""
    duckdb = importlib.import_module("duckdb")
    connection = duckdb.connect()
    connection.execute("INSTALL sqlite; LOAD sqlite; SET threads = 2")
    connection.execute(f"ATTACH '{path}' AS store (TYPE sqlite, READ_ONLY)")
    missing = ", ".join(f"'{code}'" for code in _MISSING)
    return connection.execute(
        f"""
        SELECT d.error_type, count(*),
               sum(CAST(json_extract_string(m.body, '$.dep_time') IS NULL AS INT)),
               sum(CAST(json_extract_string(m.body, '$.dest') IN ({missing}) AS INT))
        FROM (SELECT key & 4398046511103 AS n, decode(body) AS body FROM store.lazaretto_messages) m
        JOIN (SELECT key & 4398046511103 AS n, error_type FROM store.lazaretto_dead_letters) d USING (n)
        GROUP BY 1
        """
    ).fetchall()


def main() -> None:
    """Fill a store, and measure."""
    parser = argparse.ArgumentParser(description="Measure how long Spark takes to explain dead letters.")
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--store", type=Path, default=None)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    folder = given.store or Path(tempfile.mkdtemp())
    path = folder / f"triage-{given.letters}.db"
    if not path.exists():
        with timed(f"writing {given.letters:,} letters"):
            fill(path, given.letters)
    with timed("Spark starts"):
        spark = spark_session()
        spark.sparkContext.setLogLevel("OFF")
    for _ in range(given.rounds):
        with timed("triage"):
            found = triage(spark, str(path), "flights")
        for one in found:
            print(f"  {one.letters:>10,}  {one.filter}")
        assert sum(one.letters for one in found) == given.letters // SEED * SEED
        with timed("the same counts with rows through the JVM"):
            through_rows(spark, str(file_of(str(path))))
        with contextlib.suppress(ImportError), timed("DuckDB, by hand"):
            by_hand(path)
    spark.stop()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"this process, at most {peak} MB; Spark's Java and workers: see VmHWM", flush=True)


if __name__ == "__main__":
    main()
