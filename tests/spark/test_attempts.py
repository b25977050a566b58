"""Two attempts of one task at the same time: what is settled and what stands in the results are the same."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazaretto import Broker, Message
from lazaretto.broker import store_of
from lazaretto.claims import ClaimConsumer
from lazaretto.host import Handler
from lazaretto.spark.columns import SHARDS
from lazaretto.spark.results import ParquetResults, ResultOwner
from lazaretto.spark.run_task import run_task
from lazaretto.spark.sandbox_handler import HandlerSetup
from lazaretto.spark.shard_task import TaskSettings
from lazaretto.spark.sink import SettlingSink
from lazaretto.spark.source_options import parse

from .acts import act_first, act_second

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
COUNT = 12


class Told:
    """What tasks told the sink, as it collects it."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def select(self, *names: str) -> Told:
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self._rows


class Driver:
    """A driver without Spark, which runs attempts of tasks and settles one of each."""

    def __init__(self, broker: Broker, url: str, folder: Path) -> None:
        self.options = parse({"store": url, "queue": "work"})
        self.consumer = ClaimConsumer(store_of(broker), "work", "spark")
        self.consumer.attach()
        owner = ResultOwner(url, "work", "spark", self.consumer.identify())
        self.results = ParquetResults(str(folder)).owned_by(owner)
        self._last = 0

    def take(self) -> int | None:
        taken = self.consumer.take(self._last)
        self._last = taken or self._last
        return taken

    def attempt(self, claim: int, handler: Any, deadline: int) -> list[dict[str, Any]]:
        """Run a task, as one of a claim's attempts; a sandbox is kept for each deadline."""
        made = Handler("work", handler, deadline=deadline)
        settings = TaskSettings(
            self.options, HandlerSetup(made), made.options.limits(), False, self.results,
            SCHEMA.serialize().to_pybytes(), None,
        )  # fmt: skip
        ((_, shard),) = self.consumer.shards(claim - 1, claim)
        given = {"claim": claim, "epoch": self.consumer.epoch, "shard": shard.token, "queue": "work"}
        batch = pa.RecordBatch.from_pylist([given], schema=SHARDS.append(pa.field("queue", pa.string())))
        return [row for told in run_task({"work": settings}, iter([batch])) for row in told.to_pylist()]

    def settle(self, told: list[dict[str, Any]]) -> None:
        SettlingSink({"work": (self.options, self.results)})(Told(told), 0)  # type: ignore[arg-type]


def seen(folder: Path) -> list[tuple[int, str]]:
    files = sorted(folder.glob("claim=*/part-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
    return sorted((row["sequence_number"], row["text"]) for row in rows)


@pytest.mark.parametrize("winner", ["first", "second"])
@pytest.mark.parametrize("reads", [0, 1])
def test_of_two_attempts_one_is_settled_and_seen(
    broker: Broker, url: str, tmp_path: Path, winner: str, reads: int
) -> None:
    folder, gate, begun = tmp_path / "results", tmp_path / "gate", tmp_path / "begun"
    os.mkfifo(begun)
    bodies = [b"%d" % n for n in range(COUNT)]
    bodies[4] = os.fsencode(tmp_path)
    numbers = broker.sender("work").send([Message(body) for body in bodies])
    driver = Driver(broker, url, folder)
    taken = driver.take()
    assert taken is not None
    claim: int = taken
    ((_, shard),) = driver.consumer.shards(0, claim)
    for _ in range(reads):
        # An attempt that has died: now messages are run one at a time, and noted.
        driver.consumer.start(shard.token, "a task")
    told: dict[str, list[dict[str, Any]]] = {}
    with gate.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        slow = threading.Thread(target=lambda: told.update(first=driver.attempt(claim, act_first, 90)))
        slow.start()
        # It is in the middle of its work; a second attempt does all of it.
        begun.read_bytes()
        told["second"] = driver.attempt(claim, act_second, 91)
        if winner == "second":
            driver.settle(told["second"])
    slow.join()
    if winner == "first":
        driver.settle(told["first"])
    while (following := driver.take()) is not None:
        driver.settle(driver.attempt(following, act_second, 91))
    dead = [letter.sequence_number for letter in broker.dead_letters("work")]
    results = seen(folder)
    assert sorted([*dead, *(number for number, _ in results)]) == numbers
    assert sorted((int(m.body), m.subject) for m in broker.peek("out", 100)) == results
    assert broker.queue("work").counts.total == len(dead)
    # The attempts differ in whether messages fail, and what is seen is of one of them.
    assert len({text for _, text in results}) == 1 or reads
    assert not list(folder.glob("claim=*/_stage-*")) or winner == "second"
