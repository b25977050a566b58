"""The settling sink: it has a micro-batch's tasks run, and settles what they staged in one commit."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.claims.end_claims import ClaimSummary
from lazaretto.engine.claims.settle_claims import StagedRow
from lazaretto.errors import LazarettoError, NotAllowed, SystemicFailure
from lazaretto.model.breaker import BreakerPolicy, BreakerWindow
from lazaretto.model.failure import Failure, failure_of, shorten
from lazaretto.model.keys import sequence_of
from lazaretto.observe.traces import active
from lazaretto.observe.traces.context import parse
from lazaretto.spark.query_driver import QueryDriver
from lazaretto.spark.results import Sink, publishing
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.store_access import broker_at
from lazaretto.spark.task_errors import OUTAGE, Outage, TaskError, task_error, writing
from lazaretto.store.records.claims import OPEN, REVOKED, SETTLED
from lazaretto.store.runtime.forks import at_work

if TYPE_CHECKING:
    from lazaretto.model.entities import EntityPath
    from lazaretto.observe.traces.spans import Tracing

_log = logging.getLogger(__name__)
#: What is read of what the tasks tell.
_READ = ("queue", "claim", "epoch", "shard", "stage", "rows", "origins", "began", "ended")


class SettlingSink:
    """Settles the claims of micro-batches, in the driver: a sink of Spark's takes three more processes.

    Spark may hand over a micro-batch again: a claim that is settled stays as it is.
    """

    def __init__(
        self, sinks: Mapping[str, tuple[SparkOptions, Sink | None]], breaker: BreakerPolicy | None = None
    ) -> None:
        self._sinks = sinks
        #: Errors of messages that were charged here, since their tasks ended with them.
        self._windows = {} if breaker is None else {queue: BreakerWindow(breaker) for queue in sinks}
        self._charged = 0
        self._brought: set[str] = set()
        self.driver = QueryDriver({queue: options for queue, (options, _) in sinks.items()})
        #: What of each queue removes completed messages while the next micro-batch is at work.
        self._removing: dict[str, threading.Thread] = {}

    def __call__(self, reports: DataFrame, batch_id: int) -> None:
        """Have the tasks run, whose rows say what they staged; settle that, one queue after the other."""
        rows = self._rows(reports.select(*_READ))
        first: Exception | None = None
        for queue, (options, results) in self._sinks.items():
            shards = [row for row in rows if row["queue"] == queue]
            if shards:
                try:
                    self._settle(queue, options, results, shards)
                except Exception as error:
                    # What was done in the other queues counts, and must not look as if its reader had died.
                    first = first or error
        if first is not None:
            raise first

    def _rows(self, reports: DataFrame) -> list[Row]:
        """Return what the tasks tell.

        If one ended with the error of a value, its message leaves the micro-batch, and they run again.
        """
        while True:
            try:
                return self.driver.collect(reports)
            except (Py4JJavaError, PySparkException) as error:
                # Each time a claim leaves the micro-batch, so that this ends.
                if not self._charge(error):
                    raise

    def _charge(self, error: Exception) -> bool:
        """Charge an error to its message, or find it in smaller claims; return whether that can be done.

        Raises SystemicFailure: it is the error of most messages.
        """
        ended = task_error(error)
        if ended is None:
            return False
        self._note_failure(ended)
        queue = ended.queue if ended.queue is not None else next(iter(self._sinks))
        if not ended.is_of_value or (ended.queue is None and len(self._sinks) > 1):
            # Nobody is to blame, or nobody knows of which queue the message is.
            return False
        with self.driver.consumer(queue) as consumer:
            rows = consumer.charge(ended.failure, ended.claim)
        if rows == 1:
            self._look_for_outage(queue, ended.failure)
        return rows > 0

    def _look_for_outage(self, queue: str, failure: Failure) -> None:
        """Raise SystemicFailure if most messages that are tried alone end with the same error."""
        window = self._windows.get(queue)
        # The number only tells it from the others.
        self._charged += 1
        if window is not None and window.note([(self._charged, failure.type)], time.monotonic()) is not None:
            raise SystemicFailure(
                f"most messages of {queue!r} fail in the same way ({failure.type}: "
                f"{shorten(failure.message or '', 200)}), before or behind their handler; restart the query "
                "when the cause is fixed"
            )

    def _note_failure(self, ended: TaskError) -> None:
        """Keep what the tasks ended with: a message that kills them alone is told of it."""
        for queue in self._sinks:
            if ended.queue in (None, queue):
                with _left_to_timers(queue), self.driver.consumer(queue) as consumer:
                    consumer.note_failure(ended.failure)

    def _settle(self, queue: str, options: SparkOptions, results: Sink | None, shards: Sequence[Row]) -> None:
        """Settle the claims of one queue with what its tasks staged."""
        # All tasks of a batch work for one driver.
        epoch = shards[0]["epoch"]
        numbers = sorted({row["claim"] for row in shards})
        stages = [row["stage"] for row in shards if row["stage"] is not None]
        tokens = [row["shard"] for row in shards if row["shard"] is not None]
        if len(set(tokens)) < len(tokens):
            raise NotAllowed("the stream was repartitioned before process: each shard must stay in one task")
        if queue in self._removing:
            self._removing.pop(queue).join()
        with contextlib.ExitStack() as opened:
            broker = opened.enter_context(broker_at(options.url()))
            consumer = ClaimConsumer(store_of(broker), options.queue, options.consumer, epoch=epoch)
            tracing = active(store_of(broker))
            if tracing is not None:
                _trace(tracing, consumer.path, shards)
            outage = next((stage for stage in stages if stage.startswith(OUTAGE)), None)
            instead: list[StagedRow] = []
            if outage is None and results is not None:
                try:
                    instead = refused_messages(results, consumer, numbers, stages)
                except Outage as error:
                    outage = f"{OUTAGE}{error}"
            if outage is not None:
                consumer.revoke(why=outage)
                if results is not None:
                    for number in numbers:
                        _discard(results, number)
                raise SystemicFailure(
                    f"{outage.removeprefix(OUTAGE)}. The messages of {options.queue!r} were released; "
                    "restart the query when the cause is fixed"
                )
            summaries = consumer.settle(numbers, stages, keeps=True, instead=instead)
            if queue not in self._brought and results is not None:
                # The driver before this one may have settled claims until it was fenced off.
                summaries = consumer.summaries(0, numbers[-1])
            if results is not None:
                bring_up_to_date(results, summaries)
            self._brought.add(queue)
            self._remove_completed(queue, consumer, opened)

    def _remove_completed(self, queue: str, consumer: ClaimConsumer, opened: contextlib.ExitStack) -> None:
        """Remove what the claims keep: while the next micro-batch is at work, if more messages wait.

        `opened`: what the consumer needs, which is closed once they are removed.
        """
        with _left_to_timers(queue):
            if not consumer.keeps():
                return
            is_followed = consumer.is_followed()
            left = opened.pop_all()
            # Not a daemon: it goes on where the query and the program end.
            thread = threading.Thread(target=_remove, args=(consumer, left), name="lazaretto-removing")
            try:
                thread.start()
            except BaseException:
                left.close()
                raise
            self._removing[queue] = thread
            if not is_followed:
                thread.join()


def refused_messages(
    results: Sink, consumer: ClaimConsumer, numbers: Sequence[int], stages: Sequence[str]
) -> list[StagedRow]:
    """Return the outcomes of messages whose results would be refused, and take those results away.

    Before the claims are settled: afterwards there would be no message left to fail. Raises Outage.
    """
    refuse = getattr(results, "refused", None)
    if refuse is None:
        return []
    messages: list[StagedRow] = []
    summaries = consumer.summaries(min(numbers, default=1) - 1, max(numbers, default=0))
    for number in [one.number for one in summaries if one.state == OPEN and one.number in numbers]:
        with writing():
            errors = refuse(number, stages)
        if errors:
            failures = {place: failure_of(error) for place, error in errors.items()}
            rows = consumer.with_behind(number, {n: f for n, f in failures.items() if f is not None})
            with writing():
                results.forget(number, [sequence_of(row.key) for row in rows])  # type: ignore[union-attr]
            messages += rows
    return messages


def bring_up_to_date(results: Sink, summaries: Iterable[ClaimSummary]) -> None:
    """Publish the results of claims that are settled, and remove those of revoked ones.

    Raises SystemicFailure: results are gone that were not published yet.
    """
    published = publishing(results)
    look = getattr(results, "lost", None)
    for summary in summaries:
        if summary.state == REVOKED:
            results.remove(summary.number)
        elif summary.state == SETTLED and published is not None:
            missing = look(summary.number, summary.results) if look is not None and summary.results else []
            if missing:
                raise SystemicFailure(
                    f"results of claim {summary.number} were removed before they were published: "
                    f"{', '.join(missing)}. Its messages are settled, so nobody makes them again: restore "
                    "them from a backup and start the query again, or give it another place for results, "
                    "which then lacks them. Keep what cleans up away from what is not published"
                )
            published.publish(summary.number, summary.stages)


def _remove(consumer: ClaimConsumer, opened: contextlib.ExitStack) -> None:
    """Remove the messages that settled claims keep, and close what the consumer needs."""
    with at_work(), _left_to_timers(str(consumer.path)), opened:
        consumer.remove_completed()


@contextlib.contextmanager
def _left_to_timers(queue: str) -> Iterator[None]:
    """Go on where completed messages cannot be removed: the store's timers do it later."""
    try:
        yield
    except LazarettoError as error:
        _log.warning("completed messages of %r are not removed yet: %s", queue, error)


def _discard(results: Sink, claim: int) -> None:
    """Remove what a revoked claim has written. A place that fails keeps it until the query starts again."""
    try:
        results.remove(claim)
    except Exception as error:
        _log.warning("results of the revoked claim %d are not removed yet: %s", claim, error)


def _trace(tracing: Tracing, path: EntityPath, shards: Sequence[Row]) -> None:
    """Make a span of each shard, with links to where its messages come from."""
    for row in shards:
        if row["began"] is not None:
            failed = row["stage"].startswith(OUTAGE)
            tracing.shard(
                path,
                row["claim"],
                row["rows"],
                map(parse, row["origins"] or ()),
                (row["began"], row["ended"]),
                error="lazaretto.errors.SystemicFailure" if failed else None,
            )
