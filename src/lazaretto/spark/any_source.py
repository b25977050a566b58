"""`quarantine`: a handler on rows of any source; those that fail are messages of a queue, and come back."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from lazaretto.broker import store_of
from lazaretto.claims import ClaimConsumer
from lazaretto.engine.claims.outbox import ForgetStaged
from lazaretto.engine.claims.settle_claims import SettleClaims
from lazaretto.engine.claims.settle_rows import BeginRows, RowBatch, SettleRows, refuse_sessions
from lazaretto.errors import InvalidOption, NotAllowed, SystemicFailure
from lazaretto.host.handlers import Handler
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.checks import shown
from lazaretto.model.entities import EntityPath
from lazaretto.spark import source_options
from lazaretto.spark.arrow_schemas import arrow_schema
from lazaretto.spark.bodies import BodyFormat
from lazaretto.spark.carried import Carried
from lazaretto.spark.columns import SHARDS
from lazaretto.spark.database_results import DatabaseResults
from lazaretto.spark.datasource import FORMAT, register
from lazaretto.spark.executors import is_cluster
from lazaretto.spark.outage import OUTAGE
from lazaretto.spark.parquet_results import ParquetResults
from lazaretto.spark.pipeline import begin_results, refuse_remote
from lazaretto.spark.pipeline_options import PipelineFunction, PipelineOptions, encoded_schema, place_of
from lazaretto.spark.results import ResultOwner, Sink, owned, prepared, publishing
from lazaretto.spark.row_layout import BLOCK, FILE, RowLayout
from lazaretto.spark.row_task import TOLD, QuarantineSettings, run_rows
from lazaretto.spark.session import refuse_connect
from lazaretto.spark.sink import bring_up_to_date, collected
from lazaretto.spark.source_options import STREAM_OPTIONS, SparkOptions
from lazaretto.spark.source_rows import RowSetup
from lazaretto.spark.store_access import broker_at
from lazaretto.store.addresses import without_password

#: Columns that say where a row of Kafka's came from.
KAFKA = ("topic", "partition", "offset")
#: Where Spark says which query a micro-batch is of.
_QUERY_ID = "sql.streaming.queryId"


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
    together say where a row came from; known for Kafka's columns and files. `consumer`: the name under which
    messages that were sent back are claimed. The others are as for `process`: `results`, `schema`,
    `isolation`, `trigger`, `name`, `breaker`, and in `options` those of HandlerOptions and of the stream of
    what came back. A vectorised handler gets a RecordBatch of the source's columns.
    """
    refuse_connect(source)
    if not isinstance(source, DataFrame):
        raise InvalidOption(f"expected the source to be a DataFrame, got {shown(source)}")
    plan = PipelineOptions("quarantine", isolation, results, schema, trigger, name, breaker, options)
    if "properties" in options:
        raise InvalidOption("the columns of a source are its properties already: omit properties")
    session = source.sparkSession
    said, of_stream = place_of(store, queue, consumer), plan.text(STREAM_OPTIONS)
    told = source_options.parse({**said, **of_stream, "body": parse or "", **plan.text(["body_schema"])})
    master = session.sparkContext.master
    refuse_remote(master, told.url())
    if is_cluster(master):
        raise InvalidOption(f"quarantine runs on one machine (local[…]), and Spark's master is {master!r}")
    made = plan.handler(queue, handler)
    if isinstance(made.options.validator, Mapping):
        raise InvalidOption("a schema as validator is for messages: give a function of a row, or parse")
    rows, layout = _rows_of(source, body, origin, _format(told, registry))
    sinks = _sinks(results, schema, told)
    setup = functools.partial(RowSetup, names=layout.schema.names)
    settings = QuarantineSettings(
        task=plan.task(made, setup, told, sinks.letters, sinks.encoded), layout=layout, results=sinks.rows
    )
    sink = QuarantineSink(told, sinks, Carried(settings, "the handler or its options"))
    register(session)
    reader = session.readStream.format(FORMAT).schema(from_arrow_schema(SHARDS))
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
    done = session.read.parquet(results)
    return done.where(done["sequence_number"].isNull() & (done["claim"].cast("bigint") == number))


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
    source: DataFrame, body: str | None, origin: Sequence[str] | None, written: BodyFormat | None
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
    layout = RowLayout(encoded, body, tuple(origin), written)
    layout.check()
    return rows, layout


class _Sinks:
    """Sinks of results: of rows of the source, and of what came back. Both are one place to readers."""

    def __init__(self, letters: Sink | None, rows: Sink | None, encoded: bytes | None) -> None:
        self.letters, self.rows, self.encoded = letters, rows, encoded


def rows_consumer(consumer: str) -> str:
    """Return the name under which micro-batches of rows are numbered."""
    return f"{consumer}/rows"


