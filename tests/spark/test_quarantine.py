"""Rows of any source: those that fail are letters once, come back once, and hold up nothing."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from lazaretto import Broker, InvalidOption, Message, PoisonPolicy, QueueOptions
from lazaretto.model.messages import as_message
from lazaretto.spark import DatabaseResults, lineage, quarantine

from .test_refused_results import Table

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)
KAFKA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "price decimal(10,2)"
)


def book(row: Any) -> Any:
    """Book an order of Kafka; what the body says may raise or crash."""
    import json
    import os

    if row.value == b"crash":
        os._exit(3)
    order = json.loads(row["value"])
    return {"item": order["item"], "price": row.price, "at": row.timestamp, "key": row.key}


SCHEMA = "item string, price decimal(10,2), at timestamp, key binary"


class Flow:
    """A topic as a folder of files, and its quarantine."""

    def __init__(self, spark: Any, url: str, folder: Path) -> None:
        self.spark, self.url, self.folder = spark, url, folder
        self.results = folder / "results"
        self._offset = 0
        (folder / "topic").mkdir()

    def add(self, *bodies: str | None, first: int | None = None) -> None:
        offset = self._offset if first is None else first
        rows = [
            (b"k%d" % n, None if body is None else body.encode(), "orders", 0, offset + n)
            for n, body in enumerate(bodies)
        ]
        self._offset = max(self._offset, offset + len(rows))
        kafka = "key binary, value binary, topic string, partition int, offset bigint"
        frame = self.spark.createDataFrame(rows, kafka).selectExpr(
            "*", "timestamp_micros(1700000000000000 + offset) AS timestamp",
            "IF(offset = 1, NULL, CAST(9.50 AS DECIMAL(10,2))) AS price",
        )  # fmt: skip
        frame.coalesce(1).write.mode("append").parquet(str(self.folder / "topic"))

    def stream(self) -> Any:
        return self.spark.readStream.schema(KAFKA).parquet(str(self.folder / "topic"))

    def run(self, handler: Any = book, checkpoint: str = "checkpoint", **options: Any) -> None:
        given = {"results": str(self.results), "schema": SCHEMA, "body": "value", "deadline": 30, **options}
        query = quarantine(
            self.stream(),
            handler,
            store=self.url,
            queue="work",
            checkpoint=str(self.folder / checkpoint),
            **given,
        )
        assert isinstance(query, StreamingQuery)
        query.awaitTermination()

    def rows(self) -> list[tuple[Any, ...]]:
        found = self.spark.read.parquet(str(self.results)).collect()
        return sorted(((row.item, row.price, row.at.microsecond, bytes(row.key)) for row in found), key=str)


@pytest.fixture
def flow(spark: Any, url: str, tmp_path: Path) -> Flow:
    return Flow(spark, url, tmp_path)


def bodies(broker: Broker) -> list[bytes]:
    found = []
    for letter in broker.dead_letters("work"):
        assert letter.message is not None
        found.append(letter.message.body)
    return sorted(found)


def with_body(body: bytes) -> Callable[[Any], Message]:
    """Return an edit that changes nothing but the body."""
    return lambda letter: msgspec.structs.replace(as_message(letter.message), body=body)


def again(flow: Flow) -> None:
    """Have Spark forget that it is done with the last micro-batch."""
    commits = sorted((flow.folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    commits[-1].unlink()
    for file in commits[-1].parent.glob(f".{commits[-1].name}.crc"):
        file.unlink()


@pytest.mark.stores("sqlite", "postgres")
def test_rows_that_fail_are_letters_and_come_back_once(flow: Flow, broker: Broker) -> None:
    flow.add('{"item": "lamp"}', "{", None, '{"item": "desk"}', "crash")
    flow.run()
    assert [row[0] for row in flow.rows()] == ["desk", "lamp"]
    assert bodies(broker) == [b"", b"crash", b"{"]
    letters = {bytes(letter.message.body): letter for letter in broker.dead_letters("work") if letter.message}
    assert letters[b"crash"].error_type == "WorkerCrashed"
    assert letters[b"{"].error_type == "json.decoder.JSONDecodeError"
    properties = letters[b"{"].message.properties  # type: ignore[union-attr]
    assert (properties["origin.topic"], properties["origin.offset"], properties["offset"]) == ("orders", 1, 1)
    assert "JSONDecodeError" in (
        broker.dead_letter("work", letters[b"{"].sequence_number).attempts[0].stack or ""
    )
    again(flow)
    flow.run()
    assert len(flow.rows()) == 2
    assert len(bodies(broker)) == 3
    # Repaired: the same row, its nulls and types included, once; the source has nothing new.
    broker.resubmit("work", letters[b"{"].sequence_number, edit=with_body(b'{"item": "sofa"}'))
    broker.resubmit("work", letters[b""].sequence_number)
    for _ in range(2):
        flow.run()
        assert flow.rows()[2:] == [("sofa", None, 1, b"k1")]
        again(flow)
    assert bodies(broker) == [b"", b"crash"]
    (back,) = [letter for letter in broker.dead_letters("work") if letter.message and not letter.message.body]
    assert back.error_type == "TypeError"
    assert broker.queue("work").counts.active == 0


def test_what_dies_between_the_commits_neither_loses_nor_doubles(
    flow: Flow, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lazaretto.spark import quarantine_sink

    flow.add('{"item": "lamp"}', "{")
    for place, name in (
        (quarantine_sink.QuarantineSink, "_settle"),
        (quarantine_sink.QuarantineSink, "_publish"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, lambda *_: 1 / 0)
            with pytest.raises(Exception, match="division by zero"):
                flow.run()
        assert len(bodies(broker)) == (0 if name == "_settle" else 1)
        assert not flow.results.exists() or not list(flow.results.glob("claim=*/part-*"))
    flow.run()
    assert [row[0] for row in flow.rows()] == ["lamp"]
    assert bodies(broker) == [b"{"]


def test_one_letter_for_each_origin(flow: Flow, broker: Broker) -> None:
    flow.add("{")
    flow.run()
    # The whole topic once more; then it was deleted and made anew, with another row at that place.
    flow.run(checkpoint="another")
    assert bodies(broker) == [b"{"]
    shutil.rmtree(flow.folder / "topic")
    (flow.folder / "topic").mkdir()
    flow.add("[", first=0)
    flow.run(checkpoint="a third")
    assert bodies(broker) == [b"[", b"{"]
    assert [event.detail["before"] for event in broker.events(kind="origin_reused")] == [1]


def count(row: Any) -> Any:
    return {"n": int(row.line)}


def test_two_equal_lines_of_a_file_are_two_letters(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("1\nbad\n2\nbad\n")
    lines = spark.readStream.schema("line string").text(str(folder))
    for checkpoint in ("one", "other"):
        query = quarantine(
            lines, count, store=url, queue="work", checkpoint=str(tmp_path / checkpoint), isolation="inline"
        )
        assert isinstance(query, StreamingQuery)
        query.awaitTermination()
        assert bodies(broker) == [b'{"line":"bad"}', b'{"line":"bad"}']


def test_a_table_is_run_once(spark: Any, broker: Broker, url: str, tmp_path: Path) -> None:
    table = spark.createDataFrame([(1, "1"), (2, "x"), (3, "3")], "id int, line string")

    def run() -> list[int]:
        done = quarantine(
            table, count, store=url, queue="work", checkpoint=str(tmp_path / "check"), origin=["id"],
            results=str(tmp_path / "results"), schema="n bigint",
        )  # fmt: skip
        assert isinstance(done, DataFrame)
        return sorted(row.n for row in done.collect())

    assert run() == [1, 3]
    assert bodies(broker) == [b'{"id":2,"line":"x"}']
    number = next(iter(broker.dead_letters("work"))).sequence_number
    broker.resubmit("work", number, edit=with_body(b'{"id":2,"line":"2"}'))
    assert run() == [1, 3]
    assert sorted(row.n for row in spark.read.parquet(str(tmp_path / "results")).collect()) == [1, 2, 3]
    assert bodies(broker) == []


def test_a_policy_retries_within_the_queue(spark: Any, broker: Broker, url: str, tmp_path: Path) -> None:
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=2))
    table = spark.createDataFrame([(1, "x")], "id int, line string")
    for _ in range(3):
        quarantine(table, count, store=url, queue="work", checkpoint=str(tmp_path / "check"), origin=["id"])
    (letter,) = broker.dead_letters("work")
    assert letter.counters.failures == 3


def fail(row: Any) -> Any:
    raise ConnectionError("the database is down")


def test_an_outage_sets_nothing_aside(flow: Flow, broker: Broker) -> None:
    flow.add(*['{"item": "lamp"}'] * 200)
    with pytest.raises(Exception, match="Nothing of this micro-batch was stored or set aside"):
        flow.run(fail)
    assert broker.queue("work").counts.total == 0
    flow.run()
    assert len(flow.rows()) == 200


def order(row: Any, context: Any) -> Any:
    """Send on what is ordered; set aside what is asked for, by a handler with context of parsed bodies."""
    from lazaretto import Message

    item = row.value["item"]
    context.send("out", Message(item.encode(), subject=str(context.attempt)))
    if item == "fake":
        context.dead_letter("NotForSale", "nobody makes these")
    return {"item": item, "price": row.value["price"], "at": row.timestamp, "key": row.key}


@pytest.mark.stores("sqlite", "postgres")
def test_a_handler_with_context_of_parsed_bodies(flow: Flow, broker: Broker) -> None:
    flow.add('{"item": "lamp", "price": 9.50}', '{"item": "fake"}', '{"item": 7}', "{")
    given = {"parse": "json", "body_schema": "item string, price decimal(10,2)"}
    for _ in range(2):
        flow.run(order, **given)
        assert [(row[0], str(row[1])) for row in flow.rows()] == [("lamp", "9.50")]
        # What was set aside by its handler has sent, too; what does not fit has not come to it.
        assert sorted((m.body, m.subject) for m in broker.peek("out", 9)) == [(b"fake", "1"), (b"lamp", "1")]
        again(flow)
    letters = {one.message.body: one for one in broker.dead_letters("work") if one.message is not None}
    assert {body: one.reason for body, one in letters.items()} == {
        b'{"item": "fake"}': "NotForSale", b'{"item": 7}': "InvalidMessage", b"{": "InvalidMessage",
    }  # fmt: skip
    assert "$.item" in str(letters[b'{"item": 7}'].error_message)
    broker.resubmit("work", letters[b"{"].sequence_number, edit=with_body(b'{"item": "sofa"}'))
    broker.resubmit("work", letters[b'{"item": 7}'].sequence_number)
    flow.run(order, **given)
    assert [row[0] for row in flow.rows()] == ["lamp", "sofa"]
    assert sorted(bodies(broker)) == [b'{"item": "fake"}', b'{"item": 7}']
    assert [m.subject for m in broker.peek("out", 9) if m.body == b"sofa"] == ["2"]


def prices(batch: Any) -> Any:
    """Book a batch of parsed orders; one that costs nothing fails it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    assert batch.schema.names[:2] == ["key", "value"], batch.schema.names
    item = pc.struct_field(batch.column("value"), "item")
    if pc.any(pc.equal(item, "nothing")).as_py():
        raise ValueError("it costs nothing")
    columns = {"item": item, "price": batch.column("price"), "at": batch.column("timestamp")}
    return pa.RecordBatch.from_pydict({**columns, "key": batch.column("key")})


