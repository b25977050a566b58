"""A driver without Spark: what `process` does in the driver and in tasks, a step at a time."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lazaretto import Broker
from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.host import Handler
from lazaretto.spark.columns import SHARDS
from lazaretto.spark.parquet_results import ParquetResults
from lazaretto.spark.results import ResultOwner, Sink
from lazaretto.spark.run_task import run_task
from lazaretto.spark.sandbox_handler import HandlerSetup
from lazaretto.spark.sink import SettlingSink
from lazaretto.spark.source_options import parse
from lazaretto.spark.task_settings import TaskSettings

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


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

    def __init__(
        self, broker: Broker, url: str, folder: Path, *, lease: float = 300, sink: Any = None
    ) -> None:
        self.options = parse({"store": url, "queue": "work"})
        self.consumer = ClaimConsumer(store_of(broker), "work", "spark", lease=lease)
        self._last = self.consumer.attach()
        self._tokens: dict[int, int] = {}
        owner = ResultOwner(url, "work", "spark", self.consumer.identify())
        self.results: Sink = (sink or ParquetResults(str(folder))).owned_by(owner)

    def take(self) -> int | None:
        """Take the next claim, or find the one that stands open."""
        taken = self.consumer.take(self._last)
        if taken is not None:
            self._last = taken
            ((_, shard),) = self.consumer.shards(taken - 1, taken)
            self._tokens[taken] = shard.token
        return taken

    def attempt(
        self, claim: int, handler: Any, deadline: int = 90, *, inline: bool = False
    ) -> list[dict[str, Any]]:
        """Run a task, as one of a claim's attempts; a sandbox is kept for each deadline."""
        settings = dataclasses.replace(self.settings(handler, deadline), inline=inline)
        token = self._tokens[claim]
        given = {"claim": claim, "epoch": self.consumer.epoch, "shard": token, "queue": "work"}
        batch = pa.RecordBatch.from_pylist([given], schema=SHARDS.append(pa.field("queue", pa.string())))
        return [row for told in run_task({"work": settings}, iter([batch])) for row in told.to_pylist()]

    def settings(self, handler: Any, deadline: int = 90) -> TaskSettings:
        made = Handler("work", handler, deadline=deadline)
        return TaskSettings(
            self.options, HandlerSetup(made), made.options.limits(), False, self.results,
            SCHEMA.serialize().to_pybytes(), None,
        )  # fmt: skip

    def settle(self, told: list[dict[str, Any]]) -> None:
        SettlingSink({"work": (self.options, self.results)})(Told(told), 0)  # type: ignore[arg-type]


def seen(folder: Path) -> list[tuple[int, str]]:
    files = sorted(folder.glob("claim=*/part-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
    return sorted((row["sequence_number"], row["text"]) for row in rows)
