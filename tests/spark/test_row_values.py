"""Rows of a source reach their handler as Arrow gives them to Python, whichever way they are sent."""

from __future__ import annotations

import datetime
import decimal
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazaretto.host.handlers import Handler
from lazaretto.isolation import Columns, Repeated, SandboxOptions
from lazaretto.isolation.memory import Segment, get_items, put_items
from lazaretto.spark import row_task
from lazaretto.spark.message_items import sent_column
from lazaretto.spark.row_layout import RowLayout
from lazaretto.spark.row_origins import RowOrigins
from lazaretto.spark.row_task import QuarantineSettings, RowTask
from lazaretto.spark.sandbox_handler import Unfit, pack_result, unpack_results
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.source_rows import RowSetup
from lazaretto.spark.task_settings import TaskSettings

#: Around the hour that Berlin has twice, before 1970, and the first and last that Python has.
MOMENTS = [
    datetime.datetime(2026, 10, 25, 0, 30, tzinfo=datetime.UTC),
    datetime.datetime(2026, 10, 25, 1, 30, tzinfo=datetime.UTC),
    datetime.datetime(1901, 2, 3, 4, 5, 6, 789, tzinfo=datetime.UTC),
    datetime.datetime(2, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC),
    None,
]
ZONES = ["UTC", "Etc/UTC", "Europe/Berlin", "America/New_York", "+05:30", None]


def handle(row: Any) -> None:
    """Take a row."""


def frame_of(zone: str | None) -> pa.RecordBatch:
    moments: Any = pa.array(MOMENTS, pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))
    return pa.RecordBatch.from_arrays([pa.array([b"x"] * len(MOMENTS)), moments], names=["body", "at"])


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("is_plain", [True, False])
def test_times_are_those_of_arrow(zone: str | None, is_plain: bool) -> None:
    frame = frame_of(zone)
    if not is_plain:
        prices = pa.array([decimal.Decimal("1.5")] * frame.num_rows, pa.decimal128(10, 2))
        frame = frame.append_column("price", prices)
    layout = RowLayout(frame.schema.serialize().to_pybytes(), "body", ("at",))
    assert layout.is_plain is is_plain
    setup = RowSetup(Handler("work", handle), layout.schema.names, layout.times, pickled=not is_plain)
    sent = pickle.loads(pickle.dumps(setup))
    facts = [Repeated(None, frame.num_rows)] * 2
    read = sent.reader()
    rows = [read(item)[0] for item in sent.joiner()([*facts, *layout.values_of(frame)[0]])]
    columns = {name: [row[name] for row in rows] for name in frame.schema.names}
    assert columns == frame.to_pydict()
    for row, moment in zip(rows, frame.column("at").to_pylist(), strict=True):
        if moment is not None:
            assert (row.at.utcoffset(), row.at.fold) == (moment.utcoffset(), moment.fold)


def test_a_time_that_python_has_not_spoils_its_row_alone_where_times_are_numbers() -> None:
    late = 9_000 * 366 * 86_400 * 1_000_000
    at = pa.array([0, late, None, -late, 0], pa.int64()).cast(pa.timestamp("us", "UTC"))
    frame = pa.RecordBatch.from_arrays([pa.array([b"x"] * len(at)), at], names=["body", "at"])
    layout = RowLayout(frame.schema.serialize().to_pybytes(), "body", ("at",))
    assert layout.is_plain
    setup = RowSetup(Handler("work", handle), layout.schema.names, layout.times)
    facts: list[Sequence[Any]] = [[None, None, "no JSON", None, None], Repeated(None, len(at))]
    items = list(setup.joiner()([*facts, *layout.values_of(frame)[0]]))
    beyond = "a time before the year 1 or after 9999 - at `$.at`"
    assert [item.problem if type(item) is Unfit else None for item in items] == [
        None, beyond, "no JSON", beyond, None,
    ]  # fmt: skip
    assert items[0].at == datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    effects, _ = setup.call(setup.caller())(items[1])
    assert effects is not None
    assert effects.verdict == "invalid"


@pytest.mark.parametrize("moment", [moment for moment in MOMENTS if moment is not None])
def test_times_of_results_come_back_as_they_were(moment: datetime.datetime) -> None:
    row = {"at": moment, "plain": moment.replace(tzinfo=None), "n": 1, "more": [moment]}
    rows = [row, {"at": moment}, {"n": 1}]
    assert unpack_results([pack_result(None, one) for one in rows]) == [(None, one) for one in rows]


def test_a_time_that_python_has_not_spoils_its_row_alone() -> None:
    year = 365 * 9_000
    schema = pa.schema([("body", pa.binary()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))])
    frame = pa.RecordBatch.from_arrays(
        [
            pa.array([b"x", b"y"]),
            pa.array([1, year], pa.date32()),
            pa.array([0, year * 10**12], schema[2].type),
        ],
        schema=schema,
    )
    layout = RowLayout(schema.serialize().to_pybytes(), "body", ("day",))
    (rows,), problems = layout.values_of(frame)
    assert list(problems) == [1]
    assert "after 9999" in problems[1]
    assert len(rows) == frame.num_rows
    row = frame.slice(1, 1)
    (message,) = layout.messages_of(row, RowOrigins(layout).of(row))
    assert message.body == b"y"
    with pytest.raises(ValueError, match="is damaged"):
        layout.row_of(message.body, message.headers)


def fail(row: Any) -> None:
    raise ValueError("no")


def test_large_rows_that_fail_are_stored_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[int] = []

    def note(options: Any, stage: str, rows: list[Any]) -> None:
        stored.append(sum(len(row.message.body) for row in rows))

    monkeypatch.setattr(row_task, "_store_rows", note)
    frame = pa.RecordBatch.from_pydict({"id": range(40), "body": [b"x" * 2_000_000] * 40})
    layout = RowLayout(frame.schema.serialize().to_pybytes(), "body", ("id",))
    task = TaskSettings(
        options=SparkOptions(store=str(tmp_path / "store.db"), queue="work"),
        setup=RowSetup(Handler("work", fail), layout.schema.names, layout.times),
        limits=SandboxOptions(), inline=True, results=None, schema=None, breaker=None,
    )  # fmt: skip
    running = RowTask(QuarantineSettings(task, layout, None), 1)
    running.run(frame)
    running.finish()
    assert sum(stored) == 40 * 2_000_000
    # A part of a batch, and what was kept before it.
    assert max(stored) <= 40_000_000


def test_columns_come_out_of_the_memory_as_they_were() -> None:
    frame = pa.RecordBatch.from_pydict(
        {
            "body": [b"", b"ab", None, b"\0" * 3, b"c"],
            "text": ["", "ä", "b", None, "same"],
            "ascii": ["a", "", "bc", "d", "e"],
            "constant": [b"same"] * 5,
            "partition": pa.array([7] * 5, pa.int32()),
            "number": [1, None, 3, -(1 << 63), (1 << 63) - 1],
            "zero": [0.0, -0.0, 0.0, -0.0, 0.0],
        }
    )
    segment = Segment.create(4096, grows=True)
    try:
        for part in (frame, frame.slice(1, 3), frame.slice(4, 1), frame.slice(0, 0)):
            sent = [sent_column(column) for column in part.columns]
            size = put_items(segment, Columns(sent, Repeated(10, part.num_rows)))
            # As text: zeros of both signs are equal.
            wanted = [tuple(row.values()) for row in part.to_pylist()]
            assert repr(get_items(segment, size)) == repr(wanted)
    finally:
        segment.close()
    assert type(sent_column(frame.column("partition"))) is Repeated
