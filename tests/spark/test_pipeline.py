"""A handler on a stream of messages: each settled once, and no bad one stops the query."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf
from traced import PARENT, attributes, links, traced

from lazaretto import (
    Broker,
    Disposition,
    EntityNotFound,
    HandlerError,
    InvalidOption,
    Message,
    NotAllowed,
    PoisonPolicy,
    PoisonSession,
    QueueOptions,
    StoreNotFound,
)
from lazaretto.observe.traces import MOST_LINKS
from lazaretto.spark import process
from lazaretto.spark.parquet_results import ParquetResults
from lazaretto.spark.pipeline import refuse_remote, refuse_speculation

from .acts import act

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)

SCHEMA = "n bigint, text string"


class Pipeline:
    """Runs pipelines on the queue `work`, each with the same checkpoint. `direct`: tasks read messages."""

    def __init__(self, spark: Any, store: Path, url: str, *, direct: bool) -> None:
        self._spark = spark
        self.direct = direct
        self.store = url
        self.checkpoint = str(store.with_name("checkpoint"))
        self.results = str(store.with_name("results"))

    def stream(self, **options: Any) -> Any:
        reader = (
            self._spark.readStream.format("lazaretto").option("store", self.store).option("queue", "work")
        )
        return reader.options(**options).load()

    def start(self, handler: Any, *, stream: dict[str, Any] | None = None, **options: Any) -> Any:
        given = {"results": self.results, "schema": SCHEMA, "deadline": 60, **options}
        source = self._spark if self.direct else self.stream(**(stream or {}))
        if self.direct:
            given |= stream or {}
        return process(
            source, handler, store=self.store, queue="work",
            checkpoint=self.checkpoint, **given,
        )  # fmt: skip

    def run(self, handler: Any, **options: Any) -> Any:
        query = self.start(handler, **options)
        query.awaitTermination()
        return query

    def rows(self) -> list[tuple[int, int, str]]:
        found = self._spark.read.parquet(self.results).select("sequence_number", "n", "text").collect()
        return sorted(tuple(row) for row in found)


@pytest.fixture
def pipeline(spark: Any, store: Path, url: str, broker: Broker, request: pytest.FixtureRequest) -> Pipeline:
    """A pipeline: tasks read messages, or with the parameter "stream" a stream that Spark loads."""
    return Pipeline(spark, store, url, direct=getattr(request, "param", "direct") == "direct")


both_stores = pytest.mark.stores("sqlite", *(["postgres"] if "LAZARETTO_SOAK" in os.environ else []))
both_sources = pytest.mark.parametrize("pipeline", ["direct", "stream"], indirect=True)


def send(broker: Broker, *bodies: bytes, **fields: Any) -> list[int]:
    return broker.sender("work").send([Message(body, **fields) for body in bodies])


@both_stores
@both_sources
def test_every_message_is_settled_once_and_has_its_result(broker: Broker, pipeline: Pipeline) -> None:
    numbers = broker.sender("work").send([Message(b"%d" % n, subject=f"s{n}") for n in range(250)])
    query = pipeline.run(act, stream={"max_rows": 100})
    assert pipeline.rows() == [(number, n, f"s{n}") for n, number in enumerate(numbers)]
    assert broker.queue("work").counts.total == 0
    assert next(claim.outcomes for claim in broker.claims("work")) == {"completed": 50}
    metrics = [progress["observedMetrics"]["lazaretto"].asDict() for progress in query.recentProgress]
    assert [metric["completed"] for metric in metrics if metric["rows"]] == [100, 100, 50]
    assert [metric["claim"] for metric in metrics if metric["rows"]] == [1, 2, 3]
    assert metrics[0]["handler_seconds"] > 0
    assert (metrics[0]["read_seconds"] > 0) is pipeline.direct
    event = broker.events(0, kind="claim_settled")[0]
    assert event.detail["outcomes"] == {"completed": 100}
    assert {"read", "handler", "results", "settle"} == set(event.detail["seconds"])
    send(broker, b"7")
    pipeline.run(act)
    assert len(pipeline.rows()) == 251


def _trace(message: Any, context: Any) -> Any:
    """Return the trace context of a message, and pass it on."""
    found = message.properties["traceparent"]
    if message.body == b"dead":
        context.dead_letter("Because")
    context.send("out", message)
    return {"n": 1, "text": found}


@both_stores
@both_sources
def test_the_trace_context_stays_with_a_message(broker: Broker, pipeline: Pipeline) -> None:
    send(broker, b"good", b"dead", properties={"traceparent": PARENT})
    pipeline.run(_trace)
    assert pipeline.rows() == [(1, 1, PARENT)]
    (letter,) = broker.peek("work", 9, subqueue="dead_letter")
    carried = [letter, *broker.peek("out", 9)]
    assert [message.properties for message in carried] == [{"traceparent": PARENT}] * 3


@both_sources
def test_a_span_for_each_shard_links_to_where_messages_come_from(broker: Broker, pipeline: Pipeline) -> None:
    send(broker, b"1", b"raise", properties={"traceparent": PARENT})
    send(broker, b"2", properties={"traceparent": "hunter2"})
    send(broker, *(b"3" for _ in range(200)), properties={"traceparent": PARENT})
    with traced() as traces:
        pipeline.run(act, stream={"shards": 1})
        (span,) = traces.named("process work")
    assert links(span) == [PARENT] * (MOST_LINKS - 1)
    told = attributes(span)
    assert (told["lazaretto.claim"], told["batch.message_count"], span.kind.name) == (1, 203, "CONSUMER")
    assert span.start_time is not None and span.end_time is not None and span.start_time < span.end_time
    assert "hunter2" not in span.to_json()
    send(broker, b"4")
    pipeline.run(act)


@both_stores
@both_sources
@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_each_way_to_end(broker: Broker, pipeline: Pipeline, isolation: str) -> None:
    fine = [b"emit", b"nothing", b"", b"defer"]
    bad = {
        b"raise": "ValueError", b"wide": "lazaretto.spark.results.ResultSchemaError",
        b"odd": "lazaretto.spark.results.ResultSchemaError", b"nowhere": "lazaretto.errors.EntityNotFound",
        b"sql": "lazaretto.errors.TransactionError", b"\xff\xfe": "UnicodeDecodeError", b"dead": None,
    }  # fmt: skip
    deadly = {
        b"exit": "WorkerCrashed",
        b"abort": "WorkerCrashed",
        b"sleep": "HandlerTimeout",
        b"regex": "HandlerTimeout",
    }
    bad |= deadly if isolation == "process" else {}
    send(
        broker,
        *[body for pair in zip([*fine * 3], [*bad, *fine], strict=False) for body in pair],
        *fine,
        *bad,
    )
    pipeline.run(act, isolation=isolation, deadline=3, breaker=None)
    dead: dict[bytes, str | None] = {}
    for letter in broker.dead_letters("work"):
        assert letter.message is not None
        dead[letter.message.body] = letter.error_type
    assert dead == bad
    counts = broker.queue("work").counts
    assert counts.total == counts.deferred + counts.dead_letter
    assert {m.body for m in broker.peek("out", 99)} == {b"hello"}
    letter = next(d for d in broker.dead_letters("work") if d.error_type == "ValueError")
    stack = broker.dead_letter("work", letter.sequence_number).attempts[0].stack
    assert stack is not None
    assert 'raise ValueError("no")' in stack


def test_what_fails_is_tried_again_as_the_queue_says(broker: Broker, pipeline: Pipeline) -> None:
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=2))
    send(broker, b"raise", b"1")
    pipeline.run(act)
    (letter,) = broker.dead_letters("work")
    assert letter.counters.failures == 3
    assert len(pipeline.rows()) == 1


@both_stores
@both_sources
def test_sessions_stay_in_order_behind_what_fails(spark: Any, broker: Broker, pipeline: Pipeline) -> None:
    broker.delete_queue("work")
    policy = PoisonPolicy(receive_retry_count=0)
    broker.create_queue(
        "work", QueueOptions(requires_session=True, on_poison_session=PoisonSession.BLOCK, policy=policy)
    )
    for n in range(6):
        bodies = [(f"s{s}", b"raise" if (s, n) in ((1, 2), (3, 0)) else b"%d" % n) for s in range(5)]
        broker.sender("work").send(
            [Message(body, session_id=session, subject=session) for session, body in bodies]
        )
    pipeline.run(act, breaker=None)
    done: dict[str, list[int]] = {}
    for _, n, session in pipeline.rows():
        done.setdefault(session, []).append(n)
    assert done == {"s0": [*range(6)], "s1": [0, 1], "s2": [*range(6)], "s4": [*range(6)]}
    assert [held.session_id for held in broker.held_sessions("work")] == ["s3", "s1"]


@both_stores
@both_sources
def test_an_outage_ends_the_query_and_costs_nothing(broker: Broker, pipeline: Pipeline) -> None:
    def down(message: Any) -> None:
        raise ConnectionError("the database is down")

    send(broker, *[b"%d" % n for n in range(100)])
    query = pipeline.start(down)
    with pytest.raises(Exception, match=r"most messages of 'work' fail in the same way \(ConnectionError"):
        query.awaitTermination()
    assert broker.queue("work").counts.active == 100
    assert {m.delivery_count for m in broker.peek("work", 100)} == {0}
    pipeline.run(act)
    assert len(pipeline.rows()) == 100


class TableSink:
    """Results in a table, a claim's shard in place of what was there of it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, schema: Any, claim: int, shard: int) -> TablePart:
        return TablePart(self.path, claim, shard)

    def remove(self, claim: int) -> None:
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            connection.execute("DELETE FROM results WHERE claim = ?", (claim,))


