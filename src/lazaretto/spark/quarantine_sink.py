"""The sink of `quarantine`: a micro-batch's rows and claims are settled in one commit, and then published."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, functions
from pyspark.sql.pandas.types import from_arrow_schema

from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.claims.outbox import ForgetStaged
from lazaretto.engine.claims.settle_claims import SettleClaims
from lazaretto.engine.claims.settle_rows import BeginRows, RowBatch, SettleRows
from lazaretto.errors import SystemicFailure
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import failure_of
from lazaretto.spark.executors import cores_of, query_of
from lazaretto.spark.query_driver import QueryDriver, collected
from lazaretto.spark.results import Sink, refuses
from lazaretto.spark.row_layout import RowLayout
from lazaretto.spark.row_task import TOLD, QuarantineSettings, run_rows, stage_refused
from lazaretto.spark.sink import bring_up_to_date, refused_messages
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.store_access import broker_at
from lazaretto.spark.task_errors import OUTAGE, Outage, writing
from lazaretto.spark.task_settings import Carried

#: A column of ours: the place of a row in its micro-batch.
_PLACE = "lazaretto_place"


class RowSinks:
    """Sinks of results: of rows of the source, and of what came back. Both are one place to readers."""

    def __init__(self, letters: Sink | None, rows: Sink | None, encoded: bytes | None, identity: int) -> None:
        self.letters, self.rows, self.encoded, self.identity = letters, rows, encoded, identity


def rows_consumer(consumer: str) -> str:
    """Return the name under which micro-batches of rows are numbered."""
    return f"{consumer}/rows"


def _in_order(batch: DataFrame, layout: RowLayout, tasks: int) -> DataFrame:
    """Return a micro-batch with the rows of each session in one task, in the order of their origin."""
    if layout.session is None:
        return batch
    # Where an origin is of several rows, as of a block of a file, they stand in their order already.
    numbered = batch.withColumn(_PLACE, functions.monotonically_increasing_id())
    of_session = functions.col("row").getField(layout.session).cast("string")
    whose = functions.coalesce(of_session, functions.col(_PLACE).cast("string"))
    tasks = max(tasks, cores_of(batch.sparkSession))
    by_origin = [functions.col("row").getField(name) for name in layout.origin]
    return numbered.repartition(tasks, whose).sortWithinPartitions(*by_origin, _PLACE).drop(_PLACE)


class QuarantineSink:
    """Has a micro-batch's tasks run, in the driver; settles rows and claims in one commit, and publishes."""

    def __init__(
        self,
        options: SparkOptions,
        sinks: RowSinks,
        layout: RowLayout,
        carried: Carried[QuarantineSettings],
        checkpoint: str,
    ) -> None:
        self._options, self._sinks, self._layout, self._carried = options, sinks, layout, carried
        self._path = EntityPath.parse(options.queue)
        self._rows_consumer = rows_consumer(options.consumer)
        self.driver = QueryDriver({options.queue: options})
        self._checkpoint = checkpoint
        self._query: str | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run a micro-batch, unless it is settled."""
        if self._query is None:
            self._query = query_of(batch, self._checkpoint)
        self._run(batch, f"{self._path.key}/rows/{self._query}", batch_id)

    def run_table(self, rows: DataFrame, checkpoint: str) -> int:
        """Run all rows of a table, unless this checkpoint has; return the number of the batch."""
        place = checkpoint if "://" in checkpoint else str(Path(checkpoint).absolute())
        return self._run(rows, f"{self._path.key}/table/{place}", None)

    def _run(self, batch: DataFrame, writer: str, batch_id: int | None) -> int:
        with broker_at(self._options.url()) as broker:
            begun: RowBatch = store_of(broker).run(
                BeginRows(self._path, self._rows_consumer, writer, batch_id, self._layout.session is not None)
            )
        if not begun.is_settled:
            carried, number = self._carried, begun.number

            def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                return run_rows(carried.open(), number, batches)

            batch = _in_order(batch, self._layout, self._options.shards)
            reports = batch.mapInArrow(run, from_arrow_schema(TOLD))
            # A table is run before the query that reads what came back.
            ends = collected(reports) if batch_id is None else self.driver.collect(reports)
            self._settle(batch, ends, writer, batch_id, number)
        self._publish()
        return begun.number

    def _settle(
        self, batch: DataFrame, ends: Sequence[Any], writer: str, batch_id: int | None, number: int
    ) -> None:
        """Settle what tasks have told of, all of it in one commit."""
        claimed = [row for row in ends if row["claim"] is not None]
        mine = [row for row in ends if row["claim"] is None]
        names = [row["stage"] for row in mine]
        written = {row["stage"]: row["results"] for row in mine if row["results"] is not None}
        outage = next((row["stage"] for row in ends if (row["stage"] or "").startswith(OUTAGE)), None)
        instead: list[str] = []
        with broker_at(self._options.url()) as broker:
            store = store_of(broker)
            consumer = None
            settle = None
            if claimed:
                epoch = claimed[0]["epoch"]
                consumer = ClaimConsumer(store, self._options.queue, self._options.consumer, epoch=epoch)
                numbers = sorted({row["claim"] for row in claimed})
                of_claims = [row["stage"] for row in claimed if row["stage"] is not None]
                settle = SettleClaims(consumer.path, consumer.name, epoch, numbers, of_claims)
            if outage is None:
                try:
                    if settle is not None and consumer is not None and self._sinks.letters is not None:
                        letters = self._sinks.letters
                        settle.instead = refused_messages(letters, consumer, settle.numbers, settle.stages)
                    instead, refused = self._stage_refused(batch, number, list(written))
                    # At least so many are left of each stage.
                    written = {stage: max(0, rows - refused) for stage, rows in written.items()}
                except Outage as error:
                    outage = f"{OUTAGE}{error}"
            if outage is not None:
                store.run(ForgetStaged(self._path, names))
                if consumer is not None:
                    consumer.revoke(why=outage)
                raise SystemicFailure(
                    f"{outage.removeprefix(OUTAGE)}. Nothing of this micro-batch was stored or set aside; "
                    "restart the query when the cause is fixed"
                )
            rows = sum(row["rows"] for row in mine)
            store.run(
                SettleRows(
                    self._path, self._rows_consumer, writer, batch_id, number, rows, names, written, settle,
                    instead,
                )
            )  # fmt: skip
            if consumer is not None:
                # The store's timers go on with what is left.
                with contextlib.suppress(Exception):
                    consumer.remove_completed()

    def _stage_refused(self, batch: DataFrame, number: int, stages: Sequence[str]) -> tuple[list[str], int]:
        """Stage the rows of the source whose results would be refused, and take those results away.

        Returns their stages, and how many they are. A task cannot know: two results of different tasks may
        break a constraint together. Raises Outage.
        """
        sink: Any = self._sinks.rows
        if not refuses(sink):
            return [], 0
        with writing():
            errors = sink.refused(number, stages)
        if not errors:
            return [], 0
        failures = {one: failure for one, error in errors.items() if (failure := failure_of(error))}
        carried = self._carried

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return stage_refused(carried.open(), failures, batches)

        staged = collected(batch.mapInArrow(run, from_arrow_schema(TOLD)))
        rows = sum(row["rows"] for row in staged)
        if rows != len(failures):
            raise Outage(
                f"of {len(failures)} rows whose results are refused, the source gave only {rows} when it was "
                "read again"
            )
        with writing():
            sink.forget(number, list(failures))
        return [row["stage"] for row in staged], rows

    def _publish(self) -> None:
        """Publish what is settled and not published yet."""
        pairs = ((self._sinks.letters, self._options.consumer), (self._sinks.rows, self._rows_consumer))
        for sink, consumer in pairs:
            if sink is not None:
                with broker_at(self._options.url()) as broker:
                    claims = ClaimConsumer(store_of(broker), self._options.queue, consumer)
                    summaries = claims.summaries()
                bring_up_to_date(sink, summaries)
