"""Sends every flight through a queue to Spark, sets the bad ones aside, repairs a cause, sends those back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

import lazaretto
from examples.flights import charts, hours, job
from examples.flights.data import read_airlines
from examples.flights.progress import Step
from examples.flights.rules import FlightRules
from lazaretto import Broker, Explanation
from lazaretto.spark import process, spark_session, triage

FOLDER = Path(__file__).parent / "work"
SCHEMA = (
    "message_id string, month int, flight string, airline string, destination string, arr_delay int, "
    "sent_back boolean"
)
#: Flights of one micro-batch: a claim, which is settled in one commit.
CLAIM = 40_000
_LOOK = 1


class SparkWork:
    """A pipeline that works the queue off and then ends, each time it is called."""

    def __init__(self, spark: SparkSession, broker: Broker, store: str, folder: Path) -> None:
        self._spark = spark
        self._broker = broker
        self._store = store
        self.results = str(folder / "results")
        self.tables = str(folder / "triage")
        self._checkpoint = str(folder / "checkpoint")
        self._airlines = read_airlines()

    def process(self, airports: Mapping[str, str], total: int, step: Step) -> None:
        query = process(
            self._spark,
            FlightRules(airports, self._airlines),
            store=self._store,
            queue=job.QUEUE,
            checkpoint=self._checkpoint,
            results=self.results,
            schema=SCHEMA,
            breaker=None,
            max_rows=CLAIM,
        )
        while query.isActive:
            query.awaitTermination(_LOOK)
            counts = self._broker.queue(job.QUEUE).counts
            step.reach(total - counts.active - counts.locked)
        step.reach(total)

    def processed(self) -> int:
        return self._spark.read.parquet(self.results).count()

    def triage(self) -> list[Explanation]:
        return triage(self._spark, self._store, job.QUEUE, results=self.tables)


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return 0 if every flight is accounted for."""
    options = job.options("examples.flights", __doc__, FOLDER).parse_args(arguments)
    console = Console(highlight=False)
    folder = job.start_clean(options.folder)
    store = options.store or str(folder / job.STORE)
    console.print("Starting Spark …")
    spark = spark_session()
    try:
        with lazaretto.connect(store) as broker:
            job.create_queue(broker)
            work = SparkWork(spark, broker, store, folder)
            whole = job.run(console, broker, work, options.limit)
        files = charts.chart_of(spark, store, job.QUEUE, work.results, folder)
        files += hours.chart_of(spark, work.tables, folder)
    finally:
        spark.stop()
    where = ", ".join(job.shown(file) for file in files)
    job.say_where(
        console, store, f"the results are in {job.shown(Path(work.results))}, the charts are in {where}"
    )
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
