"""A task of the pipeline: runs the handler on a shard's messages, and stages the outcomes."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from lazaretto.engine.claims.settle_claims import StagedRow, StagedRows, staged_rows
from lazaretto.engine.messages.settle import Settlement
from lazaretto.errors import InvalidMessage
from lazaretto.host.outcomes import COMPLETED, Ended, ended_of, ended_with
from lazaretto.isolation import DONE, Columns, Status, Verdict
from lazaretto.model.breaker import BreakerWindow
from lazaretto.model.failure import Failure, failure_of, shorten
from lazaretto.model.headers import decode_headers
from lazaretto.model.keys import LAST_SEQUENCE
from lazaretto.model.policy import Outcome
from lazaretto.observe.traces import MOST_LINKS
from lazaretto.observe.traces.context import TRACEPARENT, context_of, properties_of
from lazaretto.spark.bodies import PROBLEM, bounded
from lazaretto.spark.columns import CLAIM
from lazaretto.spark.message_items import message_items
from lazaretto.spark.parents import Parents
from lazaretto.spark.results import Results
from lazaretto.spark.sandbox_handler import (
    LATER,
    MOST_HELD,
    HandlerSetup,
    plain_result,
)
from lazaretto.spark.task_ends import SIMPLY, ends_of, has_failed, size_of_result, staged_row
from lazaretto.spark.task_errors import OUTAGE, Outage
from lazaretto.spark.task_settings import TaskSettings
from lazaretto.spark.vectors import MOST_ROWS, VectorSetup, decode, run_vectors
from lazaretto.store.records.claims import MOST_SHARDS

_COMPLETED = Outcome.COMPLETED.value
#: Messages that the sandbox is given at once.
_CHUNK = 2_000
#: Bytes of bodies that are taken out of a batch at once.
_MOST_BYTES = 16 * 1024 * 1024
#: What a task tells the settling sink of each shard: where its outcomes stand, and how many there were.
TOLD = pa.schema(
    [
        ("queue", pa.string()),
        ("claim", pa.int64()),
        ("epoch", pa.int64()),
        ("shard", pa.int64()),
        ("stage", pa.string()),
        ("rows", pa.int64()),
        ("completed", pa.int64()),
        ("read_seconds", pa.float64()),
        ("handler_seconds", pa.float64()),
        ("results_seconds", pa.float64()),
        # Of a query that is traced: where some messages come from, and when it was at work.
        ("origins", pa.list_(pa.string())),
        ("began", pa.int64()),
        ("ended", pa.int64()),
    ]
)


Mark = Callable[[int | None], None]


class ShardTask:
    """Runs one shard's messages, as they come in batches, until it is closed.

    `base`: the key that their numbers are added to. `mark`: told of each message before it is begun, which
    makes it one at a time; None: not careful.
    """

    def __init__(
        self, settings: TaskSettings, claim: int, shard: int, epoch: int, base: int, mark: Mark | None
    ) -> None:
        self._settings = settings
        self._mark = mark
        self.claim = claim
        self.epoch = epoch
        self._shard = shard
        self.stage = uuid.uuid4().hex
        self._base = base
        self._inline = self._sandbox = self._caller = None
        if settings.inline and mark is None and isinstance(settings.setup, HandlerSetup):
            self._caller = settings.setup.caller()
            self._inline, self._join = settings.setup.call(self._caller), settings.setup.joiner()
        else:
            self._sandbox = settings.sandbox()
        self._completed: list[int] = []
        self._others: list[StagedRow] = []
        self._failed_sessions: set[str] = set()
        self._spark = Parents()
        self._window = None if settings.breaker is None else BreakerWindow(settings.breaker)
        place = claim, shard % MOST_SHARDS, self.stage
        self._results = Results.of(settings.results, settings.schema, *place)
        self._seconds = {"read": 0.0, "handler": 0.0, "results": 0.0}
        self.rows = 0
        self._began = time.time_ns() if settings.traced else None
        self._origins: list[str] = []

    def close(self) -> None:
        """End what runs the handler in this process."""
        if self._caller is not None:
            self._caller.close()

    def run(self, batch: pa.RecordBatch) -> None:
        """Run a batch of messages."""
        if self._settings.traced:
            self._note_origins(batch)
        for part in bounded(batch, _MOST_BYTES):
            self.run_part(part)
        if self.rows > 1:
            # While Spark makes the next batch, it may fail at it: then none of these is to blame.
            self.unmark()

    def unmark(self) -> None:
        """Note that no message is in progress."""
        if self._mark is not None:
            self._mark(None)

    def run_part(self, part: pa.RecordBatch) -> None:
        """Run messages that take a bounded part of the memory."""
        if isinstance(self._settings.setup, VectorSetup):
            self._run_vectors(part)
        else:
            self._run_messages(part)

    def _note_origins(self, batch: pa.RecordBatch) -> None:
        """Note the trace contexts of messages, up to as many as a span may link to."""
        for headers in batch.column("headers").slice(0, MOST_LINKS - len(self._origins)).to_pylist():
            context = None if headers is None else context_of(decode_headers(headers).properties)
            if context is not None:
                self._origins.append(properties_of(context)[TRACEPARENT])

    def _run_messages(self, batch: pa.RecordBatch) -> None:
        keys, items, sessions = self.items_of(batch)
        self.rows += len(keys)
        step = 1 if self._mark else _CHUNK
        for start in range(0, len(keys), step):
            end = start + step
            self._run_chunk(keys[start:end], items[start:end], sessions[start:end])

    def items_of(self, batch: pa.RecordBatch) -> tuple[Sequence[int], Columns, Sequence[str | None]]:
        """Return keys, items for the sandbox and sessions of a batch."""
        return message_items(batch, self._base)

    def frame_of(self, batch: pa.RecordBatch) -> tuple[Sequence[int], pa.RecordBatch, Sequence[str | None]]:
        """Return keys, what a function of batches is given, and what is wrong with each row of it."""
        names = batch.schema.names
        keys = [self._base + number for number in batch.column("sequence_number").to_pylist()]
        problems = batch.column(PROBLEM).to_pylist() if PROBLEM in names else ()
        return (
            keys,
            batch.drop_columns([name for name in names if name in CLAIM or name == PROBLEM]),
            problems,
        )

    def note_completed(self, keys: Iterable[int]) -> None:
        """Keep the keys of messages that were simply completed."""
        self._completed += keys

    def number_of(self, key: int) -> int | None:
        """Return the number under which the result of a message stands."""
        return key & LAST_SEQUENCE

    def result_of(self, key: int, result: Any) -> Any:
        """Return a result as it is written."""
        return result

    def results_of(self, keys: Sequence[int], results: pa.RecordBatch) -> pa.RecordBatch:
        """Return results of a function of batches as they are written."""
        return results

    def _run_vectors(self, batch: pa.RecordBatch) -> None:
        """Run a batch as a whole, and what fails in parts."""
        begun = time.monotonic()
        assert self._sandbox is not None
        keys, frame, problems = self.frame_of(batch)
        self.rows += len(keys)
        if any(problems):
            keys, frame = self._without_invalid(keys, frame, problems)

        def mark(first: int) -> None:
            if self._mark is not None:
                self._spark.wait_if_dying()
                self._mark(keys[first])

        most = 1 if self._mark else MOST_ROWS
        for first, count, verdict in run_vectors(self._sandbox, frame, most, mark):
            part = keys[first : first + count]
            ended = ended_of(msgspec.structs.replace(verdict, result=None))
            ends = [ended] * count
            if verdict.result is not None and self._results is not None:
                numbers = [self.number_of(key) for key in part]
                for index, failure in self._add_batch(part, numbers, verdict.result).items():
                    ends[index] = Ended(Settlement(Outcome.FAILED, failure))
            for key, one in zip(part, ends, strict=True):
                if one.settlement.outcome is Outcome.COMPLETED:
                    self.note_completed([key])
                else:
                    self._others.append(staged_row(key, one))
            self._look_for_outage(part, [(one, None) for one in ends])
        if self._mark is not None:
            self._spark.wait_if_dying()
        self._seconds["handler"] += time.monotonic() - begun

    def _add_batch(
        self, keys: Sequence[int], numbers: Sequence[int | None], encoded: bytes
    ) -> dict[int, Failure]:
        """Keep a function's results; return the failures of the messages whose results do not fit."""
        assert self._results is not None
        try:
            results = decode(encoded)
        except Exception as error:
            # The function damaged its process.
            failure = failure_of(error)
            assert failure is not None
            return dict.fromkeys(range(len(numbers)), failure)
        return self._results.add_batch(numbers, self.results_of(keys, results))

    def _without_invalid(
        self, keys: Sequence[int], frame: pa.RecordBatch, problems: Sequence[str | None]
    ) -> tuple[Sequence[int], pa.RecordBatch]:
        """Note the messages whose bodies do not fit; return the others."""
        for key, problem in zip(keys, problems, strict=True):
            if problem is not None:
                settlement = Settlement(Outcome.INVALID, failure_of(InvalidMessage(problem)))
                self._others.append(staged_row(key, Ended(settlement)))
        good = [place for place, problem in enumerate(problems) if problem is None]
        return [keys[place] for place in good], frame.take(pa.array(good, pa.int64()))

    def _run_chunk(self, keys: Sequence[int], items: Columns, sessions: Sequence[str | None]) -> None:
        """Run some messages in order; behind one that failed, the rest of its session is left out."""
        begun = time.monotonic()
        in_order = sessions.count(None) < len(sessions)
        while keys:
            if self._failed_sessions:
                failed = [session in self._failed_sessions for session in sessions]
                released = itertools.compress(keys, failed)
                self._others += [StagedRow(key, Outcome.RELEASED.value) for key in released]
                left = [index for index, one in enumerate(failed) if not one]
                keys, items = [keys[index] for index in left], items.take(left)
                sessions = [sessions[index] for index in left]
                if not keys:
                    break
            if self._mark is not None:
                self._mark(keys[0])
            ends = self._run_some(items, in_order)
            if self._mark is not None:
                # Whoever it has taken down must not be told that it is over.
                self._spark.wait_if_dying()
            over = len(ends)
            self._keep(keys[:over], ends, sessions[:over])
            keys, items, sessions = keys[over:], items[over:], sessions[over:]
        self._seconds["handler"] += time.monotonic() - begun

    def _run_some(self, items: Columns, in_order: bool) -> list[tuple[Ended, Any]]:
        """Return how messages ended and what the handler returned: of all, or up to the first failure.

        Or of as many as results can be held of.
        """
        if self._inline is not None:
            return self._run_inline(items, in_order)
        assert self._sandbox is not None
        ends: list[tuple[Ended, Any]] = []
        size = 0

        def is_over(verdicts: list[Verdict]) -> bool:
            nonlocal size
            if verdicts.count(DONE) == len(verdicts):
                ends.extend([SIMPLY] * len(verdicts))
                return False
            others = [at for at, verdict in enumerate(verdicts) if verdict is not DONE]
            # A process that takes over knows nothing of what the one before it held or left for later.
            ran = verdicts[: next((at for at in others if _is_left(verdicts[at])), None)]
            ends.extend(ends_of(ran))
            size += sum(len(result) for at in others if (result := verdicts[at].result) is not None)
            return len(ran) < len(verdicts) or size >= MOST_HELD

        self._sandbox.run(items, stop_on_failure=in_order, is_over=is_over)
        return ends

    def _run_inline(self, items: Columns, in_order: bool) -> list[tuple[Ended, Any]]:
        assert self._inline is not None
        ends: list[tuple[Ended, Any]] = []
        size = 0
        for one in self._join(items.columns):
            try:
                effects, result = self._inline(one)
                result = plain_result(result)
                ends.append(SIMPLY if effects is None and result is None else (ended_with(effects), result))
                size += size_of_result(result)
            except BaseException as error:
                ends.append((Ended(Settlement(Outcome.FAILED, failure_of(error))), None))
            if size >= MOST_HELD or (in_order and has_failed(ends[-1])):
                break
        return ends

    def _keep(
        self, keys: Sequence[int], ends: Sequence[tuple[Ended, Any]], sessions: Sequence[str | None]
    ) -> None:
        wrong: Mapping[int, Failure] = {}
        others: list[int] = []
        if ends.count(SIMPLY) < len(ends):
            wrong = self._add_results(keys, ends, sessions)
            others = [at for at, (ended, _) in enumerate(ends) if ended is not COMPLETED or at in wrong]
        if not others and not self._failed_sessions:
            self.note_completed(keys)
            if self._window is not None and self._mark is None:
                self._window.note_completed(keys, time.monotonic())
            return
        in_order = self._failed_sessions or any(sessions[at] is not None for at in others)
        if not in_order:
            simply = [True] * len(ends)
            for at in others:
                simply[at] = False
            self.note_completed(itertools.compress(keys, simply))
        for index in range(len(ends)) if in_order else others:
            ended, _ = ends[index]
            key, settlement = keys[index], ended.settlement
            if sessions[index] in self._failed_sessions:
                # It ran behind one whose result does not fit, and must wait as behind any other failure.
                self._others.append(StagedRow(key, Outcome.RELEASED.value))
                continue
            if index in wrong:
                settlement = Settlement(Outcome.FAILED, wrong[index])
                ended = Ended(settlement)
            if settlement.outcome is Outcome.COMPLETED and ended.effects is None:
                self.note_completed([key])
                continue
            self._others.append(staged_row(key, ended))
            session = sessions[index]
            if session is not None and settlement.failure is not None:
                self._failed_sessions.add(session)
        self._look_for_outage(keys, ends)

    def _look_for_outage(self, keys: Sequence[int], ends: Sequence[tuple[Ended, Any]]) -> None:
        if self._window is None or self._mark is not None:
            return
        prints = [(keys[index], ended.fingerprint) for index, (ended, _) in enumerate(ends)]
        if self._window.note(prints, time.monotonic()) is not None:
            last = next(e.settlement.failure for e, _ in reversed(ends) if e.settlement.failure is not None)
            raise Outage(
                f"most messages of {self._settings.options.queue!r} fail in the same way "
                f"({last.type}: {shorten(last.message or '', 200)})"
            )

    def _add_results(
        self, keys: Sequence[int], ends: Sequence[tuple[Ended, Any]], sessions: Sequence[str | None]
    ) -> dict[int, Failure]:
        """Keep the results of messages that were completed; return those that do not fit the schema."""
        if self._results is None:
            return {}
        begun = time.monotonic()
        at = [
            index
            for index, (ended, result) in enumerate(ends)
            if result is not None and ended.settlement.outcome is Outcome.COMPLETED
        ]
        numbers = [self.number_of(keys[i]) for i in at]
        results = [self.result_of(keys[i], ends[i][1]) for i in at]
        wrong = self._results.add(numbers, results, [sessions[i] for i in at])
        self._seconds["results"] += time.monotonic() - begun
        return {at[index]: failure for index, failure in wrong.items()}

    def finish(self) -> StagedRows:
        """Write the results; return what is to be staged."""
        begun = time.monotonic()
        if self._results is not None:
            self._results.close()
        self._seconds["results"] += time.monotonic() - begun
        seconds = {name: round(value, 3) for name, value in self._seconds.items()}
        written = None
        if self._results is not None:
            self._take_refused(self._results.refused)
            written = self._results.rows
        return staged_rows(self._shard, self._completed, self._others, seconds, written)

    def _take_refused(self, refused: Mapping[int, Failure]) -> None:
        """Fail the messages whose results the place of results has refused when it was given them."""
        if refused:
            failed = {self._base + number: failure for number, failure in refused.items()}
            self._completed = [key for key in self._completed if key not in failed]
            self._others = [row for row in self._others if row.key not in failed]
            self._others += [StagedRow(key, Outcome.FAILED.value, one) for key, one in failed.items()]

    def work(self, batches: Iterator[pa.RecordBatch]) -> StagedRows | None:
        """Run all of it; return what is to be staged, None if it is an outage, which the sink is told of."""
        try:
            for batch in self._timed(batches):
                self.run(batch)
            return self.finish()
        except Outage as outage:
            # Not raised: Spark would only try the task again.
            self.end_as_outage(outage)
            return None

    def _timed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, and note how long it took to get them."""
        while True:
            begun = time.monotonic()
            batch = next(batches, None)
            self._seconds["read"] += time.monotonic() - begun
            if batch is None:
                return
            yield batch

    def end_as_outage(self, outage: Outage) -> None:
        """Have the sink told of an outage instead of outcomes."""
        self.stage = f"{OUTAGE}{outage}"

    def report(self) -> dict[str, Any]:
        """Return what the sink is told of the shard."""
        return {
            "claim": self.claim,
            "epoch": self.epoch,
            "shard": self._shard,
            "stage": self.stage,
            "rows": self.rows,
            "completed": self.rows - sum(row.outcome != _COMPLETED for row in self._others),
            **{f"{name}_seconds": value for name, value in self._seconds.items()},
            "origins": self._origins,
            "began": self._began,
            "ended": time.time_ns() if self._began is not None else None,
        }


def _is_left(verdict: Verdict) -> bool:
    """Return whether a message was not run, or was left for later."""
    return verdict.status is Status.NOT_RUN or verdict.result == LATER
