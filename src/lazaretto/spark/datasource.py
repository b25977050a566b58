"""`format("lazaretto")`: a queue as a stream, and a store's contents as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import suggestion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from lazaretto.spark.source_options import SparkOptions

FORMAT = "lazaretto"


class LazarettoSource(DataSource):
    """A queue: read as a stream of claims, or as a table. Options: see SparkOptions.

    Each of its methods is called in a process of its own, which imports no more than that method needs.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        from lazaretto.spark.columns import SHARDS, STREAM, schema_of
        from lazaretto.spark.source_options import parse
        from lazaretto.spark.views import VIEWS

        # Asked for before it is said whether a stream or a table is read: a table has a view.
        options = parse(self.options)
        if options.view:
            columns = VIEWS[options.view].columns
            return from_arrow_schema(schema_of(columns, columns))
        return from_arrow_schema(SHARDS if options.shards_only else STREAM)

    def reader(self, schema: StructType) -> DataSourceReader:
        from lazaretto.spark.snapshot import SnapshotReader
        from lazaretto.spark.source_options import parse
        from lazaretto.spark.views import VIEWS

        options = parse(self.options)
        if not options.view:
            raise InvalidOption(f"a batch read needs the option view, one of {', '.join(VIEWS)}")
        _refuse_others(schema, VIEWS[options.view].columns, f"the view {options.view!r}")
        return SnapshotReader(options, list(schema.names))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from lazaretto.spark.columns import STREAM
        from lazaretto.spark.source import ClaimStreamReader
        from lazaretto.spark.source_options import parse

        options = parse(self.options)
        if options.view:
            raise InvalidOption(f"a stream has no views: omit view={options.view!r}, or use spark.read")
        _refuse_others(schema, STREAM.names, "a stream of messages")
        return ClaimStreamReader(options, list(schema.names))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from lazaretto.spark.writer import TableWriter

        return TableWriter(self._to_write(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from lazaretto.spark.writer import StreamWriter

        return StreamWriter(self._to_write(schema, overwrite))

    def _to_write(self, schema: StructType, overwrite: bool) -> SparkOptions:
        from lazaretto.spark.source_options import parse
        from lazaretto.spark.writer import COLUMNS

        if overwrite:
            raise InvalidOption("a queue cannot be overwritten: use mode('append')")
        _refuse_others(schema, COLUMNS, "a message to send")
        if "body" not in schema.names:
            raise InvalidOption("the DataFrame needs a column 'body'")
        return parse(self.options)


def _refuse_others(schema: StructType, known: Iterable[str], what: str) -> None:
    names = list(known)
    for name in schema.names:
        if name not in names:
            raise InvalidOption(f"{what} has no column {name!r}{suggestion(name, names)}")


def register(spark: SparkSession) -> None:
    """Make the format known to a session. Spark finds it by itself, unless it is told not to look."""
    spark.dataSource.register(LazarettoSource)
