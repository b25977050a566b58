"""A topic of a real broker of Kafka's: rows that fail are set aside, repaired and processed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from examples.kafka_flights.kafka import create_topic, delete_topic
from lazaretto import Broker
from lazaretto.spark import quarantine

from .test_quarantine import bodies, with_body

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)
SCHEMA = "item string, key binary, place string, at timestamp"


def book(row: Any) -> Any:
    """Book an order."""
    import json

    item = json.loads(row.value)["item"]
    return {"item": item, "key": row.key, "place": f"{row.topic}/{row.partition}/{row.offset}",
            "at": row.timestamp}  # fmt: skip


class Topic:
    """A topic of two partitions, and its quarantine."""

    def __init__(self, spark: Any, address: str, name: str) -> None:
        self._spark, self.address, self.name = spark, address, name

    def make(self) -> None:
        create_topic(self._spark, self.address, self.name)

    def delete(self) -> None:
        delete_topic(self._spark, self.address, self.name)

    def send(self, *rows: tuple[str | None, bytes | None, int]) -> None:
        """Send rows: key, value, partition."""
        frame = self._spark.createDataFrame(rows, "key string, value binary, partition int").coalesce(1)
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", self.address)
        writer.option("topic", self.name).save()

    def stream(self) -> Any:
        reader = self._spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.address)
        return reader.option("subscribe", self.name).option("startingOffsets", "earliest").load()

    def run(self, store: str, folder: Path, checkpoint: str = "checkpoint") -> None:
        query = quarantine(
            self.stream(), book, store=store, queue="work", checkpoint=str(folder / checkpoint), body="value",
            results=str(folder / "results"), schema=SCHEMA, deadline=60,
        )  # fmt: skip
        assert isinstance(query, StreamingQuery)
        query.awaitTermination()


@pytest.fixture
def topic(spark: Any, kafka: str, tmp_path: Path) -> Topic:
    found = Topic(spark, kafka, f"orders-{tmp_path.name}")
    found.make()
    return found


def test_rows_of_a_topic_that_fail_are_set_aside_repaired_and_processed_once(
    spark: Any, broker: Broker, url: str, tmp_path: Path, topic: Topic
) -> None:
    topic.send(("a", b'{"item": "lamp"}', 0), ("b", None, 0), ("c", b'{"item": "desk"}', 1), (None, b"{", 1))
    topic.run(url, tmp_path)

    def rows() -> list[tuple[str, str, bytes | None]]:
        found = spark.read.parquet(str(tmp_path / "results")).collect()
        return sorted((row.place.removeprefix(f"{topic.name}/"), row.item, row.key) for row in found)

    done = [("0/0", "lamp", b"a"), ("1/0", "desk", b"c")]
    assert rows() == done
    letters = {bytes(one.message.body): one for one in broker.dead_letters("work") if one.message is not None}
    assert sorted(letters) == [b"", b"{"]
    message = letters[b"{"].message
    assert message is not None
    origin = {name: value for name, value in message.properties.items() if name.startswith("origin.")}
    assert origin == {"origin.topic": topic.name, "origin.partition": 1, "origin.offset": 1}

    # Nothing new in the topic: what was repaired is processed all the same, with the time and key it had.
    broker.resubmit("work", letters[b"{"].sequence_number, edit=with_body(b'{"item": "sofa"}'))
    topic.run(url, tmp_path)
    assert rows() == [*done, ("1/1", "sofa", None)]
    assert bodies(broker) == [b""]
    times = {row.place: row.at for row in spark.read.parquet(str(tmp_path / "results")).collect()}
    sent = {f"{one.topic}/{one.partition}/{one.offset}": one.timestamp for one in batch(spark, topic)}
    assert times == {place: sent[place] for place in times}

    # A topic made anew has other rows at the same offsets: they are letters of their own, with an event.
    topic.delete()
    topic.make()
    topic.send(("b", b"[", 0), ("b", b"]", 0))
    topic.run(url, tmp_path, "another")
    assert bodies(broker) == [b"", b"[", b"]"]
    (event,) = broker.events(kind="origin_reused")
    assert event.detail["before"] == letters[b""].sequence_number


def batch(spark: Any, topic: Topic) -> list[Any]:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", topic.address)
    found: list[Any] = reader.option("subscribe", topic.name).load().collect()
    return found
