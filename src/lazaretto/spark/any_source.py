"""`quarantine`: a handler on rows of any source; those that fail are messages of a queue, and come back."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.claims.settle_rows import check_sessions
from lazaretto.errors import InvalidOption
from lazaretto.host.handlers import Handler
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.checks import shown
from lazaretto.spark import source_options
from lazaretto.spark.arrow_schemas import arrow_schema
from lazaretto.spark.bodies import BodyFormat
from lazaretto.spark.columns import SHARDS, STREAM
from lazaretto.spark.datasource import FORMAT, register
from lazaretto.spark.new_letters import ROW_ORIGIN
from lazaretto.spark.parquet_results import ParquetResults
from lazaretto.spark.pipeline import begin_results, check_tasks, refuse_remote
from lazaretto.spark.pipeline_options import PipelineFunction, PipelineOptions, encoded_schema, place_of
from lazaretto.spark.quarantine_sink import QuarantineSink, RowSinks, rows_consumer
from lazaretto.spark.results import ResultOwner, Sink, owned, prepared, publishing
from lazaretto.spark.row_layout import RowLayout
from lazaretto.spark.row_origins import BLOCK, FILE
from lazaretto.spark.row_task import QuarantineSettings
from lazaretto.spark.source_options import STREAM_OPTIONS, SparkOptions
from lazaretto.spark.source_rows import RowSetup
from lazaretto.spark.store_access import broker_at
from lazaretto.spark.task_settings import Carried
from lazaretto.store.addresses import without_password

#: Columns that say where a row of Kafka's came from.
KAFKA = ("topic", "partition", "offset")


def quarantine(
    source: DataFrame,
    handler: PipelineFunction | Handler,
    *,
    store: str,
    queue: str,
    checkpoint: str,
    body: str | None = None,
    origin: Sequence[str] | None = None,
    parse: str | None = None,
    registry: bool = False,
    session: str | None = None,
    keep_origin: bool = False,
    consumer: str = "quarantine",
    isolation: str = "process",
    results: str | Sink | None = None,
    schema: StructType | str | None = None,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    breaker: BreakerPolicy | None = BreakerPolicy(),  # noqa: B008 - frozen
    **options: Any,
) -> StreamingQuery | DataFrame | None:
    """Run a handler on each row of a DataFrame; rows that fail become messages of a queue, and come back.

    `source`: a stream, of which a query is started and returned; or a table, which is run at once: what it
    stored in `results`, a folder, is returned. `handler`: a function of a row, which has values by place and
    name, and `asDict()`, or of a row and its context. `body`: the column, text or binary, that is a message's
    body; None: all columns, as JSON. `parse`: how the body is written, "json", "avro" or "protobuf"; the
    handler gets it as the option `body_schema` says, and a row whose body does not fit is invalid.
    `registry`: before each body stands the header of Confluent's schema registry. `origin`: columns that
    together say where a row came from; known for Kafka's columns and files. `session`: the column that says
    whose order a row keeps: rows of one session are processed in the order of their origin, and those behind
    one that failed wait in the queue, which must have sessions. `keep_origin`: results have a column
    `row_origin`, for `lineage`. `consumer`: the name under which messages that were sent back are claimed.
    The others are as for `process`: `results`, `schema`,
    `isolation`, `trigger`, `name`, `breaker`, and in `options` those of HandlerOptions and of the stream of
    what came back. A vectorised handler gets a RecordBatch of the source's columns.
    """
    if not isinstance(source, DataFrame):
        raise InvalidOption(f"expected the source to be a DataFrame, got {shown(source)}")
    if source.isStreaming and set(STREAM.names) <= set(source.columns):
        raise InvalidOption("a stream of a queue is settled by process: use that, which sets aside as well")
    plan = PipelineOptions("quarantine", isolation, results, schema, trigger, name, breaker, options)
    if "properties" in options:
        raise InvalidOption("the columns of a source are its properties already: omit properties")
    if session is not None and isolation == "vectorised":
        raise InvalidOption("a vectorised function does not keep the order of sessions: omit session")
    spark = source.sparkSession
    said, of_stream = place_of(store, queue, consumer), plan.text(STREAM_OPTIONS)
    parsed = source_options.parse({**said, **of_stream, "body": parse or "", **plan.text(["body_schema"])})
    refuse_remote(spark.conf.get("spark.master"), parsed.url())
    made = plan.handler(queue, handler)
    if isinstance(made.options.validator, Mapping):
        raise InvalidOption("a schema as validator is for messages: give a function of a row, or parse")
    rows, layout = _rows_of(source, body, origin, _format(parsed, registry), session, keep_origin)
    sinks = _sinks(results, schema, parsed, layout)
    setup = functools.partial(
        RowSetup, names=layout.schema.names, times=layout.times, pickled=not layout.is_plain
    )
    settings = QuarantineSettings(
        task=plan.task(made, setup, parsed, sinks.letters, sinks.encoded), layout=layout, results=sinks.rows
    )
    carried = Carried(settings, "the handler or its options")
    tried = Carried({queue: settings.task}, "the handler or its options")
    check_tasks(spark, tried, {queue: sinks.identity})
    sink = QuarantineSink(parsed, sinks, layout, carried, checkpoint)
    register(spark)
    reader = spark.readStream.format(FORMAT).schema(from_arrow_schema(SHARDS))
    shards = reader.options(**said, **of_stream, shards_only="true").load()
    letters = shards.select("claim", "epoch", "shard", functions.lit(None).cast(rows.schema).alias("row"))
    if source.isStreaming:
        columns = [functions.lit(None).cast("bigint").alias(one) for one in ("claim", "epoch", "shard")]
        mine = rows.select(*columns, functions.struct("*").alias("row"))
        return plan.start(letters.union(mine), sink, checkpoint)
    if trigger is not None:
        raise InvalidOption("a table is run at once: trigger is for streams")
    if results is not None and not isinstance(results, str):
        raise InvalidOption("of a table, results are a folder: what it stored is returned as a DataFrame")
    columns = [functions.lit(None).cast("bigint").alias(one) for one in ("claim", "epoch", "shard")]
    number = sink.run_table(rows.select(*columns, functions.struct("*").alias("row")), checkpoint)
    # What was sent back since the last time.
    plan.start(letters, sink, checkpoint).awaitTermination()
    if not isinstance(results, str):
        return None
    written = spark.read.parquet(results)
    return written.where(written["sequence_number"].isNull() & (written["claim"].cast("bigint") == number))


def _format(options: SparkOptions, registry: bool) -> BodyFormat | None:
    """Return how bodies are to be read. Raises InvalidOption."""
    if not options.body:
        if registry:
            raise InvalidOption("registry needs parse, which says how bodies are written")
        return None
    if not options.body_schema:
        raise InvalidOption(f"parse={options.body!r} needs the option body_schema")
    return BodyFormat.of(options, registry)


def _rows_of(
    source: DataFrame,
    body: str | None,
    origin: Sequence[str] | None,
    written: BodyFormat | None,
    session: str | None,
    keep_origin: bool,
) -> tuple[DataFrame, RowLayout]:
    """Return the rows with what says where they came from, and their layout. Raises InvalidOption."""
    names = source.columns
    rows = source
    if origin is None and all(name in names for name in KAFKA):
        origin = KAFKA
    if origin is None:
        try:
            path = functions.col("_metadata.file_path").alias(FILE)
            rows = source.select("*", path, functions.col("_metadata.file_block_start").alias(BLOCK))
            rows.schema  # noqa: B018 - fails if the source is no files
        except AnalysisException:
            raise InvalidOption(
                "it is not known where a row of this source comes from: name the columns that tell, as "
                "origin=['table', 'id']"
            ) from None
        origin = (FILE, BLOCK)
    else:
        missing = [name for name in origin if name not in names]
        if missing or not origin:
            raise InvalidOption(
                f"expected origin to be columns of the source, which are {', '.join(names)}, got "
                f"{shown(origin)}"
            )
    encoded = arrow_schema(source.schema).serialize().to_pybytes()
    layout = RowLayout(encoded, body, tuple(origin), written, session, keep_origin)
    layout.check()
    return rows, layout


def _sinks(
    results: str | Sink | None, schema: StructType | str | None, options: SparkOptions, layout: RowLayout
) -> RowSinks:
    sink = ParquetResults(results) if isinstance(results, str) else results
    if sink is not None and (publishing(sink) is None or not hasattr(sink, "owned_by")):
        raise InvalidOption(
            f"{type(sink).__name__} lacks one of owned_by, open_stage, publish and remove, by which results "
            "are stored once"
        )
    with broker_at(options.url()) as broker:
        ours = ClaimConsumer(store_of(broker), options.queue, options.consumer)
        theirs = ClaimConsumer(store_of(broker), options.queue, rows_consumer(options.consumer))
        place = without_password(options.store)
        owners = [ResultOwner(place, str(one.path), one.name, one.identify()) for one in (ours, theirs)]
        # What begins a micro-batch refuses it, too; but then the query runs.
        check_sessions(broker.queue(options.queue).options, options.queue, layout.session is not None)
    encoded = encoded_schema(
        schema, ["sequence_number", "claim", *([ROW_ORIGIN] if layout.keeps_origin else [])]
    )
    if encoded is not None and layout.keeps_origin:
        fields = pa.ipc.read_schema(pa.py_buffer(encoded))
        encoded = fields.append(pa.field(ROW_ORIGIN, pa.string())).serialize().to_pybytes()
    if sink is None or encoded is None:
        return RowSinks(None, None, encoded, owners[0].identity)
    first = prepared(owned(sink, owners[0]), encoded)
    second = first.beside(owners[1]) if isinstance(first, ParquetResults) else owned(sink, owners[1])
    sinks = RowSinks(first, prepared(second, encoded), encoded, owners[0].identity)
    begin_results(first, options)
    rows = source_options.parse(
        {"store": options.store, "queue": options.queue, "consumer": rows_consumer(options.consumer)}
    )
    assert sinks.rows is not None
    begin_results(sinks.rows, rows)
    return sinks
