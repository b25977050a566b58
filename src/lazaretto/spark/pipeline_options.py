"""Options that `process` and `quarantine` share, checked in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from lazaretto.broker.handling.functions import HandlerFunction, Returned
from lazaretto.errors import InvalidOption
from lazaretto.host.handlers import Handler
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.checks import refuse_unknown, shown
from lazaretto.spark.arrow_schemas import arrow_schema
from lazaretto.spark.executors import is_remote, refuse_definitions
from lazaretto.spark.query_driver import BatchSink
from lazaretto.spark.results import Sink
from lazaretto.spark.sandbox_handler import HandlerSetup
from lazaretto.spark.source_options import BODY_OPTIONS, STREAM_OPTIONS, SparkOptions
from lazaretto.spark.task_settings import TaskSettings
from lazaretto.spark.vectors import VectorSetup
from lazaretto.store.addresses import absolute

#: A handler of messages or rows, or a vectorised one of a RecordBatch of them.
PipelineFunction = HandlerFunction | Callable[[Any], Returned]
ISOLATIONS = ("process", "inline", "vectorised")
#: Options of handlers that a pipeline uses. The others are the host's.
HANDLER_OPTIONS = ("deadline", "memory", "validator", "middleware", "refork_every")
#: Bytes of one result, at most: of a row that is a document of its own.
LARGEST_RESULT = 128 * 1024 * 1024


@dataclasses.dataclass(frozen=True)
class PipelineOptions:
    """Options of a pipeline, but for its source, handlers and queues. Raises InvalidOption, NotAllowed.

    `options`: those of handlers, of the stream of messages, and of their bodies. `caller`: names who asks.
    """

    caller: str
    isolation: str
    results: str | Sink | None
    schema: StructType | str | None
    trigger: Mapping[str, Any] | None
    name: str | None
    breaker: BreakerPolicy | None
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        refuse_definitions(self.caller)
        if self.isolation not in ISOLATIONS:
            raise InvalidOption(
                f"expected isolation to be one of {', '.join(ISOLATIONS)}, got {shown(self.isolation)}"
            )
        if (self.results is None) != (self.schema is None):
            raise InvalidOption("expected both results and schema, got only one of them")
        refuse_unknown(self.options, [*STREAM_OPTIONS, *BODY_OPTIONS, *HANDLER_OPTIONS], self.caller)
        check_trigger(self.trigger)

    def text(self, names: Sequence[str]) -> dict[str, str]:
        """Return those of the options with these names, as Spark takes them."""
        return {name: str(self.options[name]) for name in names if name in self.options}

    def handler(self, path: str, function: PipelineFunction | Handler) -> Handler:
        """Return the handler of a queue. Raises InvalidOption."""
        options = {name: self.options[name] for name in HANDLER_OPTIONS if name in self.options}
        if isinstance(function, Handler):
            if not options:
                return Handler.with_options(path, function.function, function.options)
            function = function.function
        return Handler(path, function, **options)

    def task(
        self,
        handler: Handler,
        setup: Callable[[Handler], HandlerSetup],
        options: SparkOptions,
        sink: Sink | None,
        schema: bytes | None,
    ) -> TaskSettings:
        """Return what a task of a handler needs. `setup`: makes what runs it on one message or row."""
        is_vectorised = self.isolation == "vectorised"
        if is_vectorised:
            _refuse_what_vectors_lack(handler)
        return TaskSettings(
            options=options,
            setup=VectorSetup(handler.function) if is_vectorised else setup(handler),
            limits=dataclasses.replace(handler.options.limits(), max_result=LARGEST_RESULT),
            inline=self.isolation == "inline",
            results=sink,
            schema=schema,
            breaker=self.breaker,
        )

    def start(self, frame: DataFrame, sink: BatchSink, checkpoint: str) -> StreamingQuery:
        """Start the query whose micro-batches a sink gets."""
        if is_remote(frame):
            sink.driver.await_former()
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        if self.name is not None:
            writer = writer.queryName(self.name)
        return writer.trigger(
            **(dict(self.trigger) if self.trigger is not None else {"availableNow": True})
        ).start()


def place_of(store: str, queue: str, consumer: str) -> dict[str, str]:
    """Return the options of the stream that say whose messages it has."""
    return {
        "store": store if store.startswith("env:") else absolute(store),
        "queue": queue,
        "consumer": consumer,
    }


def check_trigger(trigger: Mapping[str, Any] | None) -> None:
    """Raise InvalidOption for what is no trigger, or one that has no micro-batches."""
    if trigger is None:
        return
    if not isinstance(trigger, Mapping):
        raise InvalidOption(
            f"expected trigger to be a dict such as {{'availableNow': True}}, got {shown(trigger)}"
        )
    for name in ("continuous", "realTime"):
        if name in trigger:
            raise InvalidOption(
                f"the trigger {name!r} has no micro-batches, and a pipeline settles each micro-batch in one "
                "commit: use processingTime or availableNow"
            )


def _refuse_what_vectors_lack(handler: Handler) -> None:
    """Raise InvalidOption for what a function of whole batches cannot keep."""
    if (
        handler.takes_context
        or handler.is_async
        or handler.options.validator is not None
        or handler.options.middleware
    ):
        raise InvalidOption(
            "a vectorised function takes only a batch, and is not async: no context, validator or middleware"
        )


def encoded_schema(schema: StructType | str | None, own: Sequence[str]) -> bytes | None:
    """Return the schema of results as Arrow writes it. Raises InvalidOption: it has one of `own`."""
    if schema is None:
        return None
    fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(fields, StructType)
    taken = {*own}
    # Spark, and so whoever reads the results, tells no large letters from small ones.
    for name in map(str.lower, fields.names):
        if name in own:
            raise InvalidOption(f"the results have a column {name!r} of their own: give yours another name")
        if name in taken:
            raise InvalidOption(f"the schema of results has the column {name!r} twice")
        taken.add(name)
    encoded: bytes = arrow_schema(fields).serialize().to_pybytes()
    return encoded
