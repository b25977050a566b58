"""`settle` and `lineage`: what becomes of the messages of a batch, and what became of each message."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession, functions

from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.errors import InvalidMessage, InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.failure import Failure, failure_of
from lazaretto.model.policy import Outcome
from lazaretto.spark.bodies import PROBLEM
from lazaretto.spark.datasource import FORMAT
from lazaretto.spark.new_letters import ORIGIN, ROW_ORIGIN
from lazaretto.spark.source_options import parse
from lazaretto.spark.store_access import broker_at
from lazaretto.store.records.claims import REVOKED

_LETTER = ("reason", "error_type", "error_message", "dead_lettered_time")
#: Where `process` writes the results of several queues: Spark makes a column of the folder's name.
_OF_SEVERAL = re.compile(r"/queue=[^/]+/claim=[^/]+/[^/]+$")


def lineage(spark: SparkSession, *, store: str, queue: str, results: str | DataFrame) -> DataFrame:
    """Return a table of the messages of a queue that have a result or are a pending dead letter.

    `results`: a folder or URI that `process` writes, or a table with its results, such as one of Delta. Of
    the results of several queues it takes those of this one. They must be of one consumer: a table that
    several share does not say whose a row is.
    Columns: `sequence_number`; `outcome`: "completed" or "dead_lettered"; `claim`, null for dead letters;
    `result`: a struct of the other columns; `reason`, `error_type`, `error_message` (bytes) and
    `dead_lettered_time` of the dead letter. A message that was completed without a result has no row.
    If `quarantine` wrote the results with `keep_origin`, there is a column `origin`, and rows that wait in
    the queue, with the outcome "waiting"; `sequence_number` is null for those that never were there.
    """
    options = parse({"store": store, "queue": queue})
    outcomes = spark.read.parquet(results) if isinstance(results, str) else results
    for name in ("sequence_number", "claim"):
        if name not in outcomes.columns:
            raise InvalidOption(f"the results have no column {name!r}: expected those of a pipeline")
    outcomes = _of_queue(outcomes, options.queue)
    of_rows = [ORIGIN] if ROW_ORIGIN in outcomes.columns else []
    own = ("sequence_number", "claim", ROW_ORIGIN)
    inner = [functions.col(f"`{name}`") for name in outcomes.columns if name not in own]
    outcomes = outcomes.select(
        "sequence_number",
        functions.col("claim").cast("bigint").alias("claim"),
        (functions.struct(*inner) if inner else functions.lit(None)).alias("result"),
        *(functions.col(ROW_ORIGIN).alias(name) for name in of_rows),
    )
    reader = spark.read.format(FORMAT).option("store", options.store).option("queue", options.queue)
    if of_rows:
        reader = reader.option("properties", f"{ORIGIN} string")
    letters = reader.option("view", "dead_letters").load().select("sequence_number", *_LETTER, *of_rows)
    dead = functions.col("dead_lettered_time").isNotNull()
    outcome = functions.when(dead, "dead_lettered").otherwise("completed").alias("outcome")
    if not of_rows:
        joined = outcomes.join(letters, "sequence_number", "full_outer")
        return joined.select("sequence_number", outcome, "claim", "result", *_LETTER)
    waiting = reader.option("view", "messages").load().where(functions.col(ORIGIN).isNotNull())
    table = outcomes.unionByName(letters, allowMissingColumns=True)
    table = table.select("sequence_number", ORIGIN, outcome, "claim", "result", *_LETTER)
    waiting = waiting.select("sequence_number", ORIGIN, functions.lit("waiting").alias("outcome"))
    return table.unionByName(waiting, allowMissingColumns=True)


def _of_queue(outcomes: DataFrame, queue: str) -> DataFrame:
    """Return the results of one queue, of those of several."""
    # A pipeline of one queue may have a column of this name in its own schema.
    if "queue" not in outcomes.columns or not any(map(_OF_SEVERAL.search, outcomes.inputFiles())):
        return outcomes
    # Spark makes numbers and dates of names that look like them.
    name = functions.lit(queue).try_cast(outcomes.schema["queue"].dataType).cast("string")
    return outcomes.where(functions.lower(functions.col("queue").cast("string")) == functions.lower(name))


_log = logging.getLogger(__name__)


def settle(
    batch: DataFrame,
    *,
    store: str,
    queue: str,
    consumer: str = "spark",
    failed: Mapping[int, BaseException] | None = None,
) -> dict[str, int]:
    """Settle a micro-batch at the end of foreachBatch; return its messages by outcome.

    `batch`: as foreachBatch got it. `store`, `queue`, `consumer`: as the stream was loaded with. `failed`:
    what went wrong, by sequence number: those are failures, for the queue's policy to decide on. An
    InvalidMessage, as every message with a `problem` has, can never succeed. All others are completed. A
    batch that is settled already stays as it is. Raises ClaimFenced: another query has the consumer.
    """
    for name in ("claim", "epoch"):
        if name not in batch.columns:
            raise InvalidOption(
                f"the batch has no column {name!r}: settle the batch exactly as foreachBatch received it"
            )
    options = parse({"store": store, "queue": queue, "consumer": consumer})
    failures = {number: _failure(number, error) for number, error in (failed or {}).items()}
    if PROBLEM in batch.columns:
        for number, problem in (
            batch.where(f"{PROBLEM} IS NOT NULL").select("sequence_number", PROBLEM).collect()
        ):
            failures.setdefault(number, _failure(number, InvalidMessage(problem)))
    row = batch.select("claim", "epoch").first()
    if row is None:
        return {}
    with broker_at(options.url()) as broker:
        claims = ClaimConsumer(store_of(broker), options.queue, options.consumer, epoch=row["epoch"])
        summary = claims.settle_whole(row["claim"], failures)
    if summary is None:
        return {}
    if summary.state == REVOKED:
        _log.warning(
            "claim %d of consumer %r of %r was revoked before it was settled: its messages return",
            summary.number,
            consumer,
            queue,
        )
    return dict(summary.outcomes)


def _failure(number: object, error: object) -> tuple[Outcome, Failure]:
    if not isinstance(number, int) or not isinstance(error, BaseException):
        raise InvalidOption(
            f"expected failed to be exceptions by sequence number, got {shown(error)} for {shown(number)}"
        )
    failure = failure_of(error)
    assert failure is not None
    return Outcome.INVALID if isinstance(error, InvalidMessage) else Outcome.FAILED, failure
