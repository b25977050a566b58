"""A checkpoint that is lost, older, or used twice: what is settled stays so, and is seen once."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazaretto import Broker, Message
from lazaretto.spark import process
from lazaretto.spark.columns import SHARDS, STREAM
from lazaretto.spark.run_task import run_task
from lazaretto.spark.source import ClaimStreamReader
from lazaretto.spark.source_options import parse

from .acts import act, act_second
from .driver import Driver, seen

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)


def tell(message: Any, context: Any) -> Any:
    from lazaretto import Message

    context.send("out", Message(b"%d" % message.sequence_number))
    return {"n": message.sequence_number, "text": "told"}


class Shop:
    """A queue with a pipeline, and a ledger of what was sent."""

    def __init__(self, spark: Any, broker: Broker, url: str, folder: Path) -> None:
        self.spark, self.broker, self.url = spark, broker, url
        self.checkpoint, self.results = folder / "checkpoint", folder / "results"
        self.sent: list[int] = []

    def send(self, count: int = 4) -> None:
        self.sent += self.broker.sender("work").send([Message(b"x") for _ in range(count)])

    def start(self, **options: Any) -> Any:
        given = {"checkpoint": str(self.checkpoint), "max_rows": 2, **options}
        return process(
            self.spark, tell, store=self.url, queue="work", results=str(self.results),
            schema="n bigint, text string", **given,
        )  # fmt: skip

    def run(self) -> None:
        self.start().awaitTermination()

    def check(self) -> None:
        """Each message settled once, with one result and one message sent."""
        assert [number for number, _ in seen(self.results)] == self.sent
        assert sorted(int(m.body) for m in self.broker.peek("out", 1_000)) == self.sent
        assert self.broker.queue("work").counts.total == 0

    def restore(self, copy: Path) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(copy, self.checkpoint)


@pytest.fixture
def shop(spark: Any, broker: Broker, url: str, tmp_path: Path) -> Shop:
    return Shop(spark, broker, url, tmp_path)


@pytest.mark.parametrize("direct", [True, False])
def test_what_has_ended_since_is_passed_over_at_once(
    broker: Broker, url: str, tmp_path: Path, direct: bool
) -> None:
    driver = Driver(broker, url, tmp_path)
    for _ in range(5):
        broker.sender("work").send(Message(b"1"))
        claim = driver.take()
        assert claim is not None
        driver.settle(driver.attempt(claim, act))
    broker.sender("work").send(Message(b"1"))
    told = {"store": url, "queue": "work", "shards_only": str(direct).lower()}
    reader = ClaimStreamReader(parse(told), list(STREAM.names))
    limit = reader.getDefaultReadLimit()
    older = {**reader.initialOffset(), "claim": 2}
    newer = reader.latestOffset(older, limit)
    assert newer["claim"] == 5
    (part,) = reader.partitions(older, newer)
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    assert [(row["claim"], row["shard"]) for row in rows] == [(3, None), (4, None), (5, None)]
    batch = pa.RecordBatch.from_pylist(
        [{**row, "queue": "work"} for row in rows],
        schema=(SHARDS if direct else STREAM).append(pa.field("queue", pa.string())),
    )
    settings = {"work": driver.settings(act)}
    told_of = [row["claim"] for some in run_task(settings, iter([batch])) for row in some.to_pylist()]
    assert told_of == [3, 4, 5]
    # What is behind that is taken as ever.
    assert reader.latestOffset(newer, limit)["claim"] == 6


@pytest.mark.stores("sqlite", *(["postgres"] if "LAZARETTO_SOAK" in os.environ else []))
def test_an_older_checkpoint_settles_nothing_again(shop: Shop, tmp_path: Path) -> None:
    shop.send()
    shop.run()
    older = tmp_path / "older"
    shutil.copytree(shop.checkpoint, older)
    shop.send()
    shop.run()
    shop.restore(older)
    shop.send()
    shop.run()
    shop.check()
    # A copy that was made in the middle of a micro-batch: begun, and not ended.
    last = max((older / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    (older / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    shop.restore(older)
    shop.send()
    shop.run()
    shop.check()


def test_without_its_checkpoint_a_query_goes_on_where_the_store_stands(shop: Shop) -> None:
    shop.send()
    shop.run()
    shutil.rmtree(shop.checkpoint)
    shop.send()
    # A driver that has died with its checkpoint, in the middle of a claim: done, and not settled.
    driver = Driver(shop.broker, shop.url, shop.results)
    claim = driver.take()
    assert claim is not None
    driver.attempt(claim, act_second)
    shop.send()
    shop.run()
    shop.check()


def test_of_two_queries_of_one_consumer_the_second_goes_on(shop: Shop, tmp_path: Path) -> None:
    always = {"processingTime": "200 milliseconds"}
    shop.send()
    first = shop.start(trigger=always)
    first.processAllAvailable()
    second = shop.start(trigger=always, checkpoint=str(tmp_path / "another"))
    try:
        second.processAllAvailable()
        shop.send()
        with pytest.raises(Exception, match=r"another driver has taken over consumer 'spark' of 'work'"):
            first.awaitTermination(120)
        second.processAllAvailable()
        shop.check()
        # One checkpoint for two queries of a session: Spark stops the one that runs.
        third = shop.start(trigger=always, checkpoint=str(tmp_path / "another"))
        end = time.monotonic() + 120
        while second.isActive:
            assert time.monotonic() < end
            time.sleep(0.05)
        shop.send()
        third.processAllAvailable()
        third.stop()
    finally:
        for query in shop.spark.streams.active:
            query.stop()
    shop.check()
