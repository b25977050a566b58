"""The driver of a query: has its tasks run, and tells the store which of them have died of nothing."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.errors import LazarettoError
from lazaretto.spark.executors import is_remote
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.store_access import broker_at
from lazaretto.spark.task_errors import died_task, task_error

_INTERRUPTED = "java.lang.InterruptedException"
#: How long a driver that was stopped may take to note it, and how often one looks, in seconds.
_LONGEST_END = 10.0
_LOOK = 0.05


class StoppedMeanwhile(Exception):
    """The query was stopped while its tasks were at work.

    Spark looks for this text to know it, with a pattern that takes more of Java's stack the longer the text
    is. That of py4j has Java's own stack in it, which is too long.
    """

    def __str__(self) -> str:
        return f"py4j.protocol.Py4JJavaError: An error occurred while calling collect: {_INTERRUPTED}"


def collected(reports: DataFrame) -> list[Row]:
    """Have tasks run; return what they tell. Raises StoppedMeanwhile."""
    try:
        return reports.collect()
    except Py4JJavaError as error:
        if error.java_exception.toString().startswith(_INTERRUPTED):
            raise StoppedMeanwhile from None
        raise


@contextlib.contextmanager
def _stopped_by_signal() -> Iterator[None]:
    """Raise StoppedMeanwhile at the signals by which a server of Spark Connect ends this process, but once.

    Spark's daemon sends the process that settles one signal after the other.
    """
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread hears of signals.
        yield
        return

    signals = (signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, frame: FrameType | None) -> None:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)
        raise StoppedMeanwhile

    former = {one: signal.signal(one, stop) for one in signals}
    try:
        yield
    finally:
        for one, handler in former.items():
            signal.signal(one, handler)


class BatchSink(Protocol):
    """What gets the micro-batches of a query, in the driver."""

    driver: QueryDriver

    def __call__(self, batch: DataFrame, batch_id: int, /) -> None: ...


class QueryDriver:
    """Has the tasks of a query run that read claims, of one queue or several."""

    def __init__(self, options: Mapping[str, SparkOptions]) -> None:
        self._options = options
        #: As which drivers the consumers of queues are attached.
        self._epochs: dict[str, int] = {}

    def collect(self, reports: DataFrame) -> list[Row]:
        """Have tasks run; return what they tell. Raises StoppedMeanwhile.

        Where one task fails, or the query is stopped, Spark ends the others in the middle of a message.
        """
        with _stopped_by_signal() if is_remote(reports) else contextlib.nullcontext():
            return self._collect(reports)

    def _collect(self, reports: DataFrame) -> list[Row]:
        self._know_epochs()
        try:
            return collected(reports)
        except StoppedMeanwhile:
            self._note_cancellation(None)
            raise
        except (Py4JJavaError, PySparkException) as error:
            died = died_task(error)
            if died is not None or task_error(error) is not None:
                self._note_cancellation(died)
            raise

    def await_former(self) -> None:
        """Wait until the driver before this one has noted how its tasks ended, unless it died.

        Over Spark Connect, a query is stopped a moment before the process that settles for it knows.
        """
        end = time.monotonic() + _LONGEST_END
        for options in self._options.values():
            with broker_at(options.url()) as broker:
                consumer = ClaimConsumer(store_of(broker), options.queue, options.consumer)
                while consumer.is_at_work() and time.monotonic() < end:
                    time.sleep(_LOOK)

    @contextlib.contextmanager
    def consumer(self, queue: str) -> Iterator[ClaimConsumer]:
        """Open the consumer of a queue, as this driver's."""
        options = self._options[queue]
        with broker_at(options.url()) as broker:
            epoch = self._epochs[queue]
            yield ClaimConsumer(store_of(broker), options.queue, options.consumer, epoch=epoch)

    def _know_epochs(self) -> None:
        """Find out once as which drivers the consumers are attached."""
        for queue, options in self._options.items():
            if queue not in self._epochs:
                with broker_at(options.url()) as broker:
                    consumer = ClaimConsumer(store_of(broker), options.queue, options.consumer)
                    self._epochs[queue] = consumer.attached_as()

    def _note_cancellation(self, died: int | None) -> None:
        for queue in self._options:
            # Another driver judges what it finds; a store that fails is told of by whoever needs it.
            with contextlib.suppress(LazarettoError), self.consumer(queue) as consumer:
                consumer.note_cancellation(died)
