"""Writing to a queue from Spark: a table in one commit, each micro-batch of a stream once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazaretto import Broker, QueueOptions
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.writer import Staged, StreamWriter, TableWriter

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")


def save(frame: Any, store: Path, queue: str = "out", mode: str = "append", **options: str) -> None:
    options = {"store": str(store), "queue": queue, **options}
    frame.write.format("lazaretto").options(**options).mode(mode).save()


def test_rows_are_messages(spark: Any, broker: Broker, store: Path) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    rows = [
        (bytearray(b"\xff1"), "id-1", "s", "subject", {"a": "b"}, None),
        (bytearray(b""), "id-2", None, None, None, later),
    ]
    ddl = (
        "body binary, message_id string, correlation_id string, subject string, "
        "properties map<string,string>, scheduled_enqueue_time timestamp"
    )
    save(spark.createDataFrame(rows, ddl), store)
    first, second = sorted(broker.peek("out", 9), key=lambda m: m.message_id)
    assert (first.body, first.message_id, first.subject, first.correlation_id) == (
        b"\xff1",
        "id-1",
        "subject",
        "s",
    )
    assert first.properties == {"a": "b"}
    assert (second.body, second.state.value) == (b"", "scheduled")


def test_many_rows_in_one_commit(spark: Any, broker: Broker, store: Path) -> None:
    save(spark.range(20_000).selectExpr("CAST(id AS STRING) AS body"), store)
    assert {int(m.body) for m in broker.peek("out", 10_000)} <= set(range(20_000))
    assert broker.queue("out").counts.active == 20_000


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ("if(id = 5, NULL, 'x') AS body", "expected the column body to be binary or text, got a null"),
        ("'x' AS body; 'y' AS mesage_id", "has no column 'mesage_id'; did you mean 'message_id'"),
        ("'x' AS subject", "needs a column 'body'"),
        ("repeat('x', 300000) AS body", "262144"),
    ],
)
def test_rows_that_are_no_messages_send_nothing(
    spark: Any, broker: Broker, store: Path, columns: str, text: str
) -> None:
    frame = spark.range(10).selectExpr(*columns.split("; "))
    with pytest.raises(Exception, match=text):
        save(frame, store)
    assert broker.queue("out").counts.total == 0


def test_a_queue_is_not_overwritten(spark: Any, broker: Broker, store: Path) -> None:
    with pytest.raises(Exception, match="overwrit"):
        save(spark.range(1).selectExpr("'x' AS body"), store, mode="overwrite")
    with pytest.raises(Exception, match="requires sessions"):
        broker.create_queue("steps", QueueOptions(requires_session=True))
        save(spark.range(1).selectExpr("'x' AS body"), store, "steps")


def test_a_stream_sends_each_batch_once(spark: Any, broker: Broker, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()

    def run() -> None:
        stream = spark.readStream.schema("body string").text(str(folder))
        query = (
            stream.writeStream.format("lazaretto").option("store", str(store)).option("queue", "out")
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()

    (folder / "a.txt").write_text("1\n2\n")
    run()
    (folder / "b.txt").write_text("3\n")
    run()
    # Spark's own note that the last batch is done is lost: it does the batch again.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    commits[-1].unlink()
    for file in commits[-1].parent.glob(f".{commits[-1].name}.crc"):
        file.unlink()
    run()
    assert sorted(m.body for m in broker.peek("out", 9)) == [b"1", b"2", b"3"]


#: Of a Kafka topic: a tombstone, a row above the size limit, one with a bad property, a text that is none.
ROWS = (
    "CASE value WHEN 'null' THEN NULL WHEN 'large' THEN repeat('x', 300000) "
    "WHEN 'bytes' THEN CAST(X'ff31' AS STRING) ELSE value END AS body",
    "named_struct('n', 1, 'amount', CASE value WHEN 'bad' THEN DATE'2026-03-01' END) AS properties",
    "CASE value WHEN 'session' THEN repeat('s', 200) ELSE 'a' END AS session_id",
)


def stream_of(spark: Any, folder: Path, store: str, **options: str) -> Any:
    stream = spark.readStream.schema("value string").text(str(folder)).selectExpr(*ROWS)
    options = {
        "store": str(store),
        "queue": "out",
        "checkpointLocation": str(folder.parent / "check"),
        **options,
    }
    return stream.writeStream.format("lazaretto").options(**options).trigger(availableNow=True).start()


@pytest.mark.stores("sqlite", "postgres")
def test_a_bad_row_of_a_stream_is_a_dead_letter(spark: Any, broker: Broker, url: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("1\nnull\nlarge\nbad\nsession\nbytes\n2\n")
    with pytest.raises(Exception, match="InvalidMessage"):
        stream_of(spark, folder, url, onBadRow="fail").awaitTermination()
    assert broker.queue("out").counts.total == 0
    stream_of(spark, folder, url).awaitTermination()
    assert sorted(m.body for m in broker.peek("out", 9)) == [b"1", b"2", b"\xff1"]
    letters: dict[bytes, Any] = {}
    for letter in broker.dead_letters("out"):
        assert letter.message is not None
        assert (letter.reason, letter.message.properties["n"]) == ("InvalidMessage", 1)
        letters[letter.message.body[:9]] = letter
    assert letters.keys() == {b"", b"xxxxxxxxx", b"bad", b"session"}
    assert letters[b""].message.properties["lazaretto.null_body"] is True
    assert len(letters[b"xxxxxxxxx"].message.body) == 300_000
    assert letters[b"bad"].message.properties["lazaretto.row"] == '{"properties":{"amount":"2026-03-01"}}'
    assert "s" * 200 in letters[b"session"].message.properties["lazaretto.row"]
    assert letters[b"xxxxxxxxx"].error_type == "lazaretto.errors.MessageTooLarge"
    (event,) = broker.events(kind="rows_set_aside")
    assert event.detail["rows"] == 4


@pytest.mark.parametrize("way", ["table", "stream"])
def test_what_others_rejected_becomes_dead_letters(
    spark: Any, broker: Broker, store: Path, tmp_path: Path, way: str
) -> None:
    columns = (
        "CAST(value AS BINARY) AS body", "'BadPrice' AS reason", "'too low' AS description",
        "'shop.PriceError' AS error_type", "concat('price of ', value) AS error_message",
        "'Traceback: line 1' AS stack", "named_struct('topic', 'orders', 'offset', 7L) AS origin",
        "map('region', 'eu') AS properties",
    )  # fmt: skip
    options = {"store": str(store), "queue": "work", "subqueue": "dead_letter"}
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("1\n2\n")
    if way == "table":
        frame = spark.read.text(str(folder)).selectExpr(*columns)
        frame.write.format("lazaretto").options(**options).mode("append").save()
    else:
        stream = spark.readStream.schema("value string").text(str(folder)).selectExpr(*columns)
        writer = stream.writeStream.format("lazaretto").options(**options).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "check")).start().awaitTermination()
    first, second = broker.dead_letters("work")
    assert (first.reason, first.description) == ("BadPrice", "too low")
    assert first.message is not None and second.message is not None
    assert {first.message.body, second.message.body} == {b"1", b"2"}
    assert dict(first.message.properties) == {"region": "eu", "origin.topic": "orders", "origin.offset": 7}
    letter = broker.dead_letter("work", first.sequence_number)
    (attempt,) = letter.attempts
    assert (letter.error_type, attempt.stack) == ("shop.PriceError", "Traceback: line 1")
    assert letter.error_message == f"price of {first.message.body.decode()}"
    broker.resubmit("work", first.sequence_number)
    assert [m.body for m in broker.peek("work", 9)] == [first.message.body]
    assert broker.triage("work").causes[0].letters == 1


def test_bad_rows_of_a_micro_batch_are_logged(
    broker: Broker, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = StreamWriter(SparkOptions(store=str(store), queue="out"))
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"1", None, None], pa.binary())})
    writer.commit([writer.write(iter([batch]))], 7)
    assert "2 rows that cannot be messages are dead letters of 'out' (micro-batch 7)" in caplog.text
    assert (broker.queue("out").counts.active, broker.queue("out").counts.dead_letter) == (1, 2)


def test_a_topic_has_no_dead_letters(spark: Any, broker: Broker, store: Path) -> None:
    broker.create_topic("news")
    with pytest.raises(Exception, match="dead-letter subqueue"):
        save(spark.sql("SELECT 'x' AS body, 'no' AS reason"), store, "news", subqueue="dead_letter")


def test_what_was_staged_and_not_sent_is_forgotten(broker: Broker, store: Path) -> None:
    writer = StreamWriter(SparkOptions(store=str(store), queue="out"))
    staged = writer.write(iter([]))
    assert isinstance(staged, Staged)
    writer.abort([staged, None], 1)
    writer.commit([staged], 1)
    assert broker.queue("out").counts.total == 0


def test_a_write_that_reached_no_store_has_nothing_to_forget(tmp_path: Path) -> None:
    writer = TableWriter(SparkOptions(store=str(tmp_path / "none.db"), queue="out"))
    # Of a task that failed, Spark hands over no message. An error here would hide the task's.
    writer.abort([None])
