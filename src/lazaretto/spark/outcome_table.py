"""`lineage`: what became of each message, or row of a source: its result, or its dead letter."""

from __future__ import annotations

import re

from pyspark.sql import DataFrame, SparkSession, functions

from lazaretto.errors import InvalidOption
from lazaretto.spark.datasource import FORMAT
from lazaretto.spark.new_letters import ORIGIN, ROW_ORIGIN
from lazaretto.spark.source_options import parse

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
