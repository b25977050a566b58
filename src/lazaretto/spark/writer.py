"""Writing to a queue: tasks prepare messages, the commit sends them, each batch once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from lazaretto.broker import store_of
from lazaretto.engine.claims.outbox import ForgetStaged, SendStaged, StageMessages
from lazaretto.engine.messages.prepare import prepare
from lazaretto.errors import InvalidMessage
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import Message
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.store_access import broker_at

#: Columns that a message can be made of; the body is needed.
COLUMNS = (
    "body", "message_id", "session_id", "partition_key", "subject", "correlation_id", "to", "reply_to",
    "reply_to_session_id", "content_type", "scheduled_enqueue_time", "time_to_live", "properties",
)  # fmt: skip
#: Messages that are staged at once.
_CHUNK = 5_000
#: Where Spark tells a task which query it works for.
_QUERY_ID = "sql.streaming.queryId"


class Staged(WriterCommitMessage):
    """What a task has prepared: the name it stands under, and the query it is for."""

    def __init__(self, stage: str, query: str | None) -> None:
        self.stage = stage
        self.query = query


class _Writer:
    """What writing a table and writing a stream have in common."""

    def __init__(self, options: SparkOptions) -> None:
        self._options = options
        self._path = EntityPath.parse(options.queue)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        stage = uuid.uuid4().hex
        with broker_at(self._options.url()) as broker:
            for batch in iterator:
                for start in range(0, batch.num_rows, _CHUNK):
                    rows = batch.slice(start, _CHUNK).to_pylist()
                    prepared = [prepare(_message(row)) for row in rows]
                    store_of(broker).run(StageMessages(self._path, stage, prepared))
        context = TaskContext.get()
        return Staged(stage, None if context is None else context.getLocalProperty(_QUERY_ID))

    def _send(self, messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        # The query's id is its checkpoint's: a replay of a batch has the same.
        writer = None if batch is None else f"{self._path.key}/{staged[0].query}"
        stages = [message.stage for message in staged]
        with broker_at(self._options.url()) as broker:
            store_of(broker).run(SendStaged(self._path, stages, writer, batch or 0))

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

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._send(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._forget(messages)


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
