"""`process`: a handler on every message of a stream, each settled exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from lazaretto.broker import store_of
from lazaretto.claims import ClaimConsumer
from lazaretto.errors import InvalidOption
from lazaretto.host.handlers import Handler, HandlerFunction
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.checks import shown
from lazaretto.spark.carried import Carried
from lazaretto.spark.columns import SHARDS, STREAM
from lazaretto.spark.datasource import FORMAT, register
from lazaretto.spark.results import ParquetResults, ResultOwner, ResultSink, owned
from lazaretto.spark.run_task import run_task
from lazaretto.spark.sandbox_handler import HandlerSetup
from lazaretto.spark.shard_task import TOLD, TaskSettings
from lazaretto.spark.sink import SettlingSink
from lazaretto.spark.source_options import STREAM_OPTIONS, SparkOptions, parse
from lazaretto.spark.store_access import broker_at
from lazaretto.spark.vectors import VectorSetup
from lazaretto.store.addresses import absolute, is_served, without_password

#: What the query's progress tells of each micro-batch, besides its claim.
METRICS = ("rows", "completed", "read_seconds", "handler_seconds", "results_seconds")
ISOLATIONS = ("process", "inline", "vectorised")


def process(
    source: SparkSession | DataFrame,
    handler: HandlerFunction | Handler,
    *,
    store: str,
    queue: str,
    checkpoint: str,
    consumer: str = "spark",
    isolation: str = "process",
    results: str | ResultSink | None = None,
    schema: StructType | str | None = None,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    breaker: BreakerPolicy | None = BreakerPolicy(),  # noqa: B008 - frozen
    **options: Any,
) -> StreamingQuery:
    """Start a query that runs a handler on each message of a queue and settles it.

    `source` is a session or a stream. With a session, the tasks read the messages themselves. A stream of
    `format("lazaretto")` lets Spark process the messages first; it must have the same store, queue and
    consumer. `handler` is a function of a message, or of a message and its context, as for the service
    host. It returns a row of `results` as a dict, or None. `checkpoint` is a folder that no other query
    uses. `isolation` is "process", "inline" for trusted code, or "vectorised". A vectorised handler is a
    function of a RecordBatch of messages. It returns a RecordBatch of results with a row for each, or
    None. A batch that fails is run again in parts, so the handler must have no effects of its own.
    `results` is a folder or URI of Parquet files by claim, or a ResultSink; `schema` describes its rows.
    `trigger` is the query's; the default is {"availableNow": True}. `breaker` says when failures are an
    outage; an outage ends the query. `options` are those of HandlerOptions (deadline, memory, validator,
    middleware, refork_every) and, with a session, those of the stream (max_rows, max_bytes, shards, lease).
    """
    if isolation not in ISOLATIONS:
        raise InvalidOption(
            f"expected isolation to be one of {', '.join(ISOLATIONS)}, got {shown(isolation)}"
        )
    if (results is None) != (schema is None):
        raise InvalidOption("expected both results and schema, got only one of them")
    said = {
        "store": store if store.startswith("env:") else absolute(store),
        "queue": queue,
        "consumer": consumer,
    }
    stream = _stream(source, said, options)
    function = handler.function if isinstance(handler, Handler) else handler
    made = (
        Handler.with_options(queue, function, handler.options)
        if isinstance(handler, Handler) and not options
        else Handler(queue, function, **options)
    )
    sink = ParquetResults(results) if isinstance(results, str) else results
    given = parse(said)
    if isolation == "vectorised":
        _refuse_what_vectors_lack(made, given)
    refuse_remote(stream.sparkSession.sparkContext.master, given.url())
    if sink is not None:
        sink = owned(sink, _owner(given))
    carried = Carried(
        TaskSettings(
            options=given,
            setup=VectorSetup(made.function) if isolation == "vectorised" else HandlerSetup(made),
            limits=made.options.limits(),
            inline=isolation == "inline",
            results=sink,
            schema=_schema(schema),
            breaker=breaker,
        )
    )

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_task(carried.open(), batches)

    told = stream.mapInArrow(run, from_arrow_schema(TOLD))
    # In the query's progress, for whoever watches it.
    told = told.observe(
        "lazaretto",
        functions.max("claim").alias("claim"),
        *(functions.sum(name).alias(name) for name in METRICS),
    )
    writer = told.writeStream.foreachBatch(SettlingSink(given, sink)).option("checkpointLocation", checkpoint)
    if name is not None:
        writer = writer.queryName(name)
    writer = writer.trigger(**(dict(trigger) if trigger is not None else {"availableNow": True}))
    return writer.start()


def _stream(source: SparkSession | DataFrame, said: Mapping[str, str], options: dict[str, Any]) -> DataFrame:
    """Return the stream to work on; take what is its own out of the options."""
    own = {name: str(options.pop(name)) for name in STREAM_OPTIONS if name in options}
    if isinstance(source, DataFrame):
        if own:
            raise InvalidOption(
                f"{next(iter(own))} is an option of the stream: set it where the stream is loaded"
            )
        missing = [column for column in STREAM.names if column not in source.columns]
        if missing:
            raise InvalidOption(f"the stream has no column {missing[0]!r}: load all columns")
        return source
    register(source)
    options_of_stream = {**said, **own, "shards_only": "true"}
    parse(options_of_stream)
    # Told here, the schema need not be found in a process that would import Arrow for it.
    reader = source.readStream.format(FORMAT).schema(from_arrow_schema(SHARDS))
    return reader.options(**options_of_stream).load()


def _owner(options: SparkOptions) -> ResultOwner:
    """Return whose results a query writes."""
    with broker_at(options.url()) as broker:
        consumer = ClaimConsumer(store_of(broker), options.queue, options.consumer)
        identity = consumer.identify()
    return ResultOwner(without_password(options.store), str(consumer.path), consumer.name, identity)


def refuse_remote(master: str | None, store: str) -> None:
    """Raise InvalidOption for a store in a file when executors may run on other machines."""
    if master is not None and not master.startswith("local") and not is_served(store):
        raise InvalidOption(
            f"a store in a SQLite file ({store!r}) is on one machine, and Spark's master {master!r} may run "
            "executors on others, which cannot open it: use a master of local[…]"
        )


def _refuse_what_vectors_lack(handler: Handler, options: SparkOptions) -> None:
    """Raise InvalidOption for what a function of whole batches cannot keep."""
    if handler.takes_context or handler.options.validator is not None or handler.options.middleware:
        raise InvalidOption("a vectorised function takes only a batch: no context, validator or middleware")
    with broker_at(options.url()) as broker:
        if broker.queue(options.queue).options.requires_session:
            raise InvalidOption(
                f"queue {options.queue!r} has sessions: a vectorised function does not keep their order"
            )


def _schema(schema: StructType | str | None) -> bytes | None:
    if schema is None:
        return None
    fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(fields, StructType)
    found: bytes = to_arrow_schema(fields, timezone="UTC").serialize().to_pybytes()
    return found
