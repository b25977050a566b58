"""Tasks of `quarantine`: run the handler on rows of a source, and on those that came back from the queue."""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from lazaretto.broker.broker import store_of
from lazaretto.engine.claims.settle_claims import StagedRow
from lazaretto.engine.claims.settle_rows import OtherRow, StageRows, waiting_sessions
from lazaretto.isolation import Columns, Repeated
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import Failure
from lazaretto.model.headers import decode_headers
from lazaretto.model.policy import Outcome
from lazaretto.spark.message_items import message_items
from lazaretto.spark.new_letters import ORIGIN, ROW_ORIGIN
from lazaretto.spark.results import Sink, refuses
from lazaretto.spark.row_layout import RowLayout, RowOrigin
from lazaretto.spark.row_origins import RowOrigins, origin_texts
from lazaretto.spark.run_task import run_shard
from lazaretto.spark.shard_task import ShardTask
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.store_access import broker_at
from lazaretto.spark.task_errors import Outage
from lazaretto.spark.task_settings import TaskSettings

#: Bytes of rows that are taken out of a batch at once, and how many failed rows, or bytes of them, are kept
#: until they are stored.
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
    ends: list[dict[str, Any]] = []
    task: RowTask | None = None
    try:
        for batch in batches:
            claims = batch.column("claim")
            for row in batch.filter(pc.is_valid(claims)).drop_columns(["row"]).to_pylist():
                make = functools.partial(LetterTask, layout=settings.layout)
                ends.append(run_shard(settings.task, row["claim"], row["epoch"], row["shard"], make))
            # What is filtered is copied, and nearly all batches have rows of the source alone.
            is_source = claims.null_count == batch.num_rows
            rows = batch if is_source else batch.filter(pc.is_null(claims))
            if rows.num_rows:
                task = task or RowTask(settings, number)
                task.run(pa.RecordBatch.from_struct_array(rows.column("row")))
        if task is not None:
            task.finish()
    except Outage as outage:
        assert task is not None
        # Not raised: Spark would only try the task again.
        task.end_as_outage(outage)
    finally:
        if task is not None:
            task.close()
    if task is not None:
        ends.append({"stage": task.stage, "rows": task.rows, "results": task.written})
    if ends:
        reports = [{name: one.get(name) for name in TOLD.names} for one in ends]
        yield pa.RecordBatch.from_pylist(reports, schema=TOLD)


class _TaskOfRows(ShardTask):
    """Runs a handler of rows, which `frame_of` makes of a batch."""

    def __init__(self, *arguments: Any, layout: RowLayout) -> None:
        super().__init__(*arguments)
        self._layout = layout
        #: Where rows came from, by key, of the part that is run, if results say so.
        self.places: dict[int, str | None] = {}

    def items_of(self, batch: pa.RecordBatch) -> tuple[Sequence[int], Columns, Sequence[str | None]]:
        keys, frame, problems = self.frame_of(batch)
        columns, damages = self._layout.values_of(frame)
        count = len(keys)
        if damages:
            problems = [problem or damages.get(at) for at, problem in enumerate(problems)]
        if problems.count(None) == count:
            problems = Repeated(None, count)
        size = batch.nbytes // max(1, count)
        items = Columns([problems, self.facts_of(batch), *columns], Repeated(size, count))
        return keys, items, self.sessions_of(batch)

    def sessions_of(self, batch: pa.RecordBatch) -> list[str | None]:
        """Return the session of each row."""
        sessions: list[str | None] = batch.column("session_id").to_pylist()
        return sessions

    def facts_of(self, batch: pa.RecordBatch) -> Sequence[tuple[Any, ...] | None]:
        """Return what a handler's context tells of each row: the fields of a message."""
        return Repeated(None, batch.num_rows)

    def result_of(self, key: int, result: Any) -> Any:
        keeps = self._layout.keeps_origin and type(result) is dict
        return {**result, ROW_ORIGIN: self.places[key]} if keeps else result

    def results_of(self, keys: Sequence[int], results: pa.RecordBatch) -> pa.RecordBatch:
        if not self._layout.keeps_origin:
            return results
        return results.append_column(ROW_ORIGIN, pa.array([self.places[key] for key in keys], pa.string()))