class TablePart:
    def __init__(self, path: str, claim: int, shard: int) -> None:
        self._path, self._at = path, (claim, shard)
        self._rows: list[dict[str, Any]] = []

    def write(self, batch: Any) -> None:
        self._rows += batch.to_pylist()

    def close(self) -> None:
        with contextlib.closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            connection.execute("DELETE FROM results WHERE claim = ? AND shard = ?", self._at)
            rows = [(*self._at, row["sequence_number"], row["n"]) for row in self._rows]
            connection.executemany("INSERT INTO results VALUES (?, ?, ?, ?)", rows)


def test_results_go_where_the_user_wants_them(broker: Broker, pipeline: Pipeline, tmp_path: Path) -> None:
    sink = TableSink(str(tmp_path / "results.db"))
    with contextlib.closing(sqlite3.connect(sink.path)) as connection:
        connection.execute("CREATE TABLE results (claim INTEGER, shard INTEGER, number INTEGER, n INTEGER)")
        # Left by a run that was killed before it settled, and of a claim that was revoked.
        connection.execute("INSERT INTO results VALUES (1, 0, 1, 99)")
        connection.commit()
        send(broker, *[b"%d" % n for n in range(10)], b"raise", b"odd")
        pipeline.run(act, results=sink, breaker=None)
        found = connection.execute("SELECT number, n FROM results ORDER BY number").fetchall()
    assert found == [(n + 1, n) for n in range(10)]
    assert broker.queue("work").counts.dead_letter == 2


