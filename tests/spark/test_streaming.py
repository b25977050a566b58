"""A stream behaves as Spark's own do: progress, watermarks, triggers, several queues, topics."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows
from pyspark.sql.streaming.listener import StreamingQueryListener

from lazaretto import Broker, InvalidOption, Message, Rule, SqlFilter
from lazaretto.spark import process
from lazaretto.spark.source import ClaimStreamReader
from lazaretto.spark.source_options import parse

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)
both_stores = pytest.mark.stores("sqlite", *(["postgres"] if "LAZARETTO_SOAK" in os.environ else []))


def act(message: Any) -> Any:
    if message.body == b"raise":
        raise ValueError("no")
    return {"n": int(message.body)}


def fail(message: Any) -> Any:
    raise ConnectionError("the database is down")


def negate(message: Any) -> Any:
    return {"n": -int(message.body)}


def load(spark: Any, url: str, queue: str = "work", **options: Any) -> Any:
    reader = spark.readStream.format("lazaretto").option("store", url).option("queue", queue)
    return reader.options(**options).load()


def send(broker: Broker, count: int, queue: str = "work") -> None:
    broker.sender(queue).send([Message(b"%d" % n) for n in range(count)])


class Lag(StreamingQueryListener):
    """Notes how far a query is behind, with the rows of each micro-batch."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []
        self.ended = False

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        latest = json.loads(event.progress.sources[0].latestOffset)
        rows = event.progress.observedMetrics["lazaretto"].rows
        self.seen.append((rows, latest["offsetsBehindLatest"], latest["msBehindLatest"]))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self.ended = True


