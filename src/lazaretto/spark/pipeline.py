"""`process`: a handler on every message of a stream, each settled exactly once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyspark import SparkConf
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.errors import InvalidOption, NotAllowed
from lazaretto.host.handlers import Handler
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.checks import shown
from lazaretto.model.entities import EntityPath
from lazaretto.observe.traces import is_traced
from lazaretto.spark.bodies import PROBLEM, VALUE, Extras, make_extras, type_of
from lazaretto.spark.columns import SHARDS, STREAM, property_columns
from lazaretto.spark.datasource import FORMAT, register
from lazaretto.spark.executors import check_executors, check_server, is_cluster, is_remote
from lazaretto.spark.parquet_results import ParquetResults
from lazaretto.spark.pipeline_options import PipelineFunction, PipelineOptions, encoded_schema, place_of
from lazaretto.spark.results import ResultOwner, Sink, owned, prepared, publishing
from lazaretto.spark.run_task import run_task
from lazaretto.spark.sandbox_handler import HandlerSetup
from lazaretto.spark.shard_task import TOLD
from lazaretto.spark.sink import SettlingSink, bring_up_to_date
from lazaretto.spark.source_options import BODY_OPTIONS, STREAM_OPTIONS, SparkOptions, parse
from lazaretto.spark.store_access import broker_at
from lazaretto.spark.task_settings import Carried, TaskSettings
from lazaretto.store.addresses import is_served, without_password

#: What the query's progress tells of each micro-batch, besides its claim.
METRICS = ("rows", "completed", "read_seconds", "handler_seconds", "results_seconds")
_NO_CLUSTER = (
    "over Spark Connect, pipelines run on a server of one machine (local[…]): on a cluster, use a session "
    "with spark.master, or spark-submit"
)


def process(
    source: SparkSession | DataFrame,
    handler: PipelineFunction | Handler | Mapping[str, PipelineFunction | Handler],
    *,
    store: str,
    queue: str | Sequence[str] | None = None,
    checkpoint: str,
    consumer: str = "spark",
    isolation: str = "process",
    results: str | Sink | None = None,
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
    host. It returns a row of `results` as a dict, or None. With a session, `queue` may be several queues, or
    `handler` a mapping of handlers by queue: results then are in a folder `queue=NAME` for each. `checkpoint`
    is a folder that no other query uses. `isolation` is "process", "inline" for trusted code, or
    "vectorised". A vectorised handler is a function of a RecordBatch of messages. It returns a RecordBatch of
    results with a row for each, or None. A batch that fails is run again in parts, so the handler must have
    no effects of its own. `results` is a folder or URI of Parquet files by claim, or a sink such as
    DeltaResults; `schema` describes its rows.
    `trigger` is the query's; the default is {"availableNow": True}. `name` is the query's, too. `breaker`
    says when failures are an outage; an outage ends the query. `options` are those of HandlerOptions
    (deadline, memory, validator, middleware, refork_every) and, with a session, those of the stream
    (max_rows, max_bytes, catch_up_rows, catch_up_after, shards, lease, body, body_schema, properties). A
    message whose body does not fit its schema is invalid: the handler does not get it.
    """
    plan = PipelineOptions("process", isolation, results, schema, trigger, name, breaker, options)
    handlers = _handlers(handler, queue)
    several = len(handlers) > 1
    if several and isinstance(source, DataFrame):
        raise InvalidOption("a stream is of one queue: pass the session for several")
    bodies = plan.text(BODY_OPTIONS)
    if bodies and isinstance(source, DataFrame):
        raise InvalidOption(
            f"{next(iter(bodies))} is an option of the stream: set it where the stream is loaded"
        )
    streams: list[DataFrame] = []
    settings: dict[str, TaskSettings] = {}
    identities: dict[str, int] = {}
    own = plan.text(STREAM_OPTIONS)
    for path, function in handlers.items():
        said = place_of(store, path, consumer)
        stream = _stream(source, said, own)
        sink = (
            ParquetResults(_place(results, path if several else None))
            if isinstance(results, str)
            else results
        )
        parsed = parse({**said, **bodies})
        if isolation == "vectorised":
            _refuse_sessions(parsed)
        if several and sink is not None and not hasattr(sink, "owned_by"):
            raise InvalidOption(
                f"each queue numbers its own claims, and {type(sink).__name__} has no method owned_by, which "
                "keeps those of several queues apart: start a query for each, with a sink of its own"
            )
        refuse_remote(stream.sparkSession.conf.get("spark.master"), parsed.url())
        # Also without results: a queue that is not there is better told here than by Spark.
        owner = _owner(parsed)
        identities[path] = owner.identity
        encoded = encoded_schema(schema, _own_columns(sink, several and isinstance(results, str)))
        if sink is not None and encoded is not None:
            sink = prepared(owned(sink, owner), encoded)
            begin_results(sink, parsed)
        streams.append(stream.withColumn("queue", functions.lit(path)))
        task = plan.task(plan.handler(path, function), HandlerSetup, parsed, sink, encoded)
        settings[path] = dataclasses.replace(task, extras=_extras(parsed), traced=is_traced())
    for path, one in settings.items():
        Carried(one.results, f"the place of results of {path!r}")
    carried = Carried(settings, "the handler or its options")
    session = streams[0].sparkSession
    if not is_remote(session) and is_cluster(session.conf.get("spark.master")):
        for one in settings.values():
            refuse_speculation(one.results, session.sparkContext.getConf())
    check_tasks(session, carried, identities)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_task(carried.open(), batches)

    whole = reduce(DataFrame.union, streams)
    reports = whole.mapInArrow(run, from_arrow_schema(TOLD))
    # In the query's progress, for whoever watches it.
    reports = reports.observe(
        "lazaretto",
        functions.max("claim").alias("claim"),
        *(functions.sum(name).alias(name) for name in METRICS),
    )
    sinks = {path: (one.options, one.results) for path, one in settings.items()}
    return plan.start(reports, SettlingSink(sinks, breaker), checkpoint)


