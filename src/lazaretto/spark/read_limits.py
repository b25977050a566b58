"""Limits of a micro-batch: Spark's own classes, and what stands for them before Spark 4.2."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lazaretto.spark.versions import LIMITS, spark_version

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
