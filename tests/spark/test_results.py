"""Results that do not fit their schema: each costs its own message, and no other."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lazaretto.spark.results import Results


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def open(self, schema: pa.Schema, claim: int, shard: int) -> Kept:
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()

    def close(self) -> None:
        pass

    def remove(self, claim: int) -> None:
        pass


def required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def added(schema: pa.Schema, rows: Any) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Return what results are kept, and what is said of the others."""
    sink = Kept()
    results = Results(sink, schema, 1, 0, "stage")
    if isinstance(rows, pa.RecordBatch):
        wrong = results.add_batch(range(rows.num_rows), rows)
    else:
        wrong = results.add(range(len(rows)), rows, [None] * len(rows))
    results.close()
    return sink.rows, {place: failure.message or "" for place, failure in wrong.items()}


def test_a_result_without_what_its_schema_requires_fails_alone() -> None:
    schema = pa.schema([required("n", pa.int64()), ("s", pa.string())])
    kept, wrong = added(schema, [{"n": 1, "s": None}, {"s": "x"}, {"n": None}, {"n": 2}])
    assert [(row["sequence_number"], row["n"]) for row in kept] == [(0, 1), (3, 2)]
    text = "the handler's result does not fit the schema of results: 'n' is null, which its schema excludes"
    assert wrong == {1: text, 2: text}


@pytest.mark.parametrize(
    ("kind", "good", "bad", "path"),
    [
        (pa.struct([required("b", pa.int64())]), [None, {"b": 1}], {}, "a.b"),
        (pa.list_(required("element", pa.int64())), [None, [], [1]], [1, None], "a[]"),
        (pa.map_(pa.string(), required("value", pa.int64())), [None, {"x": 1}], {"x": None}, "a{}"),
        (pa.list_(pa.struct([required("b", pa.int64())])), [[None, {"b": 1}]], [{"b": None}], "a[].b"),
    ],
)
def test_nulls_inside_are_found(kind: pa.DataType, good: list[Any], bad: Any, path: str) -> None:
    kept, wrong = added(pa.schema([("a", kind)]), [{"a": one} for one in [*good, bad]])
    assert len(kept) == len(good)
    assert list(wrong) == [len(good)]
    assert f"{path!r} is null" in wrong[len(good)]


def test_a_row_of_a_batch_that_does_not_fit_fails_alone() -> None:
    batch = pa.RecordBatch.from_pydict({"n": ["1", "x", None, "4"]})
    kept, wrong = added(pa.schema([required("n", pa.int64())]), batch)
    assert [(row["sequence_number"], row["n"]) for row in kept] == [(0, 1), (3, 4)]
    assert list(wrong) == [1, 2]
    assert "Failed to parse string: 'x'" in wrong[1]
    assert "'n' is null" in wrong[2]


def test_a_batch_without_a_column_fails_as_a_whole() -> None:
    kept, wrong = added(pa.schema([("n", pa.int64())]), pa.RecordBatch.from_pydict({"m": [1, 2]}))
    assert kept == []
    assert list(wrong) == [0, 1]
