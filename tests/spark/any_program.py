"""A quarantine as a process of its own, which tests kill and start again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# What runs this as a program has it beside it.
from program import on_cluster, place  # type: ignore[import-not-found]
from pyspark.sql import SparkSession, functions

from lazaretto.spark import quarantine, spark_session


def act(row: Any) -> Any:
    """Return the number that a row is, or fail."""
    return {"n": int(row.value)}


def source_of(spark: Any, name: str) -> Any:
    """Return a stream of a folder's lines, a file in a micro-batch; or of a topic, `ADDRESS/TOPIC`."""
    if Path(name).is_dir():
        reader = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        return reader.text(name)
    address, topic = name.split("/")
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    return reader.option("maxOffsetsPerTrigger", 10).load()


def main() -> None:
    """Quarantine rows: store, source, settings of Spark as NAME=VALUE.

    LAZARETTO_BASE: what stands beside. LAZARETTO_MASTER: a cluster's. LAZARETTO_RESULTS: "database", or the
    URL of one; or "sessions", as a folder; or "connect", as a folder too, on the server of Spark Connect that
    LAZARETTO_MASTER names.
    """
    store, source, *settings = sys.argv[1:]
    base = os.environ["LAZARETTO_BASE"]
    more = dict(one.split("=", 1) for one in settings)
    kind, master = os.environ["LAZARETTO_RESULTS"], os.environ["LAZARETTO_MASTER"]
    spark: Any
    if kind == "connect":
        from pyspark.sql.connect.client.retries import DefaultPolicy

        spark = SparkSession.builder.remote(master).getOrCreate()
        # A server that was killed is started again once this has ended: else each call waits ten minutes.
        spark.client.set_retry_policies([DefaultPolicy(max_retries=5)])
    else:
        where = on_cluster(master) if master else {}
        spark = spark_session({"spark.driver.memory": "600m", **where, **more})
        spark.sparkContext.setLogLevel("OFF")
        folder = Path(os.environ["LAZARETTO_FAULTS"])
        (folder / "jvm.pid").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
        (folder / "driver.pid").write_text(str(os.getpid()))
    rows = source_of(spark, source)
    in_order: dict[str, Any] = {}
    if kind == "sessions":
        # Lines with the same last digit.
        rows = rows.withColumn("customer", functions.substring("value", -1, 1))
        in_order = {"session": "customer"}
    query: Any = quarantine(
        rows, act, store=store, queue="work", checkpoint=f"{base}-checkpoint", body="value",
        results=place(kind, base), schema="n bigint", deadline=120, breaker=None, max_rows=2, **in_order,
    )  # fmt: skip
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
