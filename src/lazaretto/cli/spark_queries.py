"""Waits for the queries of a pipeline. They end together: with Control-C, or when one of them fails."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lazaretto import errors
from lazaretto.cli import output
from lazaretto.cli.exits import usage
from lazaretto.errors import LazarettoError
from lazaretto.model.checks import shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Seconds after which it is looked whether Control-C was pressed, and which queries ended.
_LOOK = 0.5
#: An error of this package in a stack of Python.
_OURS = re.compile(r"^lazaretto\.errors\.(\w+): (.+)$", re.MULTILINE)


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
            told = [last] if last["batchId"] == self._batch + 1 else self._query.recentProgress
            self._messages += sum(_messages(one) for one in told if one["batchId"] > self._batch)
            self._batch = told[-1]["batchId"]
        return self._messages


def _messages(progress: Mapping[str, Any]) -> int:
    """Return how many messages a micro-batch had: the pipeline tells, for Spark may see none of them."""
    told = progress["observedMetrics"].get("lazaretto")
    return int(progress["numInputRows"] if told is None else told["rows"] or 0)


def wait_for(spark: SparkSession, queries: Sequence[StreamingQuery]) -> None:
    """Wait until all queries end, one fails, or Control-C is pressed; stop those that are left then.

    Prints a line for each that ends by itself. Raises what a query failed with.
    """
    from pyspark.errors import StreamingQueryException

    left = {query: MessageCount(query) for query in queries}
    with _control_c() as asked:
        try:
            while left:
                if asked.is_set():
                    raise KeyboardInterrupt
                next(iter(left)).awaitTermination(_LOOK)  # type: ignore[arg-type]  # parts of seconds, too
                for query, count in [*left.items()]:
                    ended = not query.isActive
                    messages = count.look()
                    if ended:
                        del left[query]
                        query.awaitTermination()
                        output.line(f"{query.name or query.id}: {messages:,} message{'s' * (messages != 1)}")
        except StreamingQueryException as error:
            _stop(spark, left)
            ours = _cause(str(error))
            if ours is None:
                raise
            raise ours from None
        except KeyboardInterrupt:
            _stop(spark, left)
            raise


def _stop(spark: SparkSession, queries: Iterable[StreamingQuery]) -> None:
    # Tasks that are interrupted may fail in ways that Spark logs with Java's stack.
    spark.sparkContext.setLogLevel("OFF")
    for query in queries:
        query.stop()


@contextlib.contextmanager
def _control_c() -> Iterator[threading.Event]:
    """Note the first Control-C: as an exception it would meet a call of Java, which is not over yet."""
    asked = threading.Event()

    def note(_signal: int, _frame: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _cause(told: str) -> LazarettoError | None:
    """Return the error of ours that Spark tells of among stacks, None if it tells of none."""
    for name, text in reversed(_OURS.findall(told)):
        kind = getattr(errors, name, None)
        if kind is not None:
            found: LazarettoError = kind.__new__(kind, text)
            return found
    return None
