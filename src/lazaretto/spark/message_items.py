"""Messages of a batch as a sandbox is given them."""

from __future__ import annotations

import pyarrow as pa

from lazaretto.spark.bodies import PROBLEM
from lazaretto.spark.sandbox_handler import Item


def message_items(batch: pa.RecordBatch, base: int) -> tuple[list[int], list[Item], list[str | None]]:
    """Return keys, items and sessions of a batch. `base`: the key that numbers are added to."""
    column = {name: batch.column(name) for name in batch.schema.names}

    def micros(name: str) -> list[int | None]:
        found: list[int | None] = column[name].cast(pa.int64()).to_pylist()
        return found

    keys = [base + number for number in column["sequence_number"].to_pylist()]
    bodies = column["body"].to_pylist()
    nothing = [None] * len(keys)
    items = list(
        zip(
            [False] * len(keys),
            [column["session_id"].null_count < len(keys)] * len(keys),
            column[PROBLEM].to_pylist() if PROBLEM in column else nothing,
            keys,
            [b"" if body is None else body for body in bodies],
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
            strict=True,
        )
    )
    return keys, items, column["session_id"].to_pylist()