@both_stores
@both_sources
def test_large_bodies_and_none(broker: Broker, pipeline: Pipeline) -> None:
    broker.update_queue("work", max_message_size=100 * 1024 * 1024)
    broker.sender("work").send([Message(b"x" * 90_000_000), Message(b""), Message(b"\x00\xff")])

    def size(message: Any) -> Any:
        return {"n": len(message.body), "text": None}

    pipeline.run(size)
    assert [n for _, n, _ in pipeline.rows()] == [90_000_000, 0, 2]


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"maxRow": "5"}, "did you mean 'max_rows'"),
            ({"maxRows": "many"}, "expected option max_rows to be a number"),
            ({"maxRows": "0"}, "max_rows"),
            ({"queue": "nowhere"}, "nowhere"),
            ({"store": "/nowhere/at/all.db"}, "no store exists"),
            ({"store": "env:NO_SUCH_NAME"}, "NO_SUCH_NAME"),
        ],
    )
    def test_options_that_are_wrong(
        self, broker: Broker, pipeline: Pipeline, options: dict[str, str], text: str
    ) -> None:
        pipeline.direct = False
        with pytest.raises(Exception, match=text):
            pipeline.start(act, stream=options).awaitTermination()

    def test_what_process_refuses(self, broker: Broker, pipeline: Pipeline) -> None:
        for options, text in (
            ({"isolation": "magic"}, "isolation"),
            ({"results": None}, "expected both results and schema"),
            ({"deadlin": 3}, "did you mean 'deadline'"),
            ({"max_row": 3}, "unknown option 'max_row' of process; did you mean 'max_rows'"),
            # The host's: a queue has its policy, and Spark its tasks.
            ({"policy": PoisonPolicy()}, "unknown option 'policy' of process"),
            ({"schema": "n bigint, Claim bigint"}, "a column 'claim' of their own"),
            ({"schema": "sequence_number bigint"}, "a column 'sequence_number' of their own"),
            ({"schema": "n bigint, N string"}, "has the column 'n' twice"),
            ({"trigger": "availableNow"}, r"expected trigger to be a dict .*, got 'availableNow'"),
            ({"max_rows": 0}, "max_rows"),
            ({"shards": "many"}, "expected option shards to be a number"),
        ):
            with pytest.raises(InvalidOption, match=text):
                pipeline.start(act, **options)
        with pytest.raises(InvalidOption, match="max_rows is an option of the stream"):
            process(pipeline.stream(), act, store="x", queue="work", checkpoint="y", max_rows=5)
        with pytest.raises(InvalidOption, match="has no column"):
            process(pipeline.stream().drop("epoch"), act, store="x", queue="work", checkpoint="y")

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"queue": "wrk"}, EntityNotFound),
            ({"store": "/nowhere.db"}, StoreNotFound),
            ({"queue": "news"}, NotAllowed),
        ],
    )
    def test_a_queue_that_is_not_there_is_told_at_once(
        self, spark: Any, broker: Broker, pipeline: Pipeline, options: dict[str, Any], error: type[Exception]
    ) -> None:
        broker.create_topic("news")
        given = {"store": pipeline.store, "queue": "work", "checkpoint": pipeline.checkpoint, **options}
        with pytest.raises(error):
            process(spark, act, **given)

    @pytest.mark.parametrize("master", ["spark://somewhere:7077", "yarn", "k8s://https://somewhere"])
    def test_executors_elsewhere(self, master: str) -> None:
        refuse_remote("local[2,4]", "shop.db")
        with pytest.raises(InvalidOption, match="is on one machine"):
            refuse_remote(master, "shop.db")

    def test_a_sink_that_cannot_tell_two_attempts_apart(self, tmp_path: Path) -> None:
        settings = SparkConf(loadDefaults=False)
        plain, publishes = TableSink(str(tmp_path / "results.db")), ParquetResults(str(tmp_path / "results"))
        refuse_speculation(plain, settings)
        settings.set("spark.speculation", "True")
        for harmless in (None, publishes):
            refuse_speculation(harmless, settings)
        with pytest.raises(InvalidOption, match=r"spark\.speculation.*give it open_stage and publish"):
            refuse_speculation(plain, settings)

    def test_a_stream_that_was_repartitioned(self, broker: Broker, pipeline: Pipeline) -> None:
        send(broker, *[b"%d" % n for n in range(100)])
        stream, where = pipeline.stream().repartition(4), pipeline.checkpoint
        query = process(stream, act, store=pipeline.store, queue="work", checkpoint=where)
        with pytest.raises(Exception, match="repartitioned before process"):
            query.awaitTermination()
        assert broker.queue("work").counts.locked == 100
        pipeline.run(act)
        assert len(pipeline.rows()) == 100

    def test_a_checkpoint_of_another_queue(
        self, broker: Broker, pipeline: Pipeline, spark: Any, tmp_path: Path
    ) -> None:
        send(broker, b"1")
        pipeline.run(act)
        broker.sender("out").send(Message(b"2"))
        stream = spark.readStream.format("lazaretto").option("store", pipeline.store).option("queue", "out")
        with pytest.raises(Exception, match="checkpoint is not of consumer 'spark' of 'out'"):
            process(
                stream.load(), act, store=pipeline.store, queue="out", checkpoint=pipeline.checkpoint
            ).awaitTermination()
        assert broker.queue("out").counts.active == 1

    def test_a_store_older_than_the_checkpoint(self, broker: Broker, pipeline: Pipeline) -> None:
        backup = Path(f"{pipeline.store}-backup")
        send(broker, b"1")
        pipeline.run(act)
        with contextlib.closing(sqlite3.connect(pipeline.store)) as connection:
            connection.execute("VACUUM INTO ?", (str(backup),))
        send(broker, b"2")
        pipeline.run(act)
        pipeline.store = str(backup)
        with pytest.raises(Exception, match="the store is older"):
            pipeline.run(act)

    def test_a_handler_that_cannot_be_pickled(self, broker: Broker, pipeline: Pipeline) -> None:
        lock = threading.Lock()

        def locked(message: Any) -> Any:
            with lock:
                return None

        send(broker, b"1")
        told = (
            r"locked.* cannot be sent .*cannot pickle .*\(its variable 'lock'\)\. Spark sends .* in a module"
        )
        for isolation in ("process", "inline", "vectorised"):
            with pytest.raises(HandlerError, match=told):
                pipeline.start(locked, isolation=isolation)
        assert broker.queue("work").counts.active == 1

    def test_a_disabled_queue(self, broker: Broker, pipeline: Pipeline) -> None:
        send(broker, b"1")
        broker.update_queue("work", policy=PoisonPolicy(disable_after_rollbacks=1))
        with contextlib.suppress(ZeroDivisionError), broker.transaction() as tx:
            tx.receive("work")
            raise ZeroDivisionError
        with pytest.raises(Exception, match=r"queue .work. cannot be received from"):
            pipeline.run(act)

    def test_a_store_that_vanishes_meanwhile(self, broker: Broker, pipeline: Pipeline) -> None:
        send(broker, *[b"%d" % n for n in range(10)])
        broker.close()
        store, away = pipeline.store, f"{pipeline.store}-away"

        def slow(message: Any) -> Any:
            if message.body == b"5" and not Path(away).exists():
                for end in ("", "-wal", "-shm"):
                    if Path(store + end).exists():
                        Path(store + end).rename(away + end)
            return {"n": int(message.body), "text": None}

        with pytest.raises(Exception, match="no store exists"):
            pipeline.run(slow, isolation="inline")
        for end in ("", "-wal", "-shm"):
            moved = Path(away + end)
            if moved.exists():
                moved.rename(store + end)
        pipeline.run(act)
        assert [n for _, n, _ in pipeline.rows()] == list(range(10))

    def test_a_second_driver_ends_the_first(self, broker: Broker, pipeline: Pipeline, tmp_path: Path) -> None:
        send(broker, b"1")
        first = pipeline.start(act, trigger={"processingTime": "100 milliseconds"})
        while not broker.claims("work") or broker.claims("work")[0].state == "open":
            first.awaitTermination(0.1)
        pipeline.checkpoint = str(tmp_path / "another")
        pipeline.run(act)
        send(broker, b"2")
        with pytest.raises(Exception, match="another driver has taken over"):
            first.awaitTermination()
        pipeline.run(act)
        assert [n for _, n, _ in pipeline.rows()] == [1, 2]

    def test_a_revoked_claim_is_passed_over_and_leaves_no_results(
        self, broker: Broker, pipeline: Pipeline, tmp_path: Path
    ) -> None:
        send(broker, *[b"%d" % n for n in range(10)])
        revoked = tmp_path / "revoked"

        def slow(message: Any) -> Any:
            import time

            while message.body == b"9" and not revoked.exists():
                time.sleep(0.01)
            return {"n": int(message.body), "text": None}

        query = pipeline.start(slow)
        while not broker.claims("work"):
            query.awaitTermination(0.1)
        broker.revoke_claim("work", "spark", 1)
        revoked.touch()
        query.awaitTermination()
        pipeline.run(act)
        assert [n for _, n, _ in pipeline.rows()] == list(range(10))

    def test_a_halted_queue_ends_the_query_with_its_error(self, broker: Broker, pipeline: Pipeline) -> None:
        broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=0, on_poison=Disposition.FAULT))
        send(broker, b"raise", b"1")
        with pytest.raises(Exception, match="halted"):
            pipeline.run(act)


