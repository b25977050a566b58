"""`process`: a handler on every message of a stream, each settled exactly once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from lazaretto.breaker import BreakerPolicy
from lazaretto.errors import InvalidOption
from lazaretto.host.handlers import Handler, HandlerFunction
from lazaretto.isolation import SandboxOptions
from lazaretto.options import shown
from lazaretto.spark.columns import CLAIM, MESSAGE
from lazaretto.spark.options import parse
from lazaretto.spark.sink import RESULTS, SETTLING, SettlingSource
from lazaretto.spark.task import HandlerSetup, TaskSettings, run_task

ISOLATIONS = ("process", "inline")


def process(
    stream: DataFrame,
    handler: HandlerFunction | Handler,
    *,
    store: str,
    queue: str,
    checkpoint: str,
    consumer: str = "spark",
    isolation: str = "process",
    results: str | None = None,
    schema: StructType | str | None = None,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    breaker: BreakerPolicy | None = BreakerPolicy(),  # noqa: B008 - frozen
    **options: Any,
) -> StreamingQuery:
    """Start a query that runs a handler on each message of a stream and settles it.

    `stream`: of `format("lazaretto")`, with the same store, queue and consumer. `handler`: a function
    of a message, or of a message and its context, as for the service host; what it returns, a dict or
    None, is a row of `results`. `checkpoint`: a folder of the query's own. `isolation`: "process", or
    "inline" for trusted code. `results`: a folder, or URI, of Parquet files by claim; `schema`: of its
    rows. `trigger`: of the query; default {"availableNow": True}. `breaker`: when failures are an
    outage, which ends the query. `options`: of HandlerOptions: deadline, memory, validator,
    middleware, refork_every.
    """
    if isolation not in ISOLATIONS:
        raise InvalidOption(
            f"expected isolation to be one of {', '.join(ISOLATIONS)}, got {shown(isolation)}"
        )
    if (results is None) != (schema is None):
        raise InvalidOption("expected results and schema together, got one of them")
    missing = [column for column in (*CLAIM, *MESSAGE) if column not in stream.columns]
    if missing:
        raise InvalidOption(f"the stream lacks the column {missing[0]!r}: load it whole")
    function = handler.function if isinstance(handler, Handler) else handler
    made = (
        Handler(queue, function, handler.options)
        if isinstance(handler, Handler) and not options
        else Handler(queue, function, **options)
    )
    limits = SandboxOptions(
        deadline=made.options.deadline, memory=made.options.memory, refork_every=made.options.refork_every
    )
    said = {"store": store, "queue": queue, "consumer": consumer}
    parse(said)
    settings = TaskSettings(
        store=store,
        queue=queue,
        consumer=consumer,
        setup=HandlerSetup(made),
        limits=limits,
        path=tuple(sys.path),
        isolation=isolation,
        results=results,
        schema=_schema(schema),
        breaker=breaker,
    )

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_task(settings, batches)

    stream.sparkSession.dataSource.register(SettlingSource)
    told = stream.mapInArrow(run, "claim bigint, epoch bigint, stage string, rows bigint")
    writer = told.writeStream.format(SETTLING).options(**said).option("checkpointLocation", checkpoint)
    if results is not None:
        writer = writer.option(RESULTS, results)
    if name is not None:
        writer = writer.queryName(name)
    return writer.trigger(**(dict(trigger) if trigger is not None else {"availableNow": True})).start()


def _schema(schema: StructType | str | None) -> bytes | None:
    if schema is None:
        return None
    fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(fields, StructType)
    found: bytes = to_arrow_schema(fields, timezone="UTC").serialize().to_pybytes()
    return found
