"""Queues on Spark: a stream of messages, each settled exactly once, and no poison row stops a job."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lazaretto.model.installing import install

if TYPE_CHECKING:
    from lazaretto.spark.any_source import quarantine
    from lazaretto.spark.causes import triage
    from lazaretto.spark.database_results import DatabaseResults
    from lazaretto.spark.datasource import register
    from lazaretto.spark.java import find_java
    from lazaretto.spark.lake_results import DeltaResults, IcebergResults
    from lazaretto.spark.outcome_table import lineage, settle
    from lazaretto.spark.pipeline import process
    from lazaretto.spark.session import spark_session
    from lazaretto.spark.tries import dry_run, try_repair

__all__ = [
    "DatabaseResults", "DeltaResults", "IcebergResults",
    "dry_run", "find_java", "lineage", "process", "quarantine", "register", "settle", "spark_session",
    "triage", "try_repair",
]  # fmt: skip

_MODULES = {
    "any_source": ("quarantine",), "causes": ("triage",), "database_results": ("DatabaseResults",),
    "datasource": ("register",), "java": ("find_java",), "lake_results": ("DeltaResults", "IcebergResults"),
    "outcome_table": ("lineage", "settle"), "pipeline": ("process",), "session": ("spark_session",),
    "tries": ("dry_run", "try_repair"),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
#: The packages of the extra that it cannot do without.
_NEEDED = ("pandas", "py4j", "pyarrow", "pyspark")
#: What looks for Spark, and so works without it.
_WITHOUT_SPARK = {"find_java"}


def __getattr__(name: str) -> Any:
    # Only when asked for: what looks whether Spark is there must not need it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name not in _WITHOUT_SPARK:
            # In a sentence of ours, rather than by what a version lacks.
            from lazaretto.spark.versions import spark_version

            spark_version()
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        text = f"lazaretto.spark.{name} needs {error.name}, which is not installed: {install('spark')}"
        raise ModuleNotFoundError(text, name=error.name) from None
