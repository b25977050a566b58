"""Tries a handler on many dead letters in Spark's tasks: each has a sandbox; nothing is settled or sent."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lazaretto.broker.broker import Broker
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.host import dry_run as here
from lazaretto.host.dry_run import DryRun, Tried, try_letters
from lazaretto.host.handlers import Handler
from lazaretto.model.edits.edit import Edit
from lazaretto.spark.executors import cores_of
from lazaretto.spark.letters import run_on
from lazaretto.spark.pipeline import refuse_remote
from lazaretto.spark.source_options import SparkOptions, parse
from lazaretto.spark.store_access import broker_at
from lazaretto.store.addresses import absolute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Tasks for each core, so that letters which take long even out.
_TASKS = 4


def dry_run(
    spark: SparkSession,
    store: str,
    queue: str,
    which: DeadLetterFilter | int | Iterable[int],
    handler: Handler,
    *,
    edit: Edit | str | None = None,
    sample: int | None = None,
) -> DryRun:
    """Run a handler on dead letters in the sandboxes of Spark's tasks; change nothing.

    The answer is that of `lazaretto.host.dry_run.dry_run`. `store` is a URL; `env:NAME` reads it from an
    environment variable. The tasks open the store themselves; only counts go through Spark. `sample`: how
    many at most, as many of each cause as possible; None, the default: all. Raises EntityNotFound,
    HandlerError, SandboxSetupError, InvalidOption.
    """
    options = _options(spark, store, queue)
    with broker_at(options.url()) as broker:
        work = functools.partial(_try_in_tasks, spark, options)
        return here.dry_run(broker, options.queue, which, handler, edit=edit, sample=sample, work=work)


def try_repair(
    spark: SparkSession, store: str, name: str, handler: Handler, *, sample: int | None = None
) -> DryRun:
    """Run a handler on what a repair has left to send in the sandboxes of Spark's tasks; change nothing.

    The answer is that of `lazaretto.host.dry_run.try_repair`. `sample`: how many at most; None, the default:
    all. Raises RepairNotFound, HandlerError, SandboxSetupError, InvalidOption.
    """
    options = _options(spark, store, "-")
    with broker_at(options.url()) as broker:
        work = functools.partial(_try_in_tasks, spark, options)
        return here.try_repair(broker, name, handler, sample=sample, work=work)


def _options(spark: SparkSession, store: str, queue: str) -> SparkOptions:
    options = parse({"store": store if store.startswith("env:") else absolute(store), "queue": queue})
    refuse_remote(spark.conf.get("spark.master"), options.url())
    return options


@dataclasses.dataclass(frozen=True, slots=True)
class TryLetters:
    """Tries a handler on some of the letters of a queue."""

    options: SparkOptions
    path: str
    numbers: Sequence[int]
    handler: Handler
    edit: Edit | None

    def run(self, first: int, last: int) -> bytes:
        """Return what came of the letters at some places of `numbers`, encoded."""
        with broker_at(self.options.url()) as broker:
            tried = try_letters(broker, self.path, self.numbers[first:last], self.handler, self.edit)
        return pickle.dumps(tried)


def _try_in_tasks(
    spark: SparkSession,
    options: SparkOptions,
    broker: Broker,
    path: str,
    numbers: Sequence[int],
    handler: Handler,
    edit: Edit | None,
) -> Tried:
    """Return what came of all letters, which are divided among Spark's tasks."""
    # What cannot be tried at all is said here, rather than by Spark in its own words.
    whole = try_letters(broker, path, (), handler, edit)
    size = -(-len(numbers) // (_TASKS * cores_of(spark))) or 1
    ranges = [(start, min(start + size, len(numbers))) for start in range(0, len(numbers), size)]
    if ranges:
        task = TryLetters(options, path, numbers, handler, edit)
        for answer in run_on(spark, task, ranges):
            whole.merge(pickle.loads(answer))  # noqa: S301 - from our own tasks
    return whole
