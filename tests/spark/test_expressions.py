"""An error of Spark's own expressions, before any handler: the letter says which, not that a worker died."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lazaretto import BreakerPolicy, Broker, Message, PoisonPolicy
from lazaretto.spark import process

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)


def take(message: Any) -> Any:
    return {"n": int(message.body)}


def test_a_cast_that_fails_is_told_of_its_message(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    broker.sender("work").send([Message(b"%d" % n) for n in range(1, 40)] + [Message(b"x"), Message(b"41")])
    stream = spark.readStream.format("lazaretto").option("store", url).option("queue", "work").load()
    number = "CAST(CAST(CAST(CAST(body AS STRING) AS INT) AS STRING) AS BINARY)"
    query = process(
        stream.selectExpr("*", f"{number} AS checked").withColumn("body", stream["body"]).selectExpr(
            *[name if name != "body" else "checked AS body" for name in stream.columns]
        ),
        take, store=url, queue="work", checkpoint=str(tmp_path / "checkpoint"),
        results=str(tmp_path / "results"), schema="n bigint",
    )  # fmt: skip
    # It does not end for the message's sake.
    query.awaitTermination()
    (letter,) = broker.dead_letters("work")
    assert letter.sequence_number == 40
    assert "NumberFormatException" in (letter.error_type or "")
    assert "CAST_INVALID_INPUT" in (letter.error_message or "")
    rows = spark.read.parquet(str(tmp_path / "results")).collect()
    assert sorted(row.n for row in rows) == [*range(1, 40), 41]


def test_a_function_in_python_that_fails_is_told_of_its_message(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    from pyspark.sql import functions

    def check(body: bytes) -> bytes:
        if body == b"x":
            raise ValueError("it is no number,\nnor a text")
        return body

    broker.sender("work").send([Message(b"1"), Message(b"x"), Message(b"3")])
    stream = spark.readStream.format("lazaretto").option("store", url).option("queue", "work").load()
    checked = functions.udf(check, "binary", useArrow=False)(stream["body"])
    query = process(
        stream.withColumn("body", checked).select(*stream.columns),
        take, store=url, queue="work", checkpoint=str(tmp_path / "checkpoint"),
        results=str(tmp_path / "results"), schema="n bigint",
    )  # fmt: skip
    query.awaitTermination()
    (letter,) = broker.dead_letters("work")
    assert (letter.sequence_number, letter.error_type) == (2, "ValueError")
    assert letter.error_message == "it is no number,\nnor a text"
    assert "in check" in (broker.dead_letter("work", 2).attempts[-1].stack or "")
    rows = spark.read.parquet(str(tmp_path / "results")).collect()
    assert sorted(row.n for row in rows) == [1, 3]


class Picky:
    """A place for results that fails at one of them, and does not say that it refuses it."""

    def __init__(self, folder: Path, word: int) -> None:
        self.folder, self.word = folder, word

    def owned_by(self, owner: Any) -> Picky:
        return Picky(self.folder / owner.queue, self.word)

    def open(self, schema: Any, claim: int, shard: int) -> Picky:
        self.file = self.folder / f"{claim}-{shard}"
        self.numbers: list[int] = []
        return self

    def write(self, batch: Any) -> None:
        self.numbers += batch.column("n").to_pylist()
        if self.word in self.numbers:
            raise KeyError(self.word)

    def close(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.file.write_text(" ".join(map(str, self.numbers)))

    def remove(self, claim: int) -> None:
        for file in self.folder.glob(f"{claim}-*"):
            file.unlink()

    def all(self, queue: str) -> list[int]:
        found = [int(word) for file in (self.folder / queue).iterdir() for word in file.read_text().split()]
        return sorted(found)


def test_an_error_of_one_of_several_queues_is_told_of_its_message(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    for queue in ("work", "out"):
        broker.sender(queue).send([Message(b"%d" % n) for n in range(1, 71)])
    broker.sender("work").send(Message(b"99"))
    broker.sender("out").send([Message(b"99"), Message(b"71")])
    broker.update_queue("out", policy=PoisonPolicy(receive_retry_count=0))
    (tmp_path / "results").mkdir()
    place = Picky(tmp_path / "results", 99)
    query = process(
        spark, take, store=url, queue=["work", "out"], checkpoint=str(tmp_path / "checkpoint"),
        results=place, schema="n bigint",
    )  # fmt: skip
    query.awaitTermination()
    for queue, last in (("work", 70), ("out", 71)):
        letters = [
            (one.sequence_number, one.error_type, one.error_message) for one in broker.dead_letters(queue)
        ]
        assert letters == [(71, "KeyError", "99")]
        assert place.all(queue) == list(range(1, last + 1))


def test_an_error_of_most_messages_is_an_outage(spark: Any, broker: Broker, url: str, tmp_path: Path) -> None:
    broker.sender("work").send([Message(b"x")] * 40)
    stream = spark.readStream.format("lazaretto").option("store", url).option("queue", "work").load()
    checked = "CAST(CAST(CAST(body AS STRING) AS INT) AS STRING)"
    query = process(
        stream.selectExpr(*[
            name if name != "body" else f"CAST({checked} AS BINARY) AS body" for name in stream.columns
        ]),
        take, store=url, queue="work", checkpoint=str(tmp_path / "checkpoint"),
        breaker=BreakerPolicy(messages=3),
    )  # fmt: skip
    with pytest.raises(Exception, match="most messages of 'work' fail in the same way"):
        query.awaitTermination()
    assert broker.queue("work").counts.dead_letter == 3
    assert broker.queue("work").counts.active == 37
