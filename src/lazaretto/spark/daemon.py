"""Starts Spark's Python workers like Spark's own daemon, with everything they need already imported.

Spark has a daemon for the workers of its tasks, and one for each kind of question about a source or a sink.
A task has two workers: one reads, one runs handlers. Each is forked from here.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable
from typing import Any

#: What the workers of tasks import: they take a second of work for it, each.
_FOR_TASKS = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.sql.pandas.serializers",
    "lazaretto.spark.pipeline",
    "lazaretto.spark.source",
    "pyspark.worker",
)
#: What answers Spark's questions needs less.
_FOR_QUESTIONS = ("lazaretto.spark.datasource",)
_TASKS = "pyspark.worker"


def hang_up_quietly(worker: Callable[..., int]) -> Callable[..., int]:
    """Return a worker that ends without an error where Spark reads no further, as for `first` or `limit`."""

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except BrokenPipeError:
            # Errors of user code do not come here: they are sent to Spark.
            return 1

    return run


def main() -> None:
    """Import, then wait for workers to be asked for."""
    for name in _FOR_TASKS if _TASKS in sys.argv[1:] else _FOR_QUESTIONS:
        importlib.import_module(name)
    # Nothing of it is garbage, and what nobody writes to is shared.
    gc.freeze()
    from pyspark import daemon

    daemon.worker = hang_up_quietly(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
