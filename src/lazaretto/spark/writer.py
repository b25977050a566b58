"""Writing to a queue: tasks prepare messages, the commit sends them, each batch once."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lazaretto.broker.broker import store_of
from lazaretto.engine.claims.outbox import ForgetStaged, NewLetter, SendStaged, StageLetters, StageMessages
from lazaretto.engine.messages.prepare import prepare
from lazaretto.errors import InvalidMessage
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import Message
from lazaretto.spark.new_letters import REASONS, bad_row, rejected_row
from lazaretto.spark.source_options import DEAD_LETTER, FAIL, SparkOptions
from lazaretto.spark.store_access import broker_at
from lazaretto.spark.versions import ARROW_SINKS, spark_version
from lazaretto.store.records.messages import NewMessage
from lazaretto.store.sql.store import Store

if TYPE_CHECKING or spark_version() >= ARROW_SINKS:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    # It gets rows.
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

_log = logging.getLogger(__name__)

#: Columns that a message can be made of; the body is needed.
COLUMNS = (
    "body", "message_id", "session_id", "partition_key", "subject", "correlation_id", "to", "reply_to",
    "reply_to_session_id", "content_type", "scheduled_enqueue_time", "time_to_live", "properties",
)  # fmt: skip
__all__ = ["COLUMNS", "REASONS", "Staged", "StreamWriter", "TableWriter"]
#: Messages that are staged at once.
_CHUNK = 5_000
#: Where Spark tells a task which query it works for.
_QUERY_ID = "sql.streaming.queryId"


class Staged(WriterCommitMessage):
    """A task's preparation: the name it stands under, the query it is for, and how many dead letters."""

    def __init__(self, stage: str, query: str | None, letters: int = 0) -> None:
        self.stage = stage
        self.query = query
        self.letters = letters


class _Writer:
    """Common ground of writing a table and writing a stream."""

    #: What becomes of a row that cannot be a message, unless the option says so.
    on_bad_row = FAIL

    def __init__(self, options: SparkOptions) -> None:
        self._options = options
        self._path = EntityPath.parse(options.queue)
        self._fails = (options.on_bad_row or self.on_bad_row) == FAIL

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        stage = uuid.uuid4().hex
        letters = 0
        with broker_at(self._options.url()) as broker:
            store = store_of(broker)
            for rows in _chunks(iterator):
                if self._options.subqueue:
                    aside = [rejected_row(row) for row in rows]
                else:
                    aside = self._stage(store, stage, rows)
                if aside:
                    store.run(StageLetters(self._path, stage, aside))
                    letters += len(aside)
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY_ID)
        return Staged(stage, query, letters)

    def _stage(self, store: Store, stage: str, rows: Sequence[dict[str, Any]]) -> list[NewLetter]:
        """Stage the rows that are messages; return the letters of the others. Raises InvalidMessage."""
        aside: list[NewLetter] = []
        pairs: list[tuple[dict[str, Any], NewMessage]] = []
        for row in rows:
            try:
                pairs.append((row, prepare(_message(row))))
            except InvalidMessage as error:
                if self._fails:
                    raise
                aside.append(bad_row(row, error))
        return aside + self._stage_messages(store, stage, pairs)

    def _stage_messages(
        self, store: Store, stage: str, pairs: Sequence[tuple[dict[str, Any], NewMessage]]
    ) -> list[NewLetter]:
        """Stage messages; return the letters of those that the queue cannot take, found by halving."""
        if not pairs:
            return []
        try:
            store.run(StageMessages(self._path, stage, [message for _, message in pairs]))
        except InvalidMessage as error:
            if self._fails:
                raise
            if len(pairs) == 1:
                return [bad_row(pairs[0][0], error)]
            half = len(pairs) // 2
            return [
                *self._stage_messages(store, stage, pairs[:half]),
                *self._stage_messages(store, stage, pairs[half:]),
            ]
        return []

    def _send(self, messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        # The query's id is its checkpoint's: a replay of a batch has the same.
        writer = None if batch is None else f"{self._path.key}/{staged[0].query}"
        stages = [message.stage for message in staged]
        with broker_at(self._options.url()) as broker:
            store_of(broker).run(SendStaged(self._path, stages, writer, batch or 0))
        letters = sum(message.letters for message in staged)
        if letters and not self._options.subqueue:
            _log.warning(
                "%d rows that cannot be messages are dead letters of %r%s",
                letters,
                str(self._path),
                "" if batch is None else f" (micro-batch {batch})",
            )

    def _forget(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        stages = [message.stage for message in messages if isinstance(message, Staged)]
        if not stages:
            # The store may be what is missing, and an error here would hide that.
            return
        with broker_at(self._options.url()) as broker:
            store_of(broker).run(ForgetStaged(self._path, stages))


class TableWriter(_Writer, DataSourceArrowWriter):
    """Sends the rows of a table in one commit."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._send(messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._forget(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Sends each micro-batch of a stream in one commit, once."""

    on_bad_row = DEAD_LETTER

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._send(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._forget(messages)


def _chunks(batches: Iterator[pa.RecordBatch | Row]) -> Iterator[list[dict[str, Any]]]:
    """Yield rows, so many at once; Spark before 4.1 gives a stream's sink rows."""
    for first in batches:
        if isinstance(first, pa.RecordBatch):
            for start in range(0, first.num_rows, _CHUNK):
                yield rows_of(first.slice(start, _CHUNK))
        else:
            rows = [first, *itertools.islice(batches, _CHUNK - 1)]
            yield [row.asDict(recursive=True) for row in rows]


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows; a value that Python does not have is what can be said of it."""
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == "body" and pa.types.is_string(column.type):
            # Whatever bytes Java has taken for a text.
            column = column.cast(pa.binary())
        try:
            columns[name] = column.to_pylist()
        except (ValueError, OverflowError):
            columns[name] = [_value(column, place) for place in range(len(column))]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _value(column: pa.Array, place: int) -> Any:
    try:
        return column[place].as_py()
    except (ValueError, OverflowError):
        if pa.types.is_string(column.type):
            return column.slice(place, 1).cast(pa.binary())[0].as_py()
        return f"{column.type}: {column.slice(place, 1).cast(pa.int64())[0]}"


def _message(row: Mapping[str, Any]) -> Message:
    fields = {name: value for name, value in row.items() if value is not None}
    body = fields.pop("body", None)
    if isinstance(body, str):
        body = body.encode()
    if body is None:
        raise InvalidMessage("expected the column body to be binary or text, got a null")
    properties = fields.pop("properties", None)
    if properties is not None:
        # Arrow's maps are lists of pairs.
        fields["properties"] = dict(properties)
    return Message(body, **fields)
