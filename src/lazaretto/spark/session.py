"""A Spark session with everything set that a pipeline needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from lazaretto.spark.java import find_java

_LOGGING = Path(__file__).with_name("log4j2.properties")
#: What must be set, and why. All of it can be overridden.
SETTINGS: Mapping[str, str] = {
    # A worker that dies is tried again: `local[N]` alone would not.
    "spark.master": "local[2,4]",
    "spark.app.name": "lazaretto",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={_LOGGING}"',
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # Off by default, and a reader that can filter is refused then.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A stack must not carry what stands in a body.
    "spark.sql.execution.pyspark.udf.tracebackWithLocals": "false",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
}


def spark_session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session; the one there is, if there is one.

    `settings`: Spark's own, over those of this package. Finds Java, and has workers run this
    Python. Raises JavaNotFound.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = str(find_java().home)
    builder = SparkSession.builder
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
