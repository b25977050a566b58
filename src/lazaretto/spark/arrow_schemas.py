"""Schemas of Spark as Arrow's, in every version of Spark: times are in UTC."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Older versions take no zone, and mean UTC.
_TAKES_ZONE = "timezone" in inspect.signature(to_arrow_schema).parameters


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema of Spark's as one of Arrow's."""
    return to_arrow_schema(schema, timezone="UTC") if _TAKES_ZONE else to_arrow_schema(schema)
