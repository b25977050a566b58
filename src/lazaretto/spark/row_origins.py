"""Origins of rows of a source, and the ids by which a row that comes again is known."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from lazaretto.spark.row_layout import RowLayout, RowOrigin, as_property, shown_values, values_in

#: Columns of ours that say where a row of a file came from.
FILE, BLOCK = "lazaretto_file", "lazaretto_block"

#: How they are called where people see them.
_SHOWN = {FILE: "file", BLOCK: "block"}
_encode = msgspec.json.Encoder().encode


def origin_texts(layout: RowLayout, rows: pa.RecordBatch) -> list[str]:
    """Return where each row came from, as JSON: of lines of a file, its path and where their block begins."""
    columns = [values_in(rows.column(name), name, {}) for name in layout.origin]
    return [_text_of(dict(zip(layout.origin, place, strict=True))) for place in zip(*columns, strict=True)]


def _text_of(columns: Mapping[str, Any]) -> str:
    return _encode({_SHOWN.get(name, name): as_property(value) for name, value in columns.items()}).decode()


class RowOrigins:
    """Tells rows of one task apart: asked for each row once, in order, since equal lines are as many rows."""

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._equal: collections.Counter[tuple[Any, ...]] = collections.Counter()

    def of(self, rows: pa.RecordBatch) -> list[RowOrigin]:
        """Return where rows came from."""
        layout = self._layout
        columns = [shown_values(rows.column(name)) for name in layout.origin]
        bodies: list[bytes | None] = [None] * rows.num_rows
        if layout.body is not None:
            bodies = rows.column(layout.body).cast(pa.binary()).to_pylist()
        return [
            self._of(dict(zip(layout.origin, place, strict=True)), others, body)
            for place, others, body in zip(
                zip(*columns, strict=True), layout.others_of(rows), bodies, strict=True
            )
        ]

    def _of(self, columns: dict[str, Any], others: bytes, body: bytes | None) -> RowOrigin:
        text = _text_of(columns)
        count = 0
        # None is not as an empty one.
        content = others + (b"\0" if body is None else b"\1" + body)
        if FILE in columns:
            digest = hashlib.sha256(content).hexdigest()[:32]
            columns = {"file": columns[FILE], "block": columns[BLOCK], "digest": digest}
            where = tuple(columns.values())
            count = self._equal[where]
            self._equal[where] += 1
        place = _encode({**{name: as_property(v) for name, v in columns.items()}, "n": count})
        return RowOrigin(columns, text, _id("origin", place), _id("row", place + content), others)


def _id(kind: str, data: bytes) -> str:
    return f"{kind}-{hashlib.sha256(data).hexdigest()[:40]}"
