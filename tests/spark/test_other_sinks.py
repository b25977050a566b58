"""A stream into any sink but ours: nothing is settled, and nothing charged, unless somebody says so."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from lazaretto import Broker, ClaimFenced, InvalidOption, Message
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.spark import settle
from lazaretto.spark.columns import STREAM
from lazaretto.spark.source import ClaimStreamReader
from lazaretto.spark.source_options import SparkOptions

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")


def load(spark: Any, url: str, **options: Any) -> Any:
    reader = spark.readStream.format("lazaretto").option("store", url).option("queue", "work")
    return reader.options(**options).load()


def send(broker: Broker, count: int) -> None:
    broker.sender("work").send([Message(b"%d" % n) for n in range(count)])


def test_a_query_that_only_looks_charges_nothing(spark: Any, broker: Broker, url: str) -> None:
    send(broker, 20)
    for _ in range(4):
        query = load(spark, url, lease=1).writeStream.format("memory").queryName("seen")
        query = query.trigger(availableNow=True).start()
        query.awaitTermination()
        assert spark.sql("SELECT * FROM seen").count() == 20
    end = time.monotonic() + 120
    while broker.queue("work").counts.locked:
        # Whoever receives gives back what has run out.
        broker.receiver("out").receive(1, max_wait=0.2)
        assert time.monotonic() < end
    assert broker.queue("work").counts.active == 20
    assert {m.delivery_count for m in broker.peek("work", 20)} == {0}


def test_a_query_that_only_looks_says_so_once(
    broker: Broker, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(broker, 3)
    reader = ClaimStreamReader(SparkOptions(store=url, queue="work"), list(STREAM.names))
    offset = reader.initialOffset()
    for _ in range(3):
        offset = reader.latestOffset(offset, ReadMaxRows(1))
    assert [record.message for record in caplog.records if "only reads" in record.message] == [
        "nobody has settled claim 1 of consumer 'spark' of 'work': this query only reads. Its messages stay "
        "locked while it runs; then they are released without counting an attempt. To settle them use "
        "lazaretto.spark.process, or lazaretto.spark.settle(batch, ...) in foreachBatch"
    ]
    caplog.clear()
    ClaimConsumer(broker._store, "work", "spark", epoch=1).settle_whole(3, {})
    reader = ClaimStreamReader(SparkOptions(store=url, queue="work"), list(STREAM.names))
    reader.initialOffset()
    reader.latestOffset(offset, ReadMaxRows(1))
    assert not caplog.records


@pytest.mark.stores("sqlite", "postgres")
def test_each_batch_is_settled_when_it_is_done(spark: Any, broker: Broker, url: str, tmp_path: Path) -> None:
    send(broker, 50)
    seen: list[list[int]] = []

    def keep(batch: Any, _number: int) -> None:
        rows = batch.where("sequence_number IS NOT NULL").collect()
        seen.append([row.sequence_number for row in rows])
        bad = {row.sequence_number: ValueError("no") for row in rows if row.body == b"7"}
        told = settle(batch, store=url, queue="work", failed=bad)
        assert told == ({"completed": 19, "failed": 1} if bad else {"completed": len(rows)})
        assert settle(batch, store=url, queue="work") == told

    writer = load(spark, url, max_rows=20).writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert [len(numbers) for numbers in seen] == [20, 20, 10]
    (letter,) = broker.dead_letters("work")
    assert (letter.sequence_number, letter.error_type) == (8, "ValueError")
    assert broker.queue("work").counts.total == 1


def test_the_example_of_the_page_keeps_each_message_once(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    broker.sender("work").send([Message(b"x"), Message(b""), Message(b"y")])
    page = (Path(__file__).parents[2] / "docs" / "spark-results.md").read_text("utf-8")
    (block,) = (text for text in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "def keep" in text)
    for shown, real in (("shop.db", url), ("orders", "work"), ("kept", tmp_path / "kept")):
        block = block.replace(f'"{shown}"', repr(str(real)))
    block = block.replace('"keep-checkpoint"', repr(str(tmp_path / "checkpoint")))
    definition, started, rest = block.partition("stream.writeStream")
    # The columns that the page says are enough.
    (schema,) = re.findall(r'`\.schema\("(claim .*?)"\)`', page, re.DOTALL)
    reader = spark.readStream.format("lazaretto").option("store", url).option("queue", "work")
    names: dict[str, Any] = {"stream": reader.schema(schema).load()}
    exec(definition, names)

    def settle_later(batch: Any, **_: Any) -> None:
        # As if the query died here, and the batch were delivered again.
        names["settle"] = settle
        names["keep"](batch, 0)

    names["settle"] = settle_later
    query = eval((started + rest).strip(), names)
    query.processAllAvailable()
    query.stop()
    kept = spark.read.parquet(str(tmp_path / "kept")).orderBy("sequence_number").collect()
    assert [(row.claim, row.sequence_number, bytes(row.body)) for row in kept] == [(1, 1, b"x"), (1, 3, b"y")]
    assert [letter.sequence_number for letter in broker.dead_letters("work")] == [2]
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()


def test_what_settle_refuses(spark: Any, broker: Broker, url: str) -> None:
    send(broker, 1)
    consumer = ClaimConsumer(broker._store, "work", "spark")
    consumer.attach()
    consumer.take(0)
    batch = spark.createDataFrame([(1, 99)], "claim bigint, epoch bigint")
    with pytest.raises(ClaimFenced):
        settle(batch, store=url, queue="work")
    with pytest.raises(InvalidOption, match="exactly as foreachBatch received it"):
        settle(batch.drop("epoch"), store=url, queue="work")
    with pytest.raises(InvalidOption, match="exceptions by sequence number"):
        settle(batch, store=url, queue="work", failed={1: "no"})  # type: ignore[dict-item]
    assert broker.queue("work").counts.locked == 1
