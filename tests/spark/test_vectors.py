"""Functions of whole batches: what fails is found by halving, and only that fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazaretto import Broker, InvalidOption, Message, QueueOptions
from lazaretto.isolation import Sandbox, SandboxOptions, Status
from lazaretto.spark import process
from lazaretto.spark.vectors import VectorSetup, decode, encode, run_vectors

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")


def double(batch: Any) -> Any:
    import os
    import time

    import pyarrow as pa

    bodies = batch.column("body").to_pylist()
    if b"crash" in bodies:
        os.abort()
    if b"hang" in bodies:
        time.sleep(60)
    numbers = [2 * int(body) for body in bodies]
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})


def batch_of(bodies: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"sequence_number": list(range(len(bodies))), "body": bodies, "claim": [1] * len(bodies)}
    )


class TestHalving:
    def parts(self, bodies: list[bytes]) -> tuple[list[tuple[int, int, Status]], int]:
        told: list[int] = []
        deadline = 2.0 if b"hang" in bodies else 120.0
        with Sandbox(VectorSetup(double), SandboxOptions(deadline=deadline)) as sandbox:
            found = [(a, n, v.status) for a, n, v in run_vectors(sandbox, batch_of(bodies), 64, told.append)]
        return found, len(told)

    def test_a_clean_batch_is_run_once(self) -> None:
        assert self.parts([b"1"] * 64) == ([(0, 64, Status.DONE)], 1)

    def test_one_bad_row_costs_two_runs_for_each_halving(self) -> None:
        bodies = [b"1"] * 64
        bodies[37] = b"x"
        parts, runs = self.parts(bodies)
        assert [(first, n) for first, n, status in parts if status is not Status.DONE] == [(37, 1)]
        assert sum(n for _, n, _ in parts) == 64
        assert [first for first, _, _ in parts] == sorted(first for first, _, _ in parts)
        assert runs == 1 + 2 * 6

    def test_crashes_and_hangs_are_found_too(self) -> None:
        bodies = [b"1", b"crash", b"1", b"hang", b"1", b"x"]
        parts, _ = self.parts(bodies)
        assert {first: status for first, n, status in parts if n == 1 and status is not Status.DONE} == {
            1: Status.CRASH, 3: Status.TIMEOUT, 5: Status.ERROR,
        }  # fmt: skip

    def test_batches_survive_the_way(self) -> None:
        batch = batch_of([b"\xff", b""])
        assert decode(encode(batch)).equals(batch)
        assert decode(encode(batch.slice(0, 0))).num_rows == 0


def start(spark: Any, store: Path, function: Any, **options: Any) -> Any:
    given = {"results": f"{store}-results", "schema": "n bigint", "deadline": 60, **options}
    return process(
        spark, function, store=str(store), queue="work", checkpoint=f"{store}-checkpoint",
        isolation="vectorised", **given,
    )  # fmt: skip


@pytest.mark.skipif("LAZARETTO_SOAK" not in os.environ, reason="takes over a minute: LAZARETTO_SOAK=1")
def test_each_message_has_its_result_or_its_reason(spark: Any, broker: Broker, store: Path) -> None:
    bad = {100: b"crash", 700: b"x", 701: b"", 1500: b"hang"}
    broker.sender("work").send([Message(bad.get(n, b"%d" % n)) for n in range(2_000)])
    start(spark, store, double, deadline=4).awaitTermination()
    rows = spark.read.parquet(f"{store}-results").select("sequence_number", "n").collect()
    assert sorted(tuple(row) for row in rows) == [(n + 1, 2 * n) for n in range(2_000) if n not in bad]
    dead = {d.sequence_number - 1: d.error_type for d in broker.dead_letters("work")}
    assert dead == {100: "WorkerCrashed", 700: "ValueError", 701: "ValueError", 1500: "HandlerTimeout"}
    assert broker.queue("work").counts.active == 0


def test_a_function_that_is_always_wrong_is_an_outage(spark: Any, broker: Broker, store: Path) -> None:
    broker.sender("work").send([Message(b"1")] * 50)
    query = start(spark, store, lambda batch: 7)
    with pytest.raises(Exception, match="fail in the same way"):
        query.awaitTermination()
    assert broker.queue("work").counts.active == 50


def test_what_vectors_cannot_keep_is_refused(spark: Any, broker: Broker, store: Path) -> None:
    with pytest.raises(InvalidOption, match="no context"):
        start(spark, store, lambda batch, context: None)
    broker.delete_queue("work")
    broker.create_queue("work", QueueOptions(requires_session=True))
    with pytest.raises(InvalidOption, match="has sessions"):
        start(spark, store, double)


def lacking(batch: Any) -> Any:
    import pyarrow as pa

    numbers = [None if body == b"none" else int(body) for body in batch.column("body").to_pylist()]
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})


@pytest.mark.parametrize("isolation", ["vectorised", "process"])
def test_a_result_that_does_not_fit_costs_no_other_message(
    spark: Any, broker: Broker, store: Path, isolation: str
) -> None:
    broker.sender("work").send([Message(body) for body in (b"1", b"none", b"3")])
    process(
        spark, lacking if isolation == "vectorised" else lack, store=str(store), queue="work",
        checkpoint=f"{store}-checkpoint", results=f"{store}-results", schema="n bigint NOT NULL",
        isolation=isolation,
    ).awaitTermination()  # fmt: skip
    rows = spark.read.parquet(f"{store}-results").select("sequence_number", "n").collect()
    assert sorted(tuple(row) for row in rows) == [(1, 1), (3, 3)]
    (letter,) = broker.dead_letters("work")
    assert (letter.sequence_number, letter.error_type) == (2, "lazaretto.spark.results.ResultSchemaError")


def lack(message: Any) -> Any:
    return {} if message.body == b"none" else {"n": int(message.body)}
