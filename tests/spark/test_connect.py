"""A server of Spark Connect: pipelines that settle in a process of its own, and a Declarative Pipeline."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lazaretto import Broker, Message
from lazaretto.spark import find_java

from .cluster import HOME, ConnectServer, submitting
from .held import folder, nothing_charged, read_once
from .test_faults import HERE

__all__ = ["folder"]

SPEC = """
name: orders
storage: file://{folder}/storage
libraries:
  - glob:
      include: flows.py
configuration:
  spark.sql.shuffle.partitions: "2"
"""
FLOWS = """
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions

spark = SparkSession.active()
dp.create_sink("queue", "lazaretto", {{"store": "{store}", "queue": "out"}})


@dp.append_flow(target="queue")
def orders():
    lines = spark.readStream.schema("value string").text("{folder}/in")
    return lines.select(functions.nullif("value", functions.lit("none")).cast("binary").alias("body"))


def quarantined():
    from lazaretto.spark import quarantine

    lines = spark.readStream.schema("value string").text("{folder}/in")
    return quarantine(
        lines, len, store="{store}", queue="work", body="value", origin=["value"],
        checkpoint="{folder}/checkpoint",
    )


try:
    quarantined()
except Exception as error:
    Path("{folder}/refused").write_text(str(error))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server."""
    one = ConnectServer(tmp_path_factory.mktemp("server"))
    try:
        one.start()
        yield one.url
    finally:
        one.stop()


def test_a_query_that_is_stopped_charges_nothing_and_goes_on(
    server: str, broker: Broker, url: str, folder: Path
) -> None:
    broker.sender("work").send([Message(b"5"), Message(b"no number")])
    broker.sender("out").send([Message(os.fsencode(folder))])
    read_once(broker, "out", "spark")
    words = [sys.executable, str(HERE / "connect_program.py"), server, url, str(folder)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout == "[1] 1\n"
    nothing_charged(broker, "out")
    (letter,) = broker.dead_letters("work")
    assert letter.error_type == "ValueError"
    assert letter.counters.deliveries == letter.counters.failures == 1
    files = (folder / "results").glob("queue=*/claim=*/part-*.parquet")
    numbers = [n for file in files for n in pq.read_table(file, partitioning=None)["n"].to_pylist()]
    assert sorted(numbers) == [1, 5]


def test_a_declarative_pipeline_sends_each_row_to_a_queue(
    server: str, broker: Broker, url: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("1\n2\nnone\n")
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    (tmp_path / "flows.py").write_text(FLOWS.format(folder=tmp_path, store=url))
    environment = submitting(
        {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(HOME)}
    )
    words = [str(HOME / "bin" / "spark-pipelines"), "--remote", server, "run"]
    ended = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert sorted(message.body for message in broker.peek("out", 10)) == [b"1", b"2"]
    (letter,) = broker.dead_letters("out")
    assert letter.message is not None and letter.message.properties["lazaretto.null_body"] is True
    text = (tmp_path / "refused").read_text()
    assert text.startswith(
        "quarantine starts a query, and the definitions of a Declarative Pipeline start none"
    )
