"""Pipelines over Spark Connect, as a process of its own: its mode is one of a whole process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# What runs this as a program has it beside it.
from held import hold, wait_once  # type: ignore[import-not-found]
from pyspark.sql import SparkSession

from lazaretto import DeadLetterFilter
from lazaretto.host import Handler
from lazaretto.spark import dry_run, process, triage


def take(message: Any) -> Any:
    """Return the number that a message is, or fail."""
    return {"n": int(message.body)}


def main() -> None:
    """Process two queues of a store, and stop the query while a message is at work.

    Takes the address of a server, the store, and a folder.
    """
    address, store, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    spark = SparkSession.builder.remote(address).getOrCreate()
    for run in range(2):
        query: Any = process(
            spark, {"work": take, "out": hold}, store=store, checkpoint=str(folder / "checkpoint"),
            results=str(folder / "results"), schema="n bigint",
        )  # fmt: skip
        if run == 0:
            wait_once(folder)
            query.stop()
        query.awaitTermination()
    answers = triage(spark, store, "work")
    tried = dry_run(spark, store, "work", DeadLetterFilter(), Handler("work", take))
    print([answer.letters for answer in answers], tried.failed)
    spark.stop()


if __name__ == "__main__":
    main()
