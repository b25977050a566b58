"""Writing to a queue from Spark: a table in one commit, each micro-batch of a stream once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lazaretto import Broker, QueueOptions
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.writer import Staged, StreamWriter, TableWriter

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")


def save(frame: Any, store: Path, queue: str = "out", mode: str = "append") -> None:
    frame.write.format("lazaretto").option("store", str(store)).option("queue", queue).mode(mode).save()


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