class LetterTask(_TaskOfRows):
    """Runs the handler on rows that came back from the queue."""

    def frame_of(self, batch: pa.RecordBatch) -> tuple[Sequence[int], pa.RecordBatch, Sequence[str | None]]:
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
        if layout.keeps_origin:
            self._note_places(batch)
        frame, problems = layout.read(pa.concat_batches(rows) if rows else nothing.slice(1))
        keys = [self._base + number for number in batch.column("sequence_number").to_pylist()]
        return keys, frame, [damage or problem for damage, problem in zip(damages, problems, strict=True)]

    def _note_places(self, batch: pa.RecordBatch) -> None:
        pairs = zip(
            batch.column("sequence_number").to_pylist(), batch.column("headers").to_pylist(), strict=True
        )
        self.places = {
            self._base + number: None if headers is None else _text_of(headers) for number, headers in pairs
        }

    def facts_of(self, batch: pa.RecordBatch) -> Sequence[tuple[Any, ...] | None]:
        _, items, _ = message_items(batch, self._base)
        # The body is with the handler as a row.
        return [(key, b"", *others) for _, key, _, *others in items]


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
        self._kept_bytes = 0
        self._of_rows = RowOrigins(self._layout)
        #: Of a place that refuses results of its own accord: the number of each row, by its key.
        self._refuses = refuses(settings.results)
        self._numbers: dict[int, int] = {}
        self.written: int | None = None
        self._seen: set[str] = set()

    def run(self, batch: pa.RecordBatch) -> None:
        rows = max(1, _MOST_BYTES * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            self._look_for_waiting(part)
            self._run_rows(part)
            if len(self._kept) >= _STAGED or self._kept_bytes >= _MOST_BYTES:
                self._stage()

    def _run_rows(self, part: pa.RecordBatch) -> None:
        before, first = len(self._others), self.rows + 1
        origins: dict[int, RowOrigin] = {}
        if self._refuses:
            # Asked of all: a result that is refused is told of by its row's number.
            origins = dict(enumerate(self._of_rows.of(part), first))
            self._numbers = {key: origin.number for key, origin in origins.items()}
        if self._layout.keeps_origin:
            self.places = dict(enumerate(origin_texts(self._layout, part), first))
        self.run_part(part)
        others = {staged.key: staged for staged in self._others[before:]}
        if self._refuses and self._results is not None:
            self._results.flush()
            keys = {number: key for key, number in self._numbers.items()}
            for number, failure in self._results.refused.items():
                others[keys[number]] = StagedRow(keys[number], Outcome.FAILED.value, failure)
            self._results.refused.clear()
        if others:
            rows = part.take(pa.array([key - first for key in others], pa.int64()))
            places = [origins[key] for key in others] if origins else self._of_rows.of(rows)
            for kept in _other_rows(self._layout, rows, list(others.values()), places):
                self._kept.append(kept)
                self._kept_bytes += len(kept.message.body) + len(kept.message.headers or b"")

    def _look_for_waiting(self, batch: pa.RecordBatch) -> None:
        """Have rows of a session wait in the queue, too, where others of it do."""
        if self._layout.session is None:
            return
        new = {session for session in self.sessions_of(batch) if session is not None} - self._seen
        if new:
            self._seen |= new
            options = self._settings.options
            with broker_at(options.url()) as broker:
                path = EntityPath.parse(options.queue)
                self._failed_sessions |= store_of(broker).read(lambda tx: waiting_sessions(tx, path, new))

    def sessions_of(self, batch: pa.RecordBatch) -> list[str | None]:
        return self._layout.sessions_of(batch)

    def frame_of(self, batch: pa.RecordBatch) -> tuple[Sequence[int], pa.RecordBatch, Sequence[str | None]]:
        keys = range(self.rows + 1, self.rows + batch.num_rows + 1)
        return keys, *self._layout.read(batch.select(self._layout.schema.names))

    def note_completed(self, keys: Iterable[int]) -> None:
        # Counted only.
        pass

    def number_of(self, key: int) -> int | None:
        # No message of the queue has this result.
        return self._numbers.get(key)

    def _stage(self) -> None:
        _store_rows(self._settings.options, self.stage, self._kept)
        self._kept, self._kept_bytes = [], 0

    def finish(self) -> Any:
        staged = super().finish()
        self._stage()
        self.written = staged.results
        return staged


def _text_of(headers: bytes | None) -> str | None:
    """Return where a message says that its row came from."""
    text = None if headers is None else decode_headers(headers).properties.get(ORIGIN)
    return text if isinstance(text, str) else None


def _other_rows(
    layout: RowLayout, rows: pa.RecordBatch, staged: Sequence[StagedRow], origins: Sequence[RowOrigin]
) -> list[OtherRow]:
    """Return rows as messages of the queue. `staged`: how their attempts ended."""
    messages = layout.messages_of(rows, origins)
    return [
        OtherRow(message, one, origin.place, origin.content)
        for message, one, origin in zip(messages, staged, origins, strict=True)
    ]


def stage_refused(
    settings: QuarantineSettings, refused: Mapping[int, Failure], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Stage the rows whose results are refused though their tasks could write them, by number; tell of it."""
    layout, options, stage, rows = settings.layout, settings.task.options, uuid.uuid4().hex, 0
    origins = RowOrigins(layout)
    for batch in batches:
        mine = batch.filter(pc.is_null(batch.column("claim")))
        frame = pa.RecordBatch.from_struct_array(mine.column("row"))
        among = [(at, one) for at, one in enumerate(origins.of(frame)) if one.number in refused]
        failed = frame.take(pa.array([at for at, _ in among], pa.int64()))
        staged = [StagedRow(0, Outcome.FAILED.value, refused[one.number]) for _, one in among]
        kept = _other_rows(layout, failed, staged, [one for _, one in among])
        _store_rows(options, stage, kept)
        rows += len(kept)
    yield pa.RecordBatch.from_pylist([{"stage": stage, "rows": rows}], schema=TOLD)


def _store_rows(options: SparkOptions, stage: str, rows: Sequence[OtherRow]) -> None:
    if rows:
        with broker_at(options.url()) as broker:
            store_of(broker).run(StageRows(EntityPath.parse(options.queue), stage, rows))
