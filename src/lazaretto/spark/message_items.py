"""Columns of Arrow's as a sandbox is sent them, and messages of a batch as its items."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lazaretto.isolation import Blobs, Columns, Nullable, Repeated
from lazaretto.spark.bodies import PROBLEM

#: The codes of memoryview for numbers of Arrow's.
_CODES = {
    pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q",
    pa.uint8(): "B", pa.uint16(): "H", pa.uint32(): "I", pa.uint64(): "Q",
    pa.float32(): "f", pa.float64(): "d",
}  # fmt: skip
#: Kinds whose values stand one behind the other, with the code of their offsets, and whether they are texts.
_BLOBS = {
    pa.binary(): ("i", False), pa.large_binary(): ("q", False),
    pa.string(): ("i", True), pa.large_string(): ("q", True),
}  # fmt: skip


def message_items(batch: pa.RecordBatch, base: int) -> tuple[Sequence[int], Columns, Sequence[str | None]]:
    """Return keys, items and sessions of a batch. `base`: the key that numbers are added to."""
    column = {name: sent_column(batch.column(name)) for name in _SENT}
    count = batch.num_rows
    keys = sent_column(pc.add(batch.column("sequence_number"), base))
    # No body is as an empty one.
    bodies = batch.column("body").fill_null(b"")
    nothing = Repeated(None, count)
    problems = batch.column(PROBLEM).to_pylist() if PROBLEM in batch.schema.names else nothing
    items = Columns(
        [
            problems,
            keys,
            sent_column(bodies),
            column["message_id"],
            column["enqueued_time"],
            column["expires_at"],
            column["headers"],
            nothing,
            column["attempt"],
            column["delivery_count"],
            column["cycle"],
            column["generation"],
            column["enqueued_sequence_number"],
            nothing,
            nothing,
        ],
        sent_column(pc.binary_length(bodies)),
    )
    return keys, items, batch.column("session_id").to_pylist()


_SENT = (
    "message_id", "enqueued_time", "expires_at", "headers", "attempt", "delivery_count", "cycle",
    "generation", "enqueued_sequence_number",
)  # fmt: skip


def sent_column(column: pa.Array) -> Sequence[Any]:
    """Return a column as it stands in the memory, if it can be sent so; else its values.

    Times are numbers. Raises ValueError, OverflowError: it has a value that Python has not.
    """
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    count, kind = len(column), column.type
    if column.null_count == count:
        return Repeated(None, count)
    if kind not in _CODES and kind not in _BLOBS:
        values: list[Any] = column.to_pylist()
        return values
    # Not of floats: two zeros that are equal may have different signs.
    if not pa.types.is_floating(kind) and _is_constant(column):
        return Repeated(column[0].as_py(), count)
    _, *buffers = column.buffers()
    if kind in _CODES:
        sent: Sequence[Any] = _numbers(buffers[0], _CODES[kind], column.offset, count)
    else:
        code, is_text = _BLOBS[kind]
        if is_text:
            # What Spark calls a text may be none.
            column.validate(full=True)
        data = memoryview(b"" if buffers[1] is None else buffers[1])
        sent = Blobs(data, _numbers(buffers[0], code, column.offset, count + 1), is_text=is_text)
    if not column.null_count:
        return sent
    valid = column.is_valid().cast(pa.uint8())
    return Nullable(sent, _numbers(valid.buffers()[1], "B", valid.offset, count))


def _is_constant(column: pa.Array) -> bool:
    """Return whether all values are the same, as the topic and the partition of rows of one task are."""
    first = column[0]
    return (
        column[len(column) - 1].equals(first)
        and pc.all(pc.equal(column, first), skip_nulls=False).as_py() is True
    )


def _numbers(buffer: pa.Buffer, code: Any, first: int, count: int) -> memoryview[Any]:
    size = struct.calcsize(code)
    numbers: memoryview[Any] = memoryview(buffer)[first * size : (first + count) * size].cast("B").cast(code)
    return numbers
