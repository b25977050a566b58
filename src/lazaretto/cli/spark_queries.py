"""Waits for the queries of a pipeline. They end together: with Control-C, or when one of them fails."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lazaretto.cli import output
from lazaretto.cli.exits import usage
from lazaretto.model.checks import shown
from lazaretto.tools.signals import Ending

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Seconds after which it is looked whether to end, and which queries have ended.
_LOOK = 0.5


@contextlib.contextmanager
def stopping(spark: SparkSession) -> Iterator[None]:
    """Stop a session in the end. After an error, its queries too, as far as that works."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            _stop(spark, spark.streams.active)
            spark.stop()
        raise
    spark.stop()


def queries_of(spark: SparkSession, started: object, pipeline: str) -> list[StreamingQuery]:
    """Return the queries that a pipeline's function has returned, or all that run if it returned none."""
    from pyspark.sql.streaming.query import StreamingQuery

    returned: list[StreamingQuery] = []
    for one in started if isinstance(started, list | tuple) else [started]:
        if isinstance(one, StreamingQuery):
            returned.append(one)
        elif one is not None:
            raise usage(f"expected {pipeline} to return its queries, got {shown(one)}")
    # A `return` that was forgotten must not end a query that has begun.
    return returned or list(spark.streams.active)


class MessageCount:
    """Counts a query's messages: Spark keeps what it tells of the latest micro-batches only."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._batch = -1
        self._messages = 0

    def look(self) -> int:
        """Return how many there are so far. To be called before Spark forgets a micro-batch."""
        last = self._query.lastProgress
        if last is not None and last["batchId"] > self._batch:
            # All that Spark keeps takes a hundred questions.
            progress = [last] if last["batchId"] == self._batch + 1 else self._query.recentProgress
            self._messages += sum(_messages(one) for one in progress if one["batchId"] > self._batch)
            self._batch = progress[-1]["batchId"]
        return self._messages


def _messages(progress: Mapping[str, Any]) -> int:
    """Return how many messages a micro-batch had: the pipeline tells, for Spark may see none of them."""
    metrics = progress["observedMetrics"].get("lazaretto")
    return int(progress["numInputRows"] if metrics is None else metrics["rows"] or 0)


def wait_for(spark: SparkSession, queries: Sequence[StreamingQuery]) -> None:
    """Wait until all queries end, one fails, or this process is told to end; stop those that are left then.

    Prints a line for each that ends by itself. Raises what a query failed with, or KeyboardInterrupt.
    """
    ending = Ending()
    counts = {query: MessageCount(query) for query in queries}
    # As an exception, Control-C would meet a call of Java, which is not over yet.
    with ending.on_signals():
        try:
            while counts and not ending.asked:
                next(iter(counts)).awaitTermination(_LOOK)  # type: ignore[arg-type]  # parts of seconds, too
                for query, count in [*counts.items()]:
                    ended = not query.isActive
                    messages = count.look()
                    if ended:
                        del counts[query]
                        query.awaitTermination()
                        output.say(f"{query.name or query.id}: {messages:,} message{'s' * (messages != 1)}")
        except Exception:
            # A supervisor may tell Java to end as well, which fails then before it answers.
            if not ending.asked:
                _stop(spark, counts)
                raise
        if ending.asked:
            # Who presses Control-C again does not wait until Java has stopped them.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _stop(spark, counts)
            raise KeyboardInterrupt


def _stop(spark: SparkSession, queries: Iterable[StreamingQuery]) -> None:
    """Stop queries, as far as Java is there to do it."""
    with contextlib.suppress(Exception):
        # Tasks that are interrupted may fail in ways that Spark logs with Java's stack.
        spark.sparkContext.setLogLevel("OFF")
        for query in queries:
            query.stop()