class TestWhoseResults:
    def other(self, spark: Any, pipeline: Pipeline, **said: Any) -> Any:
        given = {
            "store": pipeline.store,
            "queue": "work",
            "schema": SCHEMA,
            "results": pipeline.results,
            **said,
        }
        return process(spark, act, **{"checkpoint": f"{pipeline.checkpoint}-other", **given})

    def test_a_folder_is_refused_that_belongs_to_another_consumer(
        self, spark: Any, broker: Broker, pipeline: Pipeline
    ) -> None:
        send(broker, *[b"%d" % n for n in range(10)])
        pipeline.run(act)
        broker.sender("out").send(Message(b"1"))
        for said in ({"consumer": "another"}, {"queue": "out"}):
            with pytest.raises(InvalidOption, match="belong to consumer 'spark' of queue 'work'"):
                self.other(spark, pipeline, **said)
        assert len(pipeline.rows()) == 10
        assert broker.queue("out").counts.active == 1

    def test_a_queue_made_anew_does_not_write_over_what_is_there(
        self, spark: Any, broker: Broker, pipeline: Pipeline
    ) -> None:
        send(broker, *[b"%d" % n for n in range(10)])
        pipeline.run(act)
        broker.delete_queue("work")
        broker.create_queue("work")
        send(broker, b"11")
        with pytest.raises(InvalidOption, match="which was created again"):
            self.other(spark, pipeline)
        assert len(pipeline.rows()) == 10
        assert broker.queue("work").counts.active == 1
        results = f"{pipeline.results}-new"
        self.other(spark, pipeline, results=results).awaitTermination()
        assert spark.read.parquet(results).count() == 1

    def test_results_of_an_older_version_are_left_alone(
        self, spark: Any, broker: Broker, pipeline: Pipeline
    ) -> None:
        send(broker, b"1")
        (Path(pipeline.results) / "claim=0000000001").mkdir(parents=True)
        with pytest.raises(InvalidOption, match="of an older version"):
            pipeline.start(act)
        assert broker.queue("work").counts.active == 1
