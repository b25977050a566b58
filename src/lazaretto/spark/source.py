"""A queue as a stream: the offset is the number of a claim, and a claim never changes."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from lazaretto.errors import BrokerClosed, ClaimFenced, EntityNotFound, InvalidOption, LazarettoError
from lazaretto.spark.columns import CLAIM, MESSAGE, SHARDS, STREAM, read_shard, rows_at_once
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.store_access import broker_at, task_number
from lazaretto.spark.versions import LIMITS, spark_version
from lazaretto.store.records.claims import OPEN, ShardRecord

if TYPE_CHECKING:
    from lazaretto import Broker
    from lazaretto.broker.claims import ClaimConsumer
    from lazaretto.spark.bodies import Extras


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxRows", "SupportsTriggerAvailableNow"]

if TYPE_CHECKING or spark_version() >= LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """The limit of a micro-batch."""

    class ReadAllAvailable(ReadLimit):
        """All that there is."""

    @dataclasses.dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):
        """So many rows at most."""

        max_rows: int

    @dataclasses.dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):
        """So many bytes at most."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """Says that a source is told when such a query starts."""


_log = logging.getLogger(__name__)

#: What an offset says: the number of a claim, and whose.
_CLAIM, _WHOSE = "claim", "consumer"
Offset = dict[str, int]
#: Above the number of every claim.
_SAID = 1 << 62
#: Claims that have ended, of which one micro-batch hears at most: a checkpoint may be an old copy.
_MOST_ENDED = 10_000


class ShardPartition(InputPartition):
    """One task's part, so many rows at once. `shard`: None: the claims have ended, nothing is to read."""

    def __init__(
        self, claims: Sequence[int], epoch: int, shard: ShardRecord | None = None, rows: int = 1
    ) -> None:
        self.claims = claims
        self.epoch = epoch
        self.shard = shard
        self.rows = rows


class ClaimStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes claims for micro-batches. Made several times, in several processes: opens nothing by itself."""

    def __init__(self, options: SparkOptions, columns: list[str], extras: Extras | None = None) -> None:
        self._options = options
        self._columns = columns
        self._extras = extras
        self._consumer: ClaimConsumer | None = None
        self._settled = self._taken = 0
        self._last: list[int] | None = None
        self._seen = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process begins anew.
        return type(self), (self._options, self._columns, self._extras)

    # -- in the driver --------------------------------------------------------------------------

    def _attached(self) -> ClaimConsumer:
        """Return the consumer, as its one driver: the first thing that a query does is to attach."""
        if self._consumer is None:
            import lazaretto

            options = self._options
            # For as long as the process lives: it is ended with the query, by a signal.
            broker = lazaretto.connect(options.url(), create=False)
            consumer = _consumer(broker, options, lease=options.lease)
            self._settled = consumer.attach()
            self._consumer = consumer
            threading.Thread(
                target=self._renew, args=(consumer,), name="lazaretto-lease", daemon=True
            ).start()
        return self._consumer

    def _renew(self, consumer: ClaimConsumer) -> None:
        """Give a sign of life while a micro-batch runs."""
        pause = threading.Event()
        while not pause.wait(self._options.lease / 4):
            try:
                consumer.renew()
            except (BrokerClosed, ClaimFenced, EntityNotFound):
                # The next call of the query says so.
                return
            except LazarettoError as error:
                # Another time it may be well: the store was busy, or full.
                _log.warning("the lease of consumer %r is not renewed: %s", consumer.name, error)

    def _offset(self, claim: int) -> Offset:
        return {_CLAIM: claim, _WHOSE: self._attached().identity}

    def _claim(self, offset: Offset) -> int:
        """Return the claim that an offset names. Raises InvalidOption: it is another consumer's."""
        if offset.get(_WHOSE) != self._attached().identity:
            options = self._options
            raise InvalidOption(
                f"the checkpoint is not of consumer {options.consumer!r} of {options.queue!r} in this store: "
                "it was made with another queue, consumer or store, or the queue was created again; "
                "use another checkpoint folder"
            )
        return offset[_CLAIM]

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names
        self._attached()
        return self._offset(self._settled)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = self._attached().last_sequences()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        options = self._options
        max_rows, max_bytes = options.max_rows, options.max_bytes
        if isinstance(limit, ReadMaxRows):
            max_rows = limit.max_rows
            # Spark asks for the default limit once, and a query falls behind later.
            if max_rows < options.catch_up_rows and self._is_behind():
                max_rows = options.catch_up_rows
        elif isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        elif isinstance(limit, ReadAllAvailable):
            max_rows, max_bytes = 10_000_000, 1 << 50
        offset = self._claim(start)
        if offset < self._settled:
            # The checkpoint is older than the store.
            self._taken = min(self._settled, offset + _MOST_ENDED)
            return self._offset(self._taken)
        self._look_back(offset)
        taken = self._attached().take(
            offset, max_rows=max_rows, max_bytes=max_bytes, shards=options.shards, last=self._last
        )
        self._taken = offset if taken is None else taken
        return self._offset(self._taken)

    def _is_behind(self) -> bool:
        return self._attached().lag().seconds > self._options.catch_up_after

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return the last claim with how far the query is behind, for its progress."""
        consumer = self._attached()
        lag = consumer.lag()
        return {
            **self._offset(self._taken),
            "offsetsBehindLatest": lag.messages,
            "msBehindLatest": int(lag.seconds * 1000),
        }

    def _look_back(self, claim: int) -> None:
        """Say what becomes of messages if nobody has settled a claim that the query is done with."""
        if claim <= self._seen or self._options.shards_only:
            return
        self._seen = claim
        consumer = self._attached()
        if any(summary.state == OPEN for summary in consumer.summaries(claim - 1, claim)):
            # Said once.
            self._seen = _SAID
            _log.warning(
                "nobody has settled claim %d of consumer %r of %r: this query only reads. Its messages stay "
                "locked while it runs; then they are released without counting an attempt. To settle them "
                "use lazaretto.spark.process, or lazaretto.spark.settle(batch, ...) in foreachBatch",
                claim,
                consumer.name,
                str(consumer.path),
            )

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        consumer = self._attached()
        first, last = self._claim(start), self._claim(end)
        self._taken = max(self._taken, last)
        shards = consumer.shards(first, last)
        parts: list[InputPartition] = [
            ShardPartition([claim.number], consumer.epoch, shard, rows_at_once(claim))
            for claim, shard in shards
        ]
        numbers = {claim.number for claim, _ in shards}
        ended = [number for number in range(first + 1, last + 1) if number not in numbers]
        if ended:
            parts.append(ShardPartition(ended, consumer.epoch))
        return parts

    def commit(self, end: Offset) -> None:
        # Called late, or never: this only forgets. The one before is kept, for whoever asks again.
        self._attached().trim(self._claim(end) - 1)

    # -- in tasks -------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ShardPartition)
        if self._options.shards_only:
            token = None if partition.shard is None else partition.shard.token
            for claim in partition.claims:
                yield _row({"claim": claim, "epoch": partition.epoch, "shard": token}, SHARDS)
            return
        columns, extras = self._columns, self._extras
        made = [] if extras is None else extras.columns.names
        schema = pa.schema([
            extras.columns.field(name) if extras is not None and name in made else STREAM.field(name)
            for name in columns
        ])  # fmt: skip
        careful = self._start(partition)
        any_rows = False
        if careful is not None and partition.shard is not None:
            shard_fields = {
                "claim": partition.claims[0],
                "shard": partition.shard.token,
                "epoch": partition.epoch,
                "careful": careful,
            }
            names = [name for name in columns if name in MESSAGE] or ["sequence_number"]
            if extras is not None:
                names += [name for name in extras.needs if name not in names]
            batches = read_shard(self._options.url(), partition.shard, names, partition.rows)
            for batch in batches if extras is None else extras.added(batches):
                any_rows = True
                arrays = [
                    batch.column(name)
                    if name in MESSAGE or name in made
                    else pa.repeat(pa.scalar(shard_fields[name], CLAIM[name]), batch.num_rows)
                    for name in columns
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        if not any_rows:
            # One row without a message: whoever settles has to hear of the claim.
            for claim in partition.claims:
                yield _row({"claim": claim, "epoch": partition.epoch}, schema)

    def _start(self, partition: ShardPartition) -> bool | None:
        """Say that the shard is read; return whether to be careful with it, None if its claim has ended."""
        if partition.shard is None:
            return None
        options = self._options
        with broker_at(options.url()) as broker:
            consumer = _consumer(broker, options, epoch=partition.epoch, task=task_number())
            # Whether anybody works on what is read, is not known here.
            return consumer.start(partition.shard.token, "a task", begun=False)


class UnlimitedClaimStreamReader(ClaimStreamReader):
    """The same where Spark sets no limits, before 4.2: a micro-batch has claims of all that waits."""

    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802
        self._attached()
        offset = self._offset(max(self._settled, self._taken))
        while True:
            later = super().latestOffset(offset, ReadMaxRows(self._options.max_rows))
            if later == offset:
                return offset
            offset = later


def _consumer(broker: Broker, options: SparkOptions, **more: Any) -> ClaimConsumer:
    # Imported where it is used: the process that plans a read does not.
    from lazaretto.broker.broker import store_of
    from lazaretto.broker.claims import ClaimConsumer

    return ClaimConsumer(store_of(broker), options.queue, options.consumer, **more)


def _row(values: dict[str, int | None], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of one row; columns without a value are null."""
    arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
