"""`format("lazaretto")`: a queue as a stream, and a store's contents as tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
from lazaretto.spark.versions import LIMITS, spark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from lazaretto.spark.bodies import Extras
    from lazaretto.spark.source_options import SparkOptions

FORMAT = "lazaretto"


class LazarettoSource(DataSource):
    """A queue: read as a stream of claims, or as a table. Options: see SparkOptions.

    Each of its methods is called in a process of its own, which imports no more than that method needs.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType | str:
        from pyspark.sql.pandas.types import from_arrow_schema

        from lazaretto.spark.columns import SHARDS, STREAM, schema_of
        from lazaretto.spark.source_options import parse
        from lazaretto.spark.views import VIEWS

        # Asked for before it is said whether a stream or a table is read: a table has a view.
        options = parse(self.options)
        if options.view:
            columns = VIEWS[options.view].columns
            plain = schema_of(columns, columns)
        else:
            plain = SHARDS if options.shards_only else STREAM
        schema = from_arrow_schema(plain)
        if not options.body and not options.properties:
            return schema
        from lazaretto.spark.bodies import ddl_of_extras

        _refuse_bodies(options)
        said = [f"{field.name} {field.dataType.simpleString()}" for field in schema.fields]
        # As one type: of a list of columns that it cannot parse, Spark blames the first.
        return f"struct<{', '.join([*said, ddl_of_extras(options, plain.names)])}>"

    def reader(self, schema: StructType) -> DataSourceReader:
        from lazaretto.spark.snapshot import SnapshotReader
        from lazaretto.spark.source_options import parse
        from lazaretto.spark.views import VIEWS

        options = parse(self.options)
        if not options.view:
            raise InvalidOption(f"a batch read needs the option view, one of {', '.join(VIEWS)}")
        columns = VIEWS[options.view].columns
        extras = _extras(options, schema, columns, f"the view {options.view!r}")
        return SnapshotReader(options, list(schema.names), extras)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from lazaretto.spark.columns import STREAM
        from lazaretto.spark.source import ClaimStreamReader, UnlimitedClaimStreamReader
        from lazaretto.spark.source_options import parse

        options = parse(self.options)
        if options.view:
            raise InvalidOption(f"a stream has no views: omit view={options.view!r}, or use spark.read")
        extras = _extras(options, schema, STREAM.names, "a stream of messages")
        reader = ClaimStreamReader if spark_version() >= LIMITS else UnlimitedClaimStreamReader
        return reader(options, list(schema.names), extras)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from lazaretto.spark.writer import TableWriter

        return TableWriter(self._to_write(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from lazaretto.spark.writer import StreamWriter

        return StreamWriter(self._to_write(schema, overwrite))

    def _to_write(self, schema: StructType, overwrite: bool) -> SparkOptions:
        from lazaretto.spark.source_options import parse
        from lazaretto.spark.writer import COLUMNS, REASONS

        if overwrite:
            raise InvalidOption("a queue cannot be overwritten: use mode('append')")
        options = parse(self.options)
        if options.subqueue:
            _refuse_others(schema, [*COLUMNS, *REASONS], "a dead letter")
        else:
            _refuse_others(schema, COLUMNS, "a message to send")
        if "body" not in schema.names:
            raise InvalidOption("the DataFrame needs a column 'body'")
        return options


def _extras(options: SparkOptions, schema: StructType, names: Collection[str], what: str) -> Extras | None:
    """Return what makes the columns of a schema that are not known. Raises InvalidOption for any other."""
    if not options.body and not options.properties:
        _refuse_others(schema, names, what)
        return None
    from lazaretto.spark.bodies import extras_of

    _refuse_bodies(options)
    extras = extras_of(options, schema, names)
    _refuse_others(schema, [*names, *(extras.columns.names if extras else ())], what)
    return extras


def _refuse_bodies(options: SparkOptions) -> None:
    if options.view not in ("", "messages", "dead_letters") or options.shards_only:
        raise InvalidOption(
            "the options body and properties are for messages: streams, and the views "
            "'messages' and 'dead_letters'"
        )


def _refuse_others(schema: StructType, known: Iterable[str], what: str) -> None:
    names = list(known)
    for name in schema.names:
        if name not in names:
            raise InvalidOption(f"{what} has no column {name!r}{suggestion(name, names)}")


def register(spark: SparkSession) -> None:
    """Make the format known to a session. Spark finds it by itself, unless it is told not to look."""
    try:
        spark.dataSource.register(LazarettoSource)
    except Exception as error:
        # Before Spark 4.1, what it has found by itself cannot be replaced.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
