"""A batch read: a view of a store in several parts. It locks nothing and counts no attempts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lazaretto.broker.broker import store_of
from lazaretto.engine.entities.queues import require_queue
from lazaretto.model.entities import EntityPath
from lazaretto.spark.bodies import Extras
from lazaretto.spark.columns import schema_of, selected
from lazaretto.spark.reading import SQL, select
from lazaretto.spark.source_options import SparkOptions
from lazaretto.spark.store_access import broker_at
from lazaretto.spark.views import VIEWS, Condition, bounds, condition

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


class RangePartition(InputPartition):
    """The rows between two keys."""

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last


class SnapshotReader(DataSourceReader):
    """Reads a view. A part is one snapshot; several parts need not be of the same moment."""

    def __init__(self, options: SparkOptions, columns: list[str], extras: Extras | None = None) -> None:
        self._options = options
        self._columns = columns
        self._extras = extras
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        view, url = VIEWS[self._options.view], self._options.url()
        for filter_ in filters:
            made = condition(view, filter_, url)
            if made is None:
                yield filter_
            else:
                self._conditions.append(made)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        path = EntityPath.parse(options.queue)
        with broker_at(options.url()) as broker:
            queue = store_of(broker).read(lambda tx: require_queue(tx, path))
            first, last = bounds(options.view, queue.queue_id, path)
            lowest, highest = ends(options.url(), VIEWS[options.view].ends, first, last)
        if lowest is None or highest is None:
            return [RangePartition(first, first)]
        size = -(-(highest - lowest + 1) // options.shards)
        starts = range(lowest - 1, highest, size)
        return [RangePartition(start, min(start + size, highest)) for start in starts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        view, options = VIEWS[self._options.view], self._options
        conditions = list(self._conditions)
        if options.view == "events":
            conditions.append(
                Condition("lower(m.queue) = ?", (EntityPath.parse(options.queue).queue.lower(),))
            )
        url = options.url()
        extras = self._extras
        names = [name for name in self._columns if name in view.columns]
        if extras is not None:
            names += [name for name in extras.needs if name not in names]
        columns = selected(url, view.columns, names)
        where = "".join(f" AND {one.sql}" for one in conditions)
        sql = SQL[view.query].replace("[columns]", columns).replace("[conditions]", where)
        parameters = (partition.first, partition.last, *(p for one in conditions for p in one.parameters))
        batches = select(url, sql, parameters, schema_of(view.columns, names))
        if extras is None:
            yield from batches
            return
        for batch in extras.added(batches):
            yield batch.select(self._columns)


def ends(url: str, query: str, first: int, last: int) -> tuple[int | None, int | None]:
    """Return the lowest and the highest key that a query of both finds there."""
    schema = pa.schema([("lowest", pa.int64()), ("highest", pa.int64())])
    rows = [row for batch in select(url, SQL[query], (first, last) * 2, schema) for row in batch.to_pylist()]
    return rows[0]["lowest"], rows[0]["highest"]
