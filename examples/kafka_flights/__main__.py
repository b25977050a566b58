"""Sends every flight through a topic of Kafka's; those that fail come to a queue, and back once repaired."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

import lazaretto
from examples.flights import job
from examples.flights.__main__ import CLAIM, SCHEMA
from examples.flights.data import Flight, read_airlines
from examples.flights.progress import Step
from examples.flights.rules import FlightRules, Result
from examples.kafka_flights.kafka import KafkaMissing, create_topic, jars, kafka_broker
from lazaretto import Broker, Explanation
from lazaretto.host import HandlerContext
from lazaretto.spark import quarantine, spark_session, triage

FOLDER = Path(__file__).parent / "work"
TOPIC = "flights"
_encode = msgspec.json.Encoder().encode


class RowRules(FlightRules):
    """Checks a flight that is a row of the topic."""

    def __call__(self, row: Any, context: HandlerContext) -> Result:  # type: ignore[override]
        # A flight that has failed fails again, unless it was sent back after the repair.
        return self.result(row.value, row.key.decode(), context.attempt > 1)


class TopicWork:
    """Works the topic off, and what was sent back, each time it is called."""

    def __init__(self, spark: SparkSession, broker: Broker, address: str, store: str, folder: Path) -> None:
        self._spark, self._broker, self._store = spark, broker, store
        self._address = address
        self.results = str(folder / "results")
        self.tables = str(folder / "triage")
        self._checkpoint = str(folder / "checkpoint")
        self._airlines = read_airlines()

    def send(self, flights: Sequence[Flight]) -> None:
        rows = {"key": [one.key.encode() for one in flights], "value": [_encode(one) for one in flights]}
        writer = self._spark.createDataFrame(pa.Table.from_pydict(rows)).write.format("kafka")
        writer.option("kafka.bootstrap.servers", self._address).option("topic", TOPIC).save()

    def process(self, airports: Mapping[str, str], total: int, step: Step) -> None:
        rules = RowRules(airports, self._airlines)
        while True:
            self._run(rules)
            counts = self._broker.queue(job.QUEUE).counts
            # Their second attempt, by the queue's policy.
            if not counts.active + counts.locked:
                break
        step.reach(total)

    def _run(self, rules: RowRules) -> None:
        reader = self._spark.readStream.format("kafka").option("kafka.bootstrap.servers", self._address)
        reader = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest")
        query = quarantine(
            reader.option("maxOffsetsPerTrigger", CLAIM).load(),
            rules,
            store=self._store,
            queue=job.QUEUE,
            checkpoint=self._checkpoint,
            body="value",
            results=self.results,
            schema=SCHEMA,
            breaker=None,
        )
        assert isinstance(query, StreamingQuery)
        query.awaitTermination()

    def processed(self) -> int:
        return self._spark.read.parquet(self.results).count()

    def triage(self) -> list[Explanation]:
        return triage(self._spark, self._store, job.QUEUE, results=self.tables)


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return 0 if every flight is accounted for, 2 if Kafka cannot be had."""
    options = job.options("examples.kafka_flights", __doc__, FOLDER).parse_args(arguments)
    console = Console(highlight=False)
    folder = job.start_clean(options.folder)
    store = options.store or str(folder / job.STORE)
    console.print("Starting Kafka and Spark …")
    try:
        with kafka_broker() as address:
            spark = spark_session({"spark.jars": ",".join(map(str, jars("kafka")))})
            try:
                create_topic(spark, address, TOPIC)
                with lazaretto.connect(store) as broker:
                    job.create_queue(broker)
                    work = TopicWork(spark, broker, address, store, folder)
                    whole = job.run(console, broker, work, options.limit, work.send, CLAIM)
            finally:
                spark.stop()
    except KafkaMissing as error:
        console.print(str(error), soft_wrap=True)
        return 2
    job.say_where(console, store, f"the results are in {job.shown(Path(work.results))}")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
