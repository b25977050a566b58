"""Tasks of `quarantine`: run the handler on rows of a source, and on those that came back from the queue."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from lazaretto.broker import store_of
from lazaretto.engine.claims.settle_claims import StagedRow
from lazaretto.engine.claims.settle_rows import OtherRow, StageRows
from lazaretto.model.entities import EntityPath
from lazaretto.spark.message_items import message_items
from lazaretto.spark.outage import Outage
from lazaretto.spark.results import Sink
from lazaretto.spark.row_layout import BLOCK, FILE, RowLayout, digest_of, ids_of
from lazaretto.spark.run_task import run_shard
from lazaretto.spark.sandbox_handler import BODY, FIELDS, Item
from lazaretto.spark.shard_task import ShardTask, TaskSettings
from lazaretto.spark.source_rows import SIZE
from lazaretto.spark.store_access import broker_at

#: Bytes of rows that are taken out of a batch at once, and failed rows that are stored at once.
_MOST_BYTES, _STAGED = 16 * 1024 * 1024, 500
#: What a task tells the driver: of a shard what a pipeline's tells, of rows its own stage.
TOLD = pa.schema(
    [
        ("claim", pa.int64()), ("epoch", pa.int64()), ("shard", pa.int64()), ("stage", pa.string()),
        ("rows", pa.int64()), ("results", pa.int64()),
    ]
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class QuarantineSettings:
    """Settings of a task. `task.results`: for what came back; `results`: for rows of the source."""

    task: TaskSettings
    layout: RowLayout
    results: Sink | None


def run_rows(
    settings: QuarantineSettings, number: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run what a task is given, shards or rows of the source; tell the driver of it."""
    told: list[dict[str, Any]] = []
    task: RowTask | None = None
    try:
        for batch in batches:
            claims = batch.column("claim")
            for row in batch.filter(pc.is_valid(claims)).drop_columns(["row"]).to_pylist():
                make = functools.partial(LetterTask, layout=settings.layout)
                told.append(run_shard(settings.task, row["claim"], row["epoch"], row["shard"], make))
            rows = batch.filter(pc.is_null(claims))
            if rows.num_rows:
                task = task or RowTask(settings, number)
                task.run(pa.RecordBatch.from_struct_array(rows.column("row")))
        if task is not None:
            task.finish()
    except Outage as outage:
        assert task is not None
        # Not raised: Spark would only try the task again.
        task.end_as_outage(outage)
    if task is not None:
        told.append({"stage": task.stage, "rows": task.rows, "results": task.written})
    if told:
        known = [{name: one.get(name) for name in TOLD.names} for one in told]
        yield pa.RecordBatch.from_pylist(known, schema=TOLD)


class _TaskOfRows(ShardTask):
    """Runs a handler of rows, which `frame_of` makes of a batch."""

    def __init__(self, *arguments: Any, layout: RowLayout) -> None:
        super().__init__(*arguments)
        self._layout = layout

    def items_of(self, batch: pa.RecordBatch) -> tuple[list[int], list[Item], list[str | None]]:
        keys, frame, problems = self.frame_of(batch)
        size = batch.nbytes // max(1, batch.num_rows)
        columns = [column.to_pylist() for column in frame.columns]
        rows: Iterable[Any] = zip(*columns, strict=True) if columns else [()] * len(keys)
        if not self._layout.is_plain:
            rows = (pickle.dumps(row, pickle.HIGHEST_PROTOCOL) for row in rows)
        items = [
            (False, False, problem, row, size, facts)
            for problem, row, facts in zip(problems, rows, self.facts_of(batch), strict=True)
        ]
        return keys, items, [None] * len(keys)

    def facts_of(self, batch: pa.RecordBatch) -> Iterable[tuple[Any, ...] | None]:
        """Return what a handler's context tells of each row: the fields of a message."""
        return [None] * batch.num_rows

    def size_of(self, item: Item) -> int:
        size: int = item[SIZE]
        return size


class LetterTask(_TaskOfRows):
    """Runs the handler on rows that came back from the queue."""

    def frame_of(self, batch: pa.RecordBatch) -> tuple[list[int], pa.RecordBatch, list[str | None]]:
        layout = self._layout
        nothing = pa.RecordBatch.from_arrays(
            [pa.nulls(1, field.type) for field in layout.schema], schema=layout.schema
        )
        rows: list[pa.RecordBatch] = []
        damages: list[str | None] = []
        pairs = zip(batch.column("body").to_pylist(), batch.column("headers").to_pylist(), strict=True)
        for body, headers in pairs:
            try:
                rows.append(layout.row_of(body or b"", headers))
                damages.append(None)
            except ValueError as error:
                rows.append(nothing)
                damages.append(str(error))
        frame, problems = layout.read(pa.concat_batches(rows) if rows else nothing.slice(1))
        keys = [self._base + number for number in batch.column("sequence_number").to_pylist()]
        return keys, frame, [damage or problem for damage, problem in zip(damages, problems, strict=True)]

    def facts_of(self, batch: pa.RecordBatch) -> Iterable[tuple[Any, ...] | None]:
        _, items, _ = message_items(batch, self._base)
        # The body is with the handler as a row.
        return [(item[FIELDS], b"", *item[BODY + 1 :]) for item in items]


class RowTask(_TaskOfRows):
    """Runs the handler on rows of the source; keeps those that were not simply completed."""

    def __init__(self, settings: QuarantineSettings, number: int) -> None:
        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        task = settings.task
        # A task that died is run again where nothing of a handler can end it.
        task = dataclasses.replace(task, results=settings.results, inline=task.inline and not attempt)
        partition = 0 if context is None else context.partitionId()
        super().__init__(task, number, partition, 0, 0, None, layout=settings.layout)
        self._kept: list[OtherRow] = []
        self._equal: collections.Counter[tuple[Any, ...]] = collections.Counter()
        self.written: int | None = None

    def run(self, batch: pa.RecordBatch) -> None:
        rows = max(1, _MOST_BYTES * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            before, first = len(self._others), self.rows
            self.run_part(part)
            for staged in self._others[before:]:
                self._kept.append(self._other_row(part.slice(staged.key - first - 1, 1), staged))
            if len(self._kept) >= _STAGED:
                self._stage()

    def frame_of(self, batch: pa.RecordBatch) -> tuple[list[int], pa.RecordBatch, list[str | None]]:
        keys = list(range(self.rows + 1, self.rows + batch.num_rows + 1))
        return keys, *self._layout.read(batch.select(self._layout.schema.names))

    def number_of(self, key: int) -> int | None:
        # No message of the queue has this result.
        return None

    def _other_row(self, row: pa.RecordBatch, staged: StagedRow) -> OtherRow:
        layout = self._layout
        origin: dict[str, Any] = {name: row.column(name)[0].as_py() for name in layout.origin}
        count = 0
        own = row.select(layout.schema.names)
        if FILE in layout.origin:
            # Equal lines of a file are as many rows.
            origin = {"file": origin[FILE], "block": origin[BLOCK], "digest": digest_of(own)}
            where = tuple(origin.values())
            count = self._equal[where]
            self._equal[where] += 1
        first, second = ids_of(origin, own, count)
        return OtherRow(layout.message_of(row, origin), staged, first, second)

    def _stage(self) -> None:
        options = self._settings.options
        if self._kept:
            with broker_at(options.url()) as broker:
                path = EntityPath.parse(options.queue)
                store_of(broker).run(StageRows(path, self.stage, self._kept))
        self._kept = []

    def finish(self) -> Any:
        staged = super().finish()
        self._stage()
        self.written = staged.results
        return staged
