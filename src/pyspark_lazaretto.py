"""Found by Spark by its name: registers `format("lazaretto")` in every session."""

from lazaretto.spark.datasource import LazarettoSource


class DefaultSource(LazarettoSource):
    """The source that a session knows by itself."""