def _handlers(
    handler: PipelineFunction | Handler | Mapping[str, PipelineFunction | Handler],
    queue: str | Sequence[str] | None,
) -> dict[str, PipelineFunction | Handler]:
    """Return a handler for each queue. Raises InvalidOption."""
    if isinstance(handler, Mapping):
        if queue is not None:
            raise InvalidOption("handlers by queue name the queues: omit queue")
        by_queue = dict(handler)
    else:
        names = [queue] if isinstance(queue, str) else list(queue or ())
        by_queue = dict.fromkeys(names, handler)
        if len(by_queue) < len(names):
            raise InvalidOption(f"expected different queues, got {shown(queue)}")
    if not by_queue:
        raise InvalidOption("expected a queue, or handlers by queue, got none")
    if len({EntityPath.parse(path).key for path in by_queue}) < len(by_queue):
        raise InvalidOption(f"expected different queues, got {', '.join(by_queue)}")
    return by_queue


def _place(results: str, path: str | None) -> str:
    """Return where a queue's results go: those of several have a folder each, a column to readers."""
    return results if path is None else f"{results.rstrip('/')}/queue={quote(path, safe='')}"


def _stream(source: SparkSession | DataFrame, said: Mapping[str, str], own: Mapping[str, str]) -> DataFrame:
    """Return the stream to work on."""
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


def _extras(options: SparkOptions) -> Extras | None:
    """Return what the tasks make of bodies and properties."""
    fields: list[tuple[str, pa.DataType]] = list(property_columns(options.properties, STREAM.names).items())
    if options.body:
        fields += [(VALUE, type_of(options)), (PROBLEM, pa.string())]
    return make_extras(options, pa.schema(fields)) if fields else None


def _owner(options: SparkOptions) -> ResultOwner:
    """Return whose results a query writes."""
    with broker_at(options.url()) as broker:
        consumer = ClaimConsumer(store_of(broker), options.queue, options.consumer)
        identity = consumer.identify()
    return ResultOwner(without_password(options.store), str(consumer.path), consumer.name, identity)


def begin_results(sink: Sink, options: SparkOptions) -> None:
    """Publish what a driver has not that died, remove what it has left.

    Raises InvalidOption, SystemicFailure.
    """
    with broker_at(options.url()) as broker:
        consumer = ClaimConsumer(store_of(broker), options.queue, options.consumer)
        summaries, last, ended = consumer.summaries(), consumer.last_claim(), consumer.last_ended()
    published = getattr(sink, "published", int)()
    if published > last:
        raise InvalidOption(
            f"the results have claim {published} of consumer {consumer.name!r}, and the store only "
            f"{last}: the store is older; use other results, or the newer store"
        )
    begin = getattr(sink, "begin", None)
    if begin is not None:
        begin(ended)
    bring_up_to_date(sink, summaries)


def check_tasks(
    spark: SparkSession, carried: Carried[dict[str, TaskSettings]], identities: Mapping[str, int]
) -> None:
    """Have tasks of other machines try what a query needs. `identities`: as of `check_executors`.

    Raises ExecutorNotReady, and NotAllowed over Spark Connect to a cluster.
    """
    clustered = is_cluster(spark.conf.get("spark.master"))
    if is_remote(spark):
        if clustered:
            raise NotAllowed(_NO_CLUSTER)
        check_server(spark, carried, identities)
    elif clustered:
        check_executors(spark, carried, identities)


def refuse_remote(master: str | None, store: str) -> None:
    """Raise InvalidOption for a store in a file when executors may run on other machines."""
    if is_cluster(master) and not is_served(store):
        raise InvalidOption(
            f"a store in a SQLite file ({store!r}) is on one machine, and Spark's master {master!r} may run "
            "executors on others, which cannot open it: use a master of local[…]"
        )


def refuse_speculation(sink: Sink | None, settings: SparkConf) -> None:
    """Raise InvalidOption for a sink that does not publish if two attempts of a task may run at once."""
    speculates = settings.get("spark.speculation", "false").lower() == "true"
    if speculates and sink is not None and publishing(sink) is None:
        raise InvalidOption(
            "with spark.speculation, Spark runs a task twice at the same time, and results of a sink with "
            f"only open and remove ({type(sink).__name__}) may be those of the attempt that is not settled: "
            "give it open_stage and publish, or set spark.speculation to false"
        )


def _refuse_sessions(options: SparkOptions) -> None:
    """Raise InvalidOption for a queue whose order a function of whole batches does not keep."""
    with broker_at(options.url()) as broker:
        if broker.queue(options.queue).options.requires_session:
            raise InvalidOption(
                f"queue {options.queue!r} has sessions: a vectorised function does not keep their order"
            )


def _own_columns(sink: Sink | None, several: bool) -> list[str]:
    """Return the columns that results have besides those of their schema."""
    claim = ["claim"] if publishing(sink) is not None else []
    return ["sequence_number", *claim, *(["queue"] if several else [])]
