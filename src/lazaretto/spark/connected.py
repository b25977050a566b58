"""Answers about the Spark of a session, also of Spark Connect, whose driver is in another process."""

from __future__ import annotations

import re
import sys

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession, functions

from lazaretto.errors import NotAllowed

#: Where Spark says which query a micro-batch is of.
_QUERY_ID = "sql.streaming.queryId"
#: Tasks of one core each, at most, that are told apart.
_MOST_CORES = 256


def is_remote(source: SparkSession | DataFrame) -> bool:
    """Return whether a session, or a DataFrame of one, is a client of Spark Connect."""
    return type(source).__module__.startswith("pyspark.sql.connect")


def refuse_definitions(caller: str) -> None:
    """Raise NotAllowed while the definitions of a Declarative Pipeline are read, as for a dry run."""
    definitions = sys.modules.get("pyspark.pipelines.graph_element_registry")
    if definitions is None:
        return
    try:
        definitions.get_active_graph_element_registry()
    except PySparkRuntimeError:
        return
    raise NotAllowed(
        f"{caller} starts a query, and the definitions of a Declarative Pipeline start none: call it in a "
        "program of its own. A flow can send rows to a queue, with create_sink and the format 'lazaretto'"
    )


def cores_of(spark: SparkSession) -> int:
    """Return how many tasks Spark makes where nobody says how many: over Spark Connect, a job tells."""
    if not is_remote(spark):
        return int(spark.sparkContext.defaultParallelism)
    numbers = spark.range(_MOST_CORES).select(functions.spark_partition_id().alias("task")).distinct()
    return numbers.count()


def query_of(batch: DataFrame, checkpoint: str) -> str:
    """Return the id of the query that a micro-batch is of, which its checkpoint keeps. Raises NotAllowed."""
    spark = batch.sparkSession
    if is_remote(batch):
        # As it stands, though a reader takes these letters for patterns.
        plain = re.sub(r"([\\\[\]{}*?])", r"\\\1", checkpoint.rstrip("/"))
        return str(spark.read.schema("id string").json(f"{plain}/metadata").collect()[0]["id"])
    query = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if not query:
        raise NotAllowed("Spark does not say which query this is: use PySpark's own thread mode (pinned)")
    return str(query)
