"""Tables of Spark's own Delta: rows of one that fail are set aside, repaired and in another table once.

Delta is published for an older Spark than the tests' own: test_delta.py runs this module with that one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from lazaretto import Broker, InvalidOption
from lazaretto.spark import DeltaResults, lineage, quarantine

from .test_quarantine import bodies, with_body

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)
COLUMNS = "id bigint, body string, price decimal(10,2)"


def book(row: Any) -> Any:
    """Book an order; one without a price is free."""
    import json

    return {"item": json.loads(row.body)["item"], "price": row.price}


class Flow:
    """A Delta table of orders, its quarantine, and the Delta table of its results."""

    def __init__(self, spark: Any, url: str, folder: Path) -> None:
        self.spark, self.url, self.folder = spark, url, folder
        self.source, self.results = str(folder / "orders"), str(folder / "results")

    def add(self, *rows: tuple[int, str, int | None]) -> None:
        frame = self.spark.createDataFrame(rows, "id bigint, body string, price int").coalesce(1)
        frame = frame.withColumn("price", frame["price"].cast("decimal(10,2)"))
        frame.write.format("delta").mode("append").save(self.source)

    def run(self, **options: Any) -> None:
        query = quarantine(
            self.spark.readStream.format("delta").load(self.source), book, store=self.url, queue="work",
            checkpoint=str(self.folder / "checkpoint"), body="body", results=DeltaResults(self.results),
            schema="item string, price decimal(10,2)", origin=["id"], deadline=60, **options,
        )  # fmt: skip
        assert isinstance(query, StreamingQuery)
        query.awaitTermination()

    def rows(self) -> list[tuple[str, int | None]]:
        found = self.spark.read.format("delta").load(self.results).collect()
        return sorted((row.item, None if row.price is None else int(row.price)) for row in found)


def test_rows_of_a_delta_table_are_set_aside_repaired_and_in_another_once(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    flow = Flow(spark, url, tmp_path)
    flow.add((1, '{"item": "lamp"}', 5), (2, "{", None), (3, "{", None), (4, '{"item": "desk"}', None))
    flow.run(keep_origin=True)
    assert flow.rows() == [("desk", None), ("lamp", 5)]
    # Two equal bodies of two rows are two letters, and each keeps what stood beside its body.
    letters = {
        letter.message.properties["id"]: letter.sequence_number
        for letter in broker.dead_letters("work")
        if letter.message is not None
    }
    assert sorted(letters, key=str) == [2, 3]
    broker.resubmit("work", letters[2], edit=with_body(b'{"item": "sofa"}'))
    flow.add((5, '{"item": "rug"}', 7), (6, "[", 1))
    for _ in range(2 if "LAZARETTO_SOAK" in os.environ else 1):
        flow.run(keep_origin=True)
        assert flow.rows() == [("desk", None), ("lamp", 5), ("rug", 7), ("sofa", None)]
        assert bodies(broker) == [b"[", b"{"]
    results = spark.read.format("delta").load(flow.results)
    told = lineage(spark, store=url, queue="work", results=results)
    ends = sorted((row.outcome, row.origin is not None) for row in told.collect())
    assert ends == [("completed", True)] * 4 + [("dead_lettered", True)] * 2
    assert broker.check() == []


def test_files_of_a_delta_table_are_known_and_those_of_its_stream_are_not(
    spark: Any, broker: Broker, url: str, tmp_path: Path
) -> None:
    flow = Flow(spark, url, tmp_path)
    flow.add((1, "{", 1), (2, '{"item": "lamp"}', 2))
    flow.add((1, "{", 1))

    def run(checkpoint: str) -> int:
        done = quarantine(
            spark.read.format("delta").load(flow.source), book, store=url, queue="work", body="body",
            checkpoint=str(tmp_path / checkpoint), results=str(tmp_path / "folder"),
            schema="item string, price decimal(10,2)", deadline=60,
        )  # fmt: skip
        assert isinstance(done, DataFrame)
        return done.count()

    for checkpoint in ("one", "two"):
        assert run(checkpoint) == 1
        # Equal rows of two files are two letters, once.
        assert bodies(broker) == [b"{", b"{"]
    stream = spark.readStream.format("delta").load(flow.source)
    with pytest.raises(InvalidOption, match="name the columns that tell"):
        quarantine(stream, book, store=url, queue="work", checkpoint=str(tmp_path), body="body")
