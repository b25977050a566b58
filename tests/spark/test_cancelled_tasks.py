"""A task that Spark ends, since another one failed or the query is stopped, charges no message."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions

from lazaretto import Broker, Message
from lazaretto.spark import process, quarantine
from lazaretto.spark.store_access import task_number
from lazaretto.spark.task_errors import died_task

from .held import folder, hold, nothing_charged, read_once, wait_once
from .test_expressions import Picky

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)


__all__ = ["folder"]


class Failing(Picky):
    """A place for results that fails at one of them while a message of another task is at work."""

    def owned_by(self, owner: Any) -> Failing:
        return Failing(self.folder / owner.queue, self.word)

    def write(self, batch: Any) -> None:
        numbers = batch.column("n").to_pylist()
        if self.word in numbers:
            wait_once(self.folder.parent.parent)
            raise KeyError(self.word)
        self.numbers += numbers


def take(message: Any) -> Any:
    return {"n": int(message.body)}


def test_a_task_of_another_queue_fails(spark: Any, broker: Broker, url: str, folder: Path) -> None:
    broker.sender("work").send([Message(b"99")])
    broker.sender("out").send([Message(os.fsencode(folder))])
    read_once(broker, "out", "spark")
    (folder / "results").mkdir()
    process(
        spark, {"work": take, "out": hold}, store=url, checkpoint=str(folder / "checkpoint"),
        results=Failing(folder / "results", 99), schema="n bigint",
    ).awaitTermination()  # fmt: skip
    (letter,) = broker.dead_letters("work")
    assert letter.error_type == "KeyError"
    nothing_charged(broker, "out")


def test_the_query_is_stopped(spark: Any, broker: Broker, url: str, folder: Path) -> None:
    broker.sender("out").send([Message(os.fsencode(folder))])
    read_once(broker, "out", "spark")
    for _ in range(2):
        query = process(spark, hold, store=url, queue="out", checkpoint=str(folder / "checkpoint"))
        if not (folder / "seen").exists():
            wait_once(folder)
            query.stop()
        query.awaitTermination()
    nothing_charged(broker, "out")


def test_a_row_fails_beside_what_came_back(spark: Any, broker: Broker, url: str, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "1.txt").write_text(f"{folder}\n")

    def parse(text: str) -> str:
        if text == "fails" and not (folder / "mended").exists():
            if not (folder / "seen").exists():
                (folder / "begun").read_text()
                (folder / "seen").touch()
            raise ValueError(text)
        return text

    def book(row: Any) -> Any:
        if not (folder / "sent_back").exists():
            raise ValueError("not yet")
        return hold(Message(row.value.encode())) if row.value != "fails" else None

    def run() -> None:
        rows = spark.readStream.format("text").load(str(folder / "in"))
        parsed: Any = functions.udf(parse, useArrow=False)
        query: Any = quarantine(
            rows.select(parsed("value").alias("value")), book, store=url, queue="out", body="value",
            origin=["value"], checkpoint=str(folder / "checkpoint"),
        )  # fmt: skip
        query.awaitTermination()

    run()
    (letter,) = broker.dead_letters("out")
    (folder / "sent_back").touch()
    broker.resubmit("out", letter.sequence_number)
    read_once(broker, "out", "quarantine")
    (folder / "in" / "2.txt").write_text("fails\n")
    with pytest.raises(StreamingQueryException, match="ValueError: fails"):
        run()
    (folder / "mended").touch()
    run()
    nothing_charged(broker, "out")


def test_spark_says_which_task_a_job_was_given_up_for(spark: Any, tmp_path: Path) -> None:
    def die(batches: Any) -> Any:
        for _ in batches:
            (tmp_path / str(task_number())).touch()
            os._exit(1)
        yield from ()

    with pytest.raises(Py4JJavaError) as caught:
        spark.range(1).mapInArrow(die, "id bigint").collect()
    assert died_task(caught.value) == max(int(file.name) for file in tmp_path.iterdir())