@both_stores
@pytest.mark.skipif("LAZARETTO_SOAK" not in os.environ, reason="takes 16 seconds: LAZARETTO_SOAK=1")
def test_a_listener_sees_how_far_a_query_is_behind(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    send(broker, 90)
    listener = Lag()
    spark.streams.addListener(listener)
    try:
        process(
            spark, act, store=url, queue="work", checkpoint=str(tmp_path / "check"), max_rows=40
        ).awaitTermination()
        end = time.monotonic() + 120
        while not listener.ended:
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        spark.streams.removeListener(listener)
    told = [(rows, behind) for rows, behind, _ in listener.seen if rows]
    assert told == [(40, 50), (40, 10), (10, 0)]
    assert all(0 <= age < 600_000 for _, _, age in listener.seen)
    assert listener.seen[0][2] > 0


def test_the_listener_of_the_page_tells_how_far_a_query_is_behind(
    broker: Broker, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text("utf-8")
    (block,) = (text for text in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "class Lag" in text)
    added: list[Any] = []
    exec(block, {"spark": SimpleNamespace(streams=SimpleNamespace(addListener=added.append))})
    send(broker, 5)
    reader = ClaimStreamReader(parse({"store": url, "queue": "work"}), ["body"])
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    source = SimpleNamespace(latestOffset=json.dumps(reader.reportLatestOffset()))
    added[0].onQueryProgress(SimpleNamespace(progress=SimpleNamespace(name="orders", sources=[source])))
    assert re.fullmatch(r"orders 3 \d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("after", "sizes"), [("0", [30, 20]), ("3600", [10, 10, 10, 10, 10])], ids=["behind", "not behind"]
)
def test_a_query_that_is_behind_takes_more_at_once(
    broker: Broker, url: str, after: str, sizes: list[int]
) -> None:
    broker.sender("work").send([Message(b"x") for _ in range(50)])
    told = {"store": url, "queue": "work", "maxRows": "10", "catchUpRows": "30", "catchUpAfter": after}
    reader = ClaimStreamReader(parse(told), ["body"])
    limit = reader.getDefaultReadLimit()
    offset = reader.initialOffset()
    while (following := reader.latestOffset(offset, limit)) != offset:
        offset = following
    assert [claim.rows for claim in reversed(broker.claims("work"))] == sizes
    assert limit == ReadMaxRows(10)
    # What the engine limits by itself stays so.
    broker.sender("work").send([Message(b"x") for _ in range(50)])
    reader.latestOffset(offset, ReadMaxBytes(7))
    assert broker.claims("work")[0].rows == 7


@pytest.mark.parametrize(
    ("limit", "sizes"), [({"maxRows": "4"}, [4, 4, 2]), ({"maxBytes": "3500"}, [3, 3, 3, 1])]
)
def test_a_micro_batch_has_so_many_rows_and_bytes(
    broker: Broker, url: str, limit: dict[str, str], sizes: list[int]
) -> None:
    broker.sender("work").send([Message(b"x" * 1_000) for _ in range(10)])
    reader = ClaimStreamReader(parse({"store": url, "queue": "work", **limit}), ["body"])
    offset = reader.initialOffset()
    while (following := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        offset = following
    assert [claim.rows for claim in reversed(broker.claims("work"))] == sizes


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {"realTime": "5 minutes"}])
def test_triggers_without_micro_batches_are_refused(
    spark: Any, broker: Broker, url: str, tmp_path: Path, trigger: dict[str, str]
) -> None:
    with pytest.raises(InvalidOption, match="has no micro-batches, and a pipeline settles each"):
        process(spark, act, store=url, queue="work", checkpoint=str(tmp_path), trigger=trigger)
    with pytest.raises(Exception, match=r"(?i)continuous|real.?time"):
        writer = load(spark, url).writeStream.format("memory").queryName("never").trigger(**trigger)
        writer.start().awaitTermination()


def test_a_watermark_from_the_time_messages_were_sent(spark: Any, broker: Broker, url: str) -> None:
    send(broker, 5)
    windows = (
        load(spark, url).where("sequence_number IS NOT NULL").withWatermark("enqueued_time", "1 hour")
        .groupBy(f.window("enqueued_time", "1 day")).count()
    )  # fmt: skip
    query = windows.writeStream.format("memory").queryName("windows").outputMode("complete")
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(row["count"] for row in spark.sql("SELECT * FROM windows").collect()) == 5
    times = [progress["eventTime"] for progress in query.recentProgress]
    assert any(time.get("max", "") > "2020" for time in times)


@both_stores
def test_several_queues_in_one_query(spark: Any, broker: Broker, url: str, tmp_path: Path) -> None:
    broker.create_topic("sales")
    broker.create_subscription("sales", "large", rules=[Rule("large", SqlFilter("size > 10"))])
    broker.sender("sales").send([Message(b"%d" % n, properties={"size": n}) for n in (5, 50)])
    send(broker, 30)
    broker.sender("work").send(Message(b"raise"))
    broker.sender("out").send(Message(b"7"))
    subscription = "sales/subscriptions/large"
    process(
        spark, {"work": act, "out": negate, subscription: act}, store=url,
        checkpoint=str(tmp_path / "check"), results=str(tmp_path / "results"), schema="n bigint",
        max_rows=20, breaker=None,
    ).awaitTermination()  # fmt: skip
    rows = spark.read.parquet(str(tmp_path / "results")).select("queue", "n").collect()
    assert sorted(tuple(row) for row in rows) == [
        ("out", -7), (subscription, 50), *(("work", n) for n in range(30)),
    ]  # fmt: skip
    assert [len(broker.claims(name)) for name in ("work", "out", subscription)] == [2, 1, 1]
    assert broker.queue("work").counts.dead_letter == 1
    assert broker.queue("out").counts.total == broker.queue("work").counts.active == 0


def test_an_outage_in_one_queue_keeps_what_was_done_in_others(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    send(broker, 30)
    broker.sender("out").send(Message(b"7"))
    with pytest.raises(StreamingQueryException, match="most messages of 'work' fail in the same way"):
        process(
            spark, {"work": fail, "out": negate}, store=url, checkpoint=str(tmp_path / "check"),
            results=str(tmp_path / "results"), schema="n bigint",
        ).awaitTermination()  # fmt: skip
    assert [claim.state for claim in broker.claims("work")] == ["revoked"]
    assert broker.queue("work").counts.active == 30
    assert [claim.state for claim in broker.claims("out")] == ["settled"]
    rows = spark.read.parquet(str(tmp_path / "results")).select("queue", "n").collect()
    assert [tuple(row) for row in rows] == [("out", -7)]


def test_several_queues_need_a_sink_that_keeps_them_apart(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    own: Any = type("Own", (), {"open": None, "remove": None})()
    with pytest.raises(InvalidOption, match="Own has no method owned_by"):
        process(
            spark, {"work": act, "out": negate}, store=url, checkpoint=str(tmp_path / "check"),
            results=own, schema="n bigint",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("handler", "queue", "text"),
    [
        (act, None, "expected a queue"),
        (act, [], "expected a queue"),
        (act, ["work", "WORK"], "expected different queues"),
        (act, ["work", "work"], "expected different queues"),
        ({"work": act}, "work", "omit queue"),
        ({}, None, "expected a queue"),
    ],
)  # fmt: skip
def test_queues_that_are_refused(
    spark: Any, broker: Broker, url: str, tmp_path: Path, handler: Any, queue: Any, text: str
) -> None:
    with pytest.raises(InvalidOption, match=text):
        process(spark, handler, store=url, queue=queue, checkpoint=str(tmp_path))
    with pytest.raises(InvalidOption, match="a stream is of one queue"):
        process(load(spark, url), act, store=url, queue=["work", "out"], checkpoint=str(tmp_path))


def test_a_stream_goes_to_a_topic_with_properties(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    broker.create_topic("sales")
    rules = [Rule("large", SqlFilter("size > 1 AND region = 'eu'"))]
    broker.create_subscription("sales", "large", rules=rules)
    send(broker, 4)
    made = load(spark, url).where("sequence_number IS NOT NULL").selectExpr(
        "body", "message_id",
        "named_struct('size', CAST(CAST(body AS STRING) AS BIGINT), 'region', 'eu', 'ok', true, 'at', "
        "enqueued_time) AS properties",
    )  # fmt: skip
    writer = made.writeStream.format("lazaretto").option("store", url).option("queue", "sales")
    writer = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True)
    writer.start().awaitTermination()
    found = broker.peek("sales/subscriptions/large", 9)
    assert [message.body for message in found] == [b"2", b"3"]
    assert found[0].properties["size"] == 2
    assert found[0].properties["ok"] is True
    assert isinstance(found[0].properties["at"], datetime)
