"""Starts Spark's Python workers like Spark's own daemon, with everything they need already imported.

A task has three workers: one reads, one runs handlers, one tells the sink. Each is forked from here.
"""

from __future__ import annotations

import gc
import importlib

#: What workers import: they take a second of work for it, each.
_NEEDED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.sql.pandas.serializers",
    "lazaretto.spark.pipeline",
    "lazaretto.spark.source",
)


def main() -> None:
    """Import, then wait for workers to be asked for."""
    for name in _NEEDED:
        importlib.import_module(name)
    # Nothing of it is garbage, and what nobody writes to is shared.
    gc.freeze()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
