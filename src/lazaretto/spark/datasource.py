"""`format("lazaretto")`: a queue as a stream."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from lazaretto.errors import InvalidOption
from lazaretto.options import suggestion
from lazaretto.spark.columns import CLAIM, MESSAGE, STREAM_DDL
from lazaretto.spark.options import parse
from lazaretto.spark.source import ClaimStreamReader

FORMAT = "lazaretto"


class LazarettoSource(DataSource):
    """A queue: read as a stream of claims. Options: see SparkOptions."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return STREAM_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        known = [*CLAIM, *MESSAGE]
        for name in schema.names:
            if name not in known:
                raise InvalidOption(f"a stream of messages has no column {name!r}{suggestion(name, known)}")
        return ClaimStreamReader(parse(self.options), list(schema.names))


def register(spark: SparkSession) -> None:
    """Make the format known to a session. Spark finds it by itself, unless it is told not to look."""
    spark.dataSource.register(LazarettoSource)
