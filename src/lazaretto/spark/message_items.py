"""Messages of a batch as a sandbox is given them."""

from __future__ import annotations

import itertools

import pyarrow as pa

from lazaretto.isolation import Blobs, Columns
from lazaretto.spark.bodies import PROBLEM


def message_items(batch: pa.RecordBatch, base: int) -> tuple[list[int], Columns, list[str | None]]:
    """Return keys, items and sessions of a batch. `base`: the key that numbers are added to."""
    column = {name: batch.column(name) for name in batch.schema.names}

    def micros(name: str) -> list[int | None]:
        values: list[int | None] = column[name].cast(pa.int64()).to_pylist()
        return values

    keys = [base + number for number in column["sequence_number"].to_pylist()]
    # No body is as an empty one.
    bodies = blobs_of(column["body"].fill_null(b""))
    nothing = [None] * len(keys)
    items = Columns(
        [
            [False] * len(keys),
            [column["session_id"].null_count < len(keys)] * len(keys),
            column[PROBLEM].to_pylist() if PROBLEM in column else nothing,
            keys,
            bodies,
            column["message_id"].to_pylist(),
            micros("enqueued_time"),
            micros("expires_at"),
            column["headers"].to_pylist(),
            nothing,
            column["attempt"].to_pylist(),
            column["delivery_count"].to_pylist(),
            column["cycle"].to_pylist(),
            column["generation"].to_pylist(),
            column["enqueued_sequence_number"].to_pylist(),
            nothing,
            nothing,
        ],
        [end - start for start, end in itertools.pairwise(bodies.offsets)],
    )
    return keys, items, column["session_id"].to_pylist()


def blobs_of(column: pa.Array) -> Blobs:
    """Return a column of bytes, of which none is null, as it stands in the memory."""
    if not len(column):
        return Blobs(memoryview(b""), [0])
    _, offsets, data = column.buffers()
    where = memoryview(offsets).cast("i")[column.offset : column.offset + len(column) + 1]
    return Blobs(memoryview(b"" if data is None else data), where.tolist())