def test_a_vectorised_handler_gets_batches_of_the_columns(flow: Flow, broker: Broker) -> None:
    flow.add(*['{"item": "lamp"}'] * 40, '{"item": "nothing"}', "{", *['{"item": "desk"}'] * 40)
    given = {"parse": "json", "body_schema": "item string", "isolation": "vectorised"}
    flow.run(prices, **given)
    assert [row[0] for row in flow.rows()] == ["desk"] * 40 + ["lamp"] * 40
    assert bodies(broker) == [b"{", b'{"item": "nothing"}']
    for letter in list(broker.dead_letters("work")):
        broker.resubmit("work", letter.sequence_number, edit=with_body(b'{"item": "sofa"}'))
    flow.run(prices, **given)
    assert [row[0] for row in flow.rows()][80:] == ["sofa", "sofa"]
    assert broker.queue("work").counts.total == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"handler": order, "isolation": "vectorised"}, "takes only a batch"),
        ({"isolation": "thread"}, "one of process, inline, vectorised"),
        ({"parse": "json", "body_schema": "n int"}, "name it, as body='value'"),
        ({"parse": "json"}, "needs the option body_schema"),
        ({"registry": True}, "registry needs parse"),
        ({"validator": {"type": "object"}}, "a function of a row, or parse"),
        ({"origin": None}, "name the columns that tell"),
        ({"origin": ["nowhere"]}, "expected origin to be columns of the source"),
        ({"body": "nowhere"}, "no column 'nowhere' to be the body"),
        ({"body": "value"}, "text or binary, to be a body"),
        ({"queue": "sessions"}, "has sessions"),
        ({"queue": "news"}, "subscriptions"),
        ({"results": DatabaseResults(print, "results"), "schema": "n bigint"}, "need a table 'results'"),
        ({"results": "folder"}, "both results and schema"),
        ({"max_row": 1}, "did you mean 'max_rows'"),
        ({"trigger": {"continuous": "1 second"}}, "no micro-batches"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(
    spark: Any, broker: Broker, url: str, tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    broker.create_queue("sessions", QueueOptions(requires_session=True))
    broker.create_topic("news")
    rate = spark.readStream.format("rate").load()
    given = {"handler": count, "queue": "work", "origin": ["value"], **options}
    with pytest.raises(InvalidOption if text != "subscriptions" else Exception, match=text):
        quarantine(rate, given.pop("handler"), store=url, checkpoint=str(tmp_path / "check"), **given)


def test_a_stream_that_goes_on_takes_what_is_sent_back(flow: Flow, broker: Broker) -> None:
    flow.add('{"item": "lamp"}', "{")
    query = quarantine(
        flow.stream(), book, store=flow.url, queue="work", checkpoint=str(flow.folder / "checkpoint"),
        body="value", results=str(flow.results), schema=SCHEMA, trigger={"processingTime": "0 seconds"},
    )  # fmt: skip
    assert isinstance(query, StreamingQuery)
    try:
        query.processAllAvailable()
        broker.resubmit(
            "work",
            next(iter(broker.dead_letters("work"))).sequence_number,
            edit=with_body(b'{"item": "sofa"}'),
        )
        query.processAllAvailable()
    finally:
        query.stop()
    assert [row[0] for row in flow.rows()] == ["lamp", "sofa"]


@pytest.mark.parametrize("isolation", ["process", "vectorised"])
@pytest.mark.stores("sqlite", "postgres")
def test_what_a_database_refuses_is_a_letter_and_comes_back_once(
    flow: Flow, broker: Broker, url: str, tmp_path: Path, isolation: str
) -> None:
    table = Table(url, tmp_path)
    table.sql("INSERT INTO results VALUES (0, 0, 4, 'there before')")
    good = [f'{{"n": {n}, "text": "t"}}' for n in range(100, 120)]
    # What the table refuses of itself, beside what is there, and of results of two tasks together.
    flow.add(*good, '{"n": 13, "text": "t"}', '{"n": 4, "text": "t"}', '{"n": 5}', "{")
    flow.add('{"n": 119, "text": "again"}')
    vectorised = isolation == "vectorised"
    given = {
        "results": table.sink(), "schema": "n bigint, text string", "isolation": isolation,
        "parse": "json", "body_schema": "n bigint, text string",
    }  # fmt: skip
    handler: Any = columns_of if vectorised else fields_of
    for _ in range(2):
        flow.run(handler, **given)
        assert sorted(n for (n,) in table.sql("SELECT n FROM results")) == [4, *range(100, 120)]
        # Which of two that exclude each other was the first, nobody knows.
        left = [body for body in bodies(broker) if b"119" not in body]
        assert left == [b"{", b'{"n": 13, "text": "t"}', b'{"n": 4, "text": "t"}', b'{"n": 5}']
        assert len(bodies(broker)) == 5
        again(flow)
    assert table.sql("SELECT count(*) FROM results_staged") == [(0,)]
    kinds = {one.message.body: one.error_type for one in broker.dead_letters("work") if one.message}
    assert "Integrity" in str(kinds[b'{"n": 5}']) or "NotNull" in str(kinds[b'{"n": 5}'])
    for letter in list(broker.dead_letters("work")):
        if letter.message is not None and letter.message.body == b'{"n": 5}':
            edit = with_body(b'{"n": 5, "text": "five"}')
            broker.resubmit("work", letter.sequence_number, edit=edit)
    flow.run(handler, **given)
    assert table.sql("SELECT n FROM results WHERE text = 'five' AND sequence_number > 0") == [(5,)]
    assert table.sql("SELECT count(*) FROM results WHERE sequence_number IS NULL") == [(20,)]
    assert len(bodies(broker)) == 4


def fields_of(row: Any) -> Any:
    return row.value


def columns_of(batch: Any) -> Any:
    import pyarrow as pa

    values = batch.column("value")
    return pa.RecordBatch.from_arrays([values.field("n"), values.field("text")], names=["n", "text"])


@pytest.mark.parametrize("isolation", ["process", "vectorised"])
def test_lineage_tells_of_each_row_where_it_came_from_and_ended(
    flow: Flow, broker: Broker, url: str, isolation: str
) -> None:
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=1))
    flow.add('{"n": 1, "text": "a"}', '{"n": "x"}', '{"n": 3, "text": "c"}')
    handler: Any = columns_of if isolation == "vectorised" else fields_of
    given: dict[str, Any] = {
        "schema": "n bigint, text string", "isolation": isolation, "parse": "json",
        "body_schema": "n bigint, text string", "keep_origin": True,
    }  # fmt: skip
    flow.run(handler, **given)

    def table() -> dict[str, tuple[str, Any]]:
        found = lineage(flow.spark, store=url, queue="work", results=str(flow.results))
        return {
            str(json.loads(row.origin)["offset"]): (row.outcome, row.result and row.result.n)
            for row in found.collect()
        }

    assert table() == {"0": ("completed", 1), "1": ("dead_lettered", None), "2": ("completed", 3)}
    number = next(iter(broker.dead_letters("work"))).sequence_number
    broker.resubmit("work", number, edit=with_body(b'{"n": 2}'))
    assert table()["1"] == ("waiting", None)
    flow.run(handler, **given)
    assert table() == {"0": ("completed", 1), "1": ("completed", 2), "2": ("completed", 3)}


