"""Which versions of Spark a pipeline works with. Imports no more of Spark than its number."""

from __future__ import annotations

import importlib
import importlib.util
import re

from lazaretto.model.installing import install

#: The first and the last that are tested.
OLDEST, NEWEST = (4, 0), (4, 3)
#: From which on a source may say how much a micro-batch takes, and a sink gets whole Arrow batches.
LIMITS, ARROW_SINKS = (4, 2), (4, 1)
_TESTED = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def spark_version() -> tuple[int, int]:
    """Return the two parts of Spark's version that count. Raises ImportError: it is not there, or too old."""
    if importlib.util.find_spec("pyspark") is None:
        raise ModuleNotFoundError(
            f"lazaretto.spark needs PySpark, which is not installed: {install('spark')}", name="pyspark"
        )
    text = str(importlib.import_module("pyspark").__version__)
    match = re.match(r"(\d+)\.(\d+)", text)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < OLDEST:
        raise ImportError(f"lazaretto.spark needs PySpark {_TESTED}, and this is {text}: {install('spark')}")
    return version


def odd_version() -> str | None:
    """Return what is odd about Spark's version, None if nothing is."""
    try:
        version = spark_version()
    except ImportError as error:
        return str(error)
    if version > NEWEST:
        return f"PySpark {version[0]}.{version[1]} is newer than what is tested ({_TESTED})"
    return None
