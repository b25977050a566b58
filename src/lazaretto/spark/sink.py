"""The settling sink: its commit applies the staged outcomes in one commit of the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from lazaretto.broker import store_of
from lazaretto.claims import ClaimConsumer
from lazaretto.errors import NotAllowed, SystemicFailure
from lazaretto.spark.carried import Carried
from lazaretto.spark.results import ResultSink
from lazaretto.spark.shard_task import OUTAGE
from lazaretto.spark.source_options import SparkOptions, parse
from lazaretto.spark.store_access import broker_at
from lazaretto.store.contract.claim_contract import REVOKED

#: The name of the format.
SETTLING = "lazaretto-settle"


class ShardReport(WriterCommitMessage):
    """What a task staged: claim, epoch, shard and stage. Names and numbers, never outcomes."""

    def __init__(self, shards: Sequence[tuple[int, int, int | None, str | None]]) -> None:
        self.shards = list(shards)


class SettlingWriter(DataSourceStreamArrowWriter):
    """Settles the claims of a micro-batch."""

    def __init__(self, options: SparkOptions, results: ResultSink | None) -> None:
        self._options = options
        self._results = results

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        found = [
            (row["claim"], row["epoch"], row["shard"], row["stage"])
            for batch in iterator
            for row in batch.to_pylist()
        ]
        return ShardReport(found)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        told = [shard for message in messages if isinstance(message, ShardReport) for shard in message.shards]
        if not told:
            return
        # All tasks of a batch work for one driver.
        epoch = told[0][1]
        options = self._options
        numbers = sorted({claim for claim, _, _, _ in told})
        stages = [stage for _, _, _, stage in told if stage is not None]
        shards = [shard for _, _, shard, _ in told if shard is not None]
        if len(set(shards)) < len(shards):
            raise NotAllowed("the stream was repartitioned before process: each shard must stay in one task")
        with broker_at(options.url()) as broker:
            consumer = ClaimConsumer(store_of(broker), options.queue, options.consumer, epoch=epoch)
            outage = next((stage for stage in stages if stage.startswith(OUTAGE)), None)
            if outage is not None:
                consumer.revoke(why=outage)
                raise SystemicFailure(
                    f"most messages of {options.queue!r} fail in one way ({outage.removeprefix(OUTAGE)}). "
                    "They were released; restart the query when the cause is fixed"
                )
            summaries = consumer.settle(numbers, stages)
        for summary in summaries:
            if summary.state == REVOKED and self._results is not None:
                self._results.remove(summary.number)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        # What was staged is never named, and goes with the claim.
        return


class SettlingSource(DataSource):
    """The sink of `process`, which is its only user."""

    #: Where results go. Not an option: those are text, and seen in plans.
    results: Carried[ResultSink | None] = Carried(None)

    @classmethod
    def name(cls) -> str:
        return SETTLING

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return SettlingWriter(parse(self.options), self.results.open())


def settling_into(results: ResultSink | None) -> type[SettlingSource]:
    """Return the sink for a query whose results go there."""

    class Settling(SettlingSource):
        pass

    Settling.results = Carried(results)
    return Settling