def test_a_stream_of_a_queue_is_refused(spark: Any, broker: Broker, url: str, tmp_path: Path) -> None:
    stream = spark.readStream.format("lazaretto").option("store", url).option("queue", "out").load()
    with pytest.raises(InvalidOption, match="settled by process"):
        quarantine(stream, count, store=url, queue="work", checkpoint=str(tmp_path), origin=["claim"])


def compressed(lines: list[str]) -> bytes:
    return gzip.compress("".join(f"{line}\n" for line in lines).encode())


def as_parquet(lines: list[str]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"line": lines}), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize(
    ("kind", "end", "encode"), [("text", ".txt.gz", compressed), ("parquet", ".parquet", as_parquet)]
)
def test_a_file_that_is_cut_short_sets_nothing_aside(
    spark: Any,
    broker: Broker,
    url: str,
    tmp_path: Path,
    kind: str,
    end: str,
    encode: Callable[[list[str]], bytes],
) -> None:
    """Spark cannot say which rows such a file had: the query ends, or leaves the rest of it out."""
    lines = [*map(str, range(1, 20_000)), "bad"]
    (tmp_path / "in").mkdir()
    for place, some in enumerate((lines, [f"{line}0" for line in lines])):
        content = encode(some)
        (tmp_path / "in" / f"{place}{end}").write_bytes(content[: len(content) // (1 + place)])

    def run(**options: str) -> None:
        reader = spark.readStream.format(kind).schema("line string").options(**options)
        query = quarantine(
            reader.load(str(tmp_path / "in")), count, store=url, queue="work", isolation="inline",
            checkpoint=str(tmp_path / "check"), results=str(tmp_path / "results"), schema="n bigint",
        )  # fmt: skip
        assert isinstance(query, StreamingQuery)
        query.awaitTermination()

    with pytest.raises(Exception, match=r"1\.txt\.gz|end of|1\.parquet"):
        run()
    assert broker.queue("work").counts.total == 0
    run(ignoreCorruptFiles="true")
    done = [row.n for row in spark.read.parquet(str(tmp_path / "results")).collect()]
    assert set(done) >= set(range(1, 20_000))
    assert b'{"line":"bad"}' in bodies(broker)
