"""What a handler returns: what fits its schema exactly is written, what would change fails its message."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pyspark.sql import Row

from lazaretto.spark.result_values import cast_column, column_of, rows_of
from lazaretto.spark.sandbox_handler import pack_result, plain_result, unpack_results

D = decimal.Decimal
UTC = datetime.UTC
MOMENT = datetime.datetime(2024, 1, 31, 12, 30, 15, 250_000, tzinfo=UTC).replace(tzinfo=None)
LAST = datetime.datetime(9999, 12, 31, 23, tzinfo=UTC)
TIME, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
MONEY = pa.decimal128(10, 2)
TEXTS = pa.list_(pa.string())
PART = pa.struct([("a", pa.int64()), ("b", pa.string())])
Pair = collections.namedtuple("Pair", ["b", "a"])


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


def written(value: Any, kind: pa.DataType, isolation: str) -> Any:
    """Return what readers of results see of a value that a handler returns."""
    row: Any = {"x": value}
    if isolation == "process":
        ((_, row),) = unpack_results([pack_result(None, row)])
    else:
        row = plain_result(row)
    (found,) = rows_of([row], pa.struct([("x", kind)])).to_pylist()
    return found["x"]


@pytest.mark.parametrize("isolation", ["process", "inline"])
@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (np.str_("lamp"), pa.string(), "lamp"),
        (Colour.RED, pa.string(), "red"),
        (b"lamp", pa.string(), "lamp"),
        (np.int64(7), pa.int64(), 7),
        (np.uint8(7), pa.int8(), 7),
        (Size.LARGE, pa.int64(), 3),
        (19.0, pa.int64(), 19),
        (D("19"), pa.int32(), 19),
        (np.float32(0.5), pa.float64(), 0.5),
        (np.float64(19.99), pa.float64(), 19.99),
        (19, pa.float64(), 19.0),
        (D("19.99"), pa.float64(), 19.99),
        (float("inf"), pa.float32(), float("inf")),
        (np.bool_(True), pa.bool_(), True),
        (np.bytes_(b"x"), pa.binary(), b"x"),
        (bytearray(b"x"), pa.binary(), b"x"),
        (19.99, MONEY, D("19.99")),
        (19, MONEY, D("19.00")),
        (MOMENT, TIME, MOMENT.replace(tzinfo=UTC)),
        (MOMENT, LOCAL, MOMENT),
        (MOMENT.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2))), TIME,
         MOMENT.replace(tzinfo=UTC) - datetime.timedelta(hours=2)),
        (pd.Timestamp(MOMENT), TIME, MOMENT.replace(tzinfo=UTC)),
        (np.datetime64(MOMENT, "ns"), TIME, MOMENT.replace(tzinfo=UTC)),
        (pd.NaT, TIME, None),
        (pd.NA, pa.int64(), None),
        (np.datetime64("2024-01-31"), pa.date32(), datetime.date(2024, 1, 31)),
        (pd.Timestamp("2024-01-31"), pa.date32(), datetime.date(2024, 1, 31)),
        (pd.Timedelta(seconds=5), pa.duration("us"), datetime.timedelta(seconds=5)),
        (np.array(["a", "b"]), TEXTS, ["a", "b"]),
        (("a", None), TEXTS, ["a", None]),
        (pd.Series([MOMENT]), pa.list_(TIME), [MOMENT.replace(tzinfo=UTC)]),
        (np.array([[1, 2], [3, 4]]), pa.list_(pa.list_(pa.int64())), [[1, 2], [3, 4]]),
        (Row(b="x", a=1), PART, {"a": 1, "b": "x"}),
        (Pair("x", 1), PART, {"a": 1, "b": "x"}),
        ({"b": np.str_("x")}, PART, {"a": None, "b": "x"}),
        ({"k": np.int64(1)}, pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    ],
)  # fmt: skip
def test_what_fits_is_written(value: Any, kind: pa.DataType, expected: Any, isolation: str) -> None:
    assert written(value, kind, isolation) == expected


@pytest.mark.parametrize("isolation", ["process", "inline"])
@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        (19.99, pa.int64(), "$.x"),
        (True, pa.int64(), "$.x"),
        (1, pa.bool_(), "$.x"),
        (1 << 70, pa.int64(), "$.x"),
        (300, pa.int8(), "$.x"),
        (2**53 + 1, pa.float64(), "$.x"),
        (1e300, pa.float32(), "$.x"),
        (1e-300, pa.float32(), "$.x"),
        (2**24 + 1, pa.float32(), "$.x"),
        (D("0.1000000000000000000000001"), pa.float64(), "$.x"),
        (19.999, MONEY, "$.x"),
        (D("NaN"), MONEY, "$.x"),
        ("letters", TEXTS, "$.x"),
        (5, pa.string(), "$.x"),
        (b"\xff", pa.string(), "$.x"),
        ("\ud800", pa.string(), "$.x"),
        (20240131, pa.date32(), "$.x"),
        (MOMENT, pa.date32(), "$.x"),
        (1706700000, TIME, "$.x"),
        (datetime.date(2024, 1, 31), TIME, "$.x"),
        (MOMENT.replace(tzinfo=UTC), LOCAL, "$.x"),
        (LAST.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-2))), TIME, "$.x"),
        (np.datetime64(1, "ns"), TIME, "$.x"),
        (np.datetime64(10**9, "D"), pa.date32(), "$.x"),
        (pd.Timestamp(1), TIME, "$.x"),
        (np.longdouble(1), pa.float64(), "$.x"),
        (1j, pa.float64(), "$.x"),
        ({"a"}, TEXTS, "$.x"),
        ([["a"]], TEXTS, "$.x[0]"),
        ((1, "x"), PART, "$.x"),
        ({"a": 1, "c": "x"}, PART, "$.x"),
        ({"a": 1.5}, PART, "$.x.a"),
        ([{"a": "1"}], pa.list_(PART), "$.x[0].a"),
        ({"k": "1"}, pa.map_(pa.string(), pa.int64()), "$.x.k"),
        (object(), pa.string(), "$.x"),
    ],
)
def test_what_would_change_is_an_error_with_its_path(
    value: Any, kind: pa.DataType, path: str, isolation: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=r".* - at `.*`$") as told:
        written(value, kind, isolation)
    assert str(told.value).endswith(f" - at `{path}`")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"itm": "lamp"}, "the schema has no field 'itm'; did you mean 'item'? - at `$`"),
        (["lamp"], "expected a dict by the names of columns, got a list - at `$`"),
        (("lamp",), "expected a dict by the names of columns, got a list - at `$`"),
        (object(), "a object cannot be a part of results - at `$`"),
    ],
)
def test_a_row_is_a_dict_of_known_fields(row: Any, text: str) -> None:
    for given in (plain_result(row), unpack_results([pack_result(None, row)])[0][1]):
        with pytest.raises((ValueError, TypeError)) as told:
            rows_of([given], pa.struct([("item", pa.string())]))
        assert str(told.value) == text


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (pa.array([1, None], pa.int32()), pa.int64(), [1, None]),
        (pa.array([1.0, 2.0]), pa.int64(), [1, 2]),
        (pa.array(["1"]), pa.int64(), [1]),
        (pa.array(["x"]).dictionary_encode(), pa.string(), ["x"]),
        (pa.array([MOMENT], pa.timestamp("ns")), TIME, [MOMENT.replace(tzinfo=UTC)]),
        (pa.array([0.5], pa.float64()), pa.float32(), [0.5]),
        (pa.array([1 << 40], pa.int64()), pa.int32(), None),
        (pa.array([1.5]), pa.int64(), None),
        (pa.array([1e300]), pa.float32(), None),
        (pa.array([20240131], pa.int32()), pa.date32(), None),
        (pa.array([1706700000]), TIME, None),
        (pa.array([1], pa.timestamp("ns")), TIME, None),
        (pa.array([True]), pa.int64(), None),
        (pa.array([1 << 60], pa.int64()).cast(TIME), TIME, None),
        (pa.array([5]), pa.string(), None),
    ],
)
def test_columns_of_whole_batches_follow_the_same_rule(
    column: pa.Array, kind: pa.DataType, expected: list[Any] | None
) -> None:
    if expected is None:
        with pytest.raises(ValueError, match=r" - at `\$\.x`$"):
            cast_column(column, kind, "$.x")
    else:
        assert cast_column(column, kind, "$.x").to_pylist() == expected


def test_a_column_of_plain_values_is_taken_as_it_is() -> None:
    assert column_of([1, None, 3], pa.int64(), "$.x").to_pylist() == [1, None, 3]
