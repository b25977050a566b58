"""Runs a task of the pipeline, on shards to read or on their messages."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.errors import LazarettoError
from lazaretto.spark.columns import MESSAGE, read_shard, rows_at_once
from lazaretto.spark.shard_task import TOLD, ShardTask
from lazaretto.spark.store_access import broker_at, task_number
from lazaretto.spark.task_errors import Outage, naming_shard
from lazaretto.spark.task_settings import TaskSettings
from lazaretto.store.sql.store import Store


def run_task(
    settings_of: Mapping[str, TaskSettings], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run what a task is given, of any of the queues, and tell the sink of each shard."""
    first = next(batches, None)
    if first is None:
        return
    batches = itertools.chain([first], batches)
    if "body" in first.schema.names:
        (settings,) = settings_of.values()
        with broker_at(settings.options.url()) as broker:
            ends = _run_messages(settings, store_of(broker), batches)
    else:
        ends = []
        for row in (row for batch in batches for row in batch.to_pylist()):
            queue = row["queue"]
            with naming_shard(queue, row["claim"]):
                ran = run_shard(settings_of[queue], row["claim"], row["epoch"], row["shard"])
            ends.append({"queue": queue, **ran})
    if ends:
        yield pa.RecordBatch.from_pylist(ends, schema=TOLD)


def _consumer(settings: TaskSettings, store: Store, epoch: int) -> ClaimConsumer:
    options = settings.options
    return ClaimConsumer(store, options.queue, options.consumer, epoch=epoch, task=task_number())


@contextlib.contextmanager
def _noting_error(settings: TaskSettings, epoch: int, shard: int) -> Iterator[None]:
    """Note an error with which the task ends: it has died of no message, and was not cancelled."""
    try:
        yield
    except Exception:
        # The store may be what fails.
        with contextlib.suppress(LazarettoError), broker_at(settings.options.url()) as broker:
            _consumer(settings, store_of(broker), epoch).note_error(shard)
        raise


def _task(
    settings: TaskSettings,
    consumer: ClaimConsumer,
    claim: int,
    shard: int,
    careful: bool,
    make: Callable[..., ShardTask] = ShardTask,
) -> ShardTask:
    mark = functools.partial(consumer.mark, shard) if careful else None
    return make(settings, claim, shard, consumer.epoch, consumer.base_key(), mark)


def run_shard(
    settings: TaskSettings,
    claim: int,
    epoch: int,
    token: int | None,
    make: Callable[..., ShardTask] = ShardTask,
) -> dict[str, Any]:
    """Read a shard and run its messages; return what the sink is told."""
    if token is None:
        return {"claim": claim, "epoch": epoch}
    url = settings.options.url()
    with broker_at(url) as broker:
        consumer = _consumer(settings, store_of(broker), epoch)
        careful = consumer.start(token, "a task")
        claim_and_shard = next(
            (pair for pair in consumer.shards(claim - 1, claim) if pair[1].token == token), None
        )
        if careful is None or claim_and_shard is None:
            # The claim has ended: there is nothing to do.
            return {"claim": claim, "epoch": epoch}
        record, shard = claim_and_shard
        task = _task(settings, consumer, claim, shard.token, careful, make)
        batches = read_shard(url, shard, list(MESSAGE), rows_at_once(record))
        if settings.extras is not None:
            batches = settings.extras.added(batches)
        if careful:
            with _noting_error(settings, epoch, shard.token):
                staged = task.work(batches)
            if staged is not None:
                consumer.stage(task.stage, staged)
            return task.report()
    # Arrow's driver must not meet another SQLite in this process: the broker is closed meanwhile.
    with _noting_error(settings, epoch, shard.token), contextlib.closing(batches), contextlib.closing(task):
        staged = task.work(batches)
    if staged is not None:
        with broker_at(url) as broker:
            _consumer(settings, store_of(broker), epoch).stage(task.stage, staged)
    return task.report()


def _run_messages(
    settings: TaskSettings, store: Store, batches: Iterator[pa.RecordBatch]
) -> list[dict[str, Any]]:
    """Run messages that come through Spark; return what the sink is told."""
    tasks: dict[int, ShardTask] = {}
    ended: list[dict[str, Any]] = []
    try:
        for batch in batches:
            # A partition holds one shard, unless the stream was repartitioned.
            for shard, claim, epoch, careful, part in _by_shard(batch):
                if shard is None:
                    ended += [{"claim": one, "epoch": epoch} for one in part.column("claim").to_pylist()]
                    continue
                if shard not in tasks:
                    consumer = _consumer(settings, store, epoch)
                    consumer.begin(shard)
                    tasks[shard] = _task(settings, consumer, claim, shard, careful)
                with _noting_error(settings, epoch, shard):
                    tasks[shard].run(part)
        for shard, task in tasks.items():
            with _noting_error(settings, task.epoch, shard):
                _consumer(settings, store, task.epoch).stage(task.stage, task.finish())
    except Outage as outage:
        # Not raised: Spark would only try the task again.
        for task in tasks.values():
            task.end_as_outage(outage)
    except Exception:
        # Of what comes before the handler, if it is none of ours.
        for task in tasks.values():
            task.unmark()
        raise
    finally:
        for task in tasks.values():
            task.close()
    ends = [*(task.report() for task in tasks.values()), *ended]
    return [{"queue": settings.options.queue, **one} for one in ends]


def _by_shard(
    batch: pa.RecordBatch,
) -> Iterator[tuple[int | None, int, int, bool, pa.RecordBatch]]:
    shards = batch.column("shard")
    for shard in shards.unique().to_pylist():
        if shard is None:
            part = batch.filter(shards.is_null())
        elif len(shards.unique()) == 1:
            part = batch
        else:
            part = batch.filter(pc.equal(shards, shard))
        claim, epoch = part.column("claim")[0].as_py(), part.column("epoch")[0].as_py()
        yield shard, claim, epoch, bool(part.column("careful")[0].as_py()), part