def _sinks(results: str | Sink | None, schema: StructType | str | None, options: SparkOptions) -> _Sinks:
    sink = ParquetResults(results) if isinstance(results, str) else results
    if isinstance(sink, DatabaseResults):
        raise InvalidOption(
            "quarantine does not write to DatabaseResults, which tells results apart by the number of their "
            "message, and a row has none: use a folder, DeltaResults or IcebergResults"
        )
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
        refuse_sessions(broker.queue(options.queue).options, options.queue)
    encoded = encoded_schema(schema, ["sequence_number", "claim"])
    if sink is None or encoded is None:
        return _Sinks(None, None, encoded)
    first = prepared(owned(sink, owners[0]), encoded)
    second = first.beside(owners[1]) if isinstance(first, ParquetResults) else owned(sink, owners[1])
    found = _Sinks(first, prepared(second, encoded), encoded)
    begin_results(first, options)
    rows = source_options.parse(
        {"store": options.store, "queue": options.queue, "consumer": rows_consumer(options.consumer)}
    )
    assert found.rows is not None
    begin_results(found.rows, rows)
    return found


class QuarantineSink:
    """Has a micro-batch's tasks run, in the driver; settles rows and claims in one commit, and publishes."""

    def __init__(self, options: SparkOptions, sinks: _Sinks, carried: Carried[QuarantineSettings]) -> None:
        self._options, self._sinks, self._carried = options, sinks, carried
        self._path = EntityPath.parse(options.queue)
        self._rows_consumer = rows_consumer(options.consumer)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run a micro-batch, unless it is settled."""
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if not query:
            raise NotAllowed("Spark does not say which query this is: use PySpark's own thread mode (pinned)")
        self._run(batch, f"{self._path.key}/rows/{query}", batch_id)

    def run_table(self, rows: DataFrame, checkpoint: str) -> int:
        """Run all rows of a table, unless this checkpoint has; return the number of the batch."""
        place = checkpoint if "://" in checkpoint else str(Path(checkpoint).absolute())
        return self._run(rows, f"{self._path.key}/table/{place}", None)

    def _run(self, batch: DataFrame, writer: str, batch_id: int | None) -> int:
        with broker_at(self._options.url()) as broker:
            begun: RowBatch = store_of(broker).run(
                BeginRows(self._path, self._rows_consumer, writer, batch_id)
            )
        if not begun.is_settled:
            carried, number = self._carried, begun.number

            def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                return run_rows(carried.open(), number, batches)

            told = collected(batch.mapInArrow(run, from_arrow_schema(TOLD)))
            self._settle(told, writer, batch_id, number)
        self._publish()
        return begun.number

    def _settle(self, told: Sequence[Any], writer: str, batch_id: int | None, number: int) -> None:
        claimed = [row for row in told if row["claim"] is not None]
        mine = [row for row in told if row["claim"] is None]
        stages = [row["stage"] for row in told if row["stage"] is not None]
        with broker_at(self._options.url()) as broker:
            store = store_of(broker)
            consumer = None
            settle = None
            if claimed:
                epoch = claimed[0]["epoch"]
                consumer = ClaimConsumer(store, self._options.queue, self._options.consumer, epoch=epoch)
                numbers = sorted({row["claim"] for row in claimed})
                of_claims = [row["stage"] for row in claimed if row["stage"] is not None]
                settle = SettleClaims(consumer.path, consumer.name, epoch, numbers, of_claims)
            outage = next((stage for stage in stages if stage.startswith(OUTAGE)), None)
            if outage is not None:
                store.run(ForgetStaged(self._path, [row["stage"] for row in mine]))
                if consumer is not None:
                    consumer.revoke(why=outage)
                raise SystemicFailure(
                    f"{outage.removeprefix(OUTAGE)}. Nothing of this micro-batch was stored or set aside; "
                    "restart the query when the cause is fixed"
                )
            written = {row["stage"]: row["results"] for row in mine if row["results"] is not None}
            rows = sum(row["rows"] for row in mine)
            names = [row["stage"] for row in mine]
            store.run(
                SettleRows(
                    self._path, self._rows_consumer, writer, batch_id, number, rows, names, written, settle
                )
            )
            if consumer is not None:
                # The store's timers go on with what is left.
                with contextlib.suppress(Exception):
                    consumer.remove_completed()

    def _publish(self) -> None:
        """Publish what is settled and not published yet."""
        pairs = ((self._sinks.letters, self._options.consumer), (self._sinks.rows, self._rows_consumer))
        for sink, consumer in pairs:
            if sink is not None:
                with broker_at(self._options.url()) as broker:
                    claims = ClaimConsumer(store_of(broker), self._options.queue, consumer)
                    summaries = claims.summaries()
                bring_up_to_date(sink, summaries)
