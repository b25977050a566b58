"""The driver of a query: has its tasks run, and tells the store which of them have died of nothing."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.errors import LazarettoError
from lazaretto.spark.connected import is_remote
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.store_access import broker_at
from lazaretto.spark.task_errors import died_task, task_error

_INTERRUPTED = "java.lang.InterruptedException"


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
    """Raise StoppedMeanwhile at SIGTERM: so a server of Spark Connect ends the process that this runs in."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread hears of signals.
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedMeanwhile

    former = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


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
        self._know_epochs()
        try:
            with _stopped_by_signal() if is_remote(reports) else contextlib.nullcontext():
                return collected(reports)
        except StoppedMeanwhile:
            self._note_cancellation(None)
            raise
        except (Py4JJavaError, PySparkException) as error:
            died = died_task(error)
            if died is not None or task_error(error) is not None:
                self._note_cancellation(died)
            raise

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
