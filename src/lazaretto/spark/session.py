"""A Spark session with everything set that a pipeline needs."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

import lazaretto
from lazaretto.errors import InvalidOption, NotAllowed
from lazaretto.spark import daemon
from lazaretto.spark.datasource import register
from lazaretto.spark.executors import is_cluster
from lazaretto.spark.java import Java, cache_folder, find_java
from lazaretto.tools.surroundings import why_no_interpreter

_LOGGING = Path(__file__).with_name("log4j2.properties")
#: What must be set, and why. All of it can be overridden.
SETTINGS: Mapping[str, str] = {
    # A worker that dies is tried again: `local[N]` alone would not.
    "spark.master": "local[2,4]",
    "spark.app.name": "lazaretto",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # The work is done in Python: what Java's second compiler takes at the start, it does not win back.
    "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={_LOGGING}" -XX:TieredStopAtLevel=1',
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # Off by default, and a reader that can filter is refused then.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A stack must not carry what stands in a body.
    "spark.sql.execution.pyspark.udf.tracebackWithLocals": "false",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
}

_JAVA = "spark.driver.extraJavaOptions"
_NO_CONNECT = (
    "the settings of a session of Spark Connect (spark.remote) are its server's: make it with "
    "SparkSession.builder.remote, and hand it to process, quarantine or triage"
)
_OF_ONE_MACHINE = ("spark.driver.host", "spark.driver.bindAddress")
#: How those settings begin that a Spark which runs still takes.
_OF_SQL = "spark.sql."
#: Names the module that starts Python workers. Only where it is found: else no worker would start.
_DAEMON = "spark.python.daemon.module"


def spark_session(settings: Mapping[str, str] | None = None, environment: Iterable[str] = ()) -> SparkSession:
    """Return a session; the one there is, if there is one.

    `settings`: Spark's own, over those of this package. `environment`: names of variables of this process
    that tasks get too; their values are in no setting, plan or log. Finds Java, and has workers run this
    Python. Where Spark runs already, as with spark-submit, what it was started with comes before this
    package's settings. Raises JavaNotFound, InvalidOption, NotAllowed.
    """
    settings = dict(settings or {})
    _refuse_remote(settings)
    handed = {name: os.environ.get(name) for name in environment}
    missing = [name for name, value in handed.items() if value is None]
    if missing:
        raise InvalidOption(f"expected the environment variable {missing[0]} to be set, but it is not")
    why = why_no_interpreter()
    if why is not None:
        raise NotAllowed(f"{why}, and Spark's workers need one: run this with an installed Python")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "PYSPARK_GATEWAY_PORT" in os.environ or SparkSession.getActiveSession() is not None:
        whole = {**_missing_of(settings), **settings}
    else:
        whole = _of_new_java(settings)
    builder = SparkSession.builder
    for name, value in whole.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    # Not as settings, which are on the driver's command line, in event logs and on its page.
    session.sparkContext.environment.update(handed)
    # Found by itself, the format would have neither these variables nor the executors' own Python.
    register(session)
    return session


def _refuse_remote(settings: Mapping[str, str]) -> None:
    """Raise NotAllowed if a session would be a client of Spark Connect."""
    mode = settings.get("spark.api.mode", os.environ.get("SPARK_API_MODE", "classic"))
    if "SPARK_REMOTE" in os.environ or "spark.remote" in settings or mode.lower() == "connect":
        raise NotAllowed(_NO_CONNECT)


def _missing_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return what Spark, which runs or was started by spark-submit, has not been told and takes yet."""
    context = SparkContext.getOrCreate(SparkConf().setAll([*settings.items()]))
    said = dict(context.getConf().getAll())
    return {name: value for name, value in SETTINGS.items() if name.startswith(_OF_SQL) and name not in said}


def _of_new_java(settings: Mapping[str, str]) -> dict[str, str]:
    """Return all settings of a Spark that is to be started. Raises JavaNotFound."""
    whole = {**SETTINGS, **settings}
    if is_cluster(whole["spark.master"]):
        # Executors elsewhere must reach the driver.
        for name in _OF_ONE_MACHINE:
            if name not in settings:
                del whole[name]
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    if _JAVA not in settings:
        whole[_JAVA] += java_options(java)
    if not is_cluster(whole["spark.master"]) and _finds_us(os.environ["PYSPARK_PYTHON"]):
        whole.setdefault(_DAEMON, daemon.__name__)
    return whole


def _finds_us(python: str) -> bool:
    """Return whether a new interpreter finds this package, the same one."""
    look = (
        "import importlib.util; found = importlib.util.find_spec('lazaretto'); print(found and found.origin)"
    )
    try:
        process = subprocess.run([python, "-c", look], capture_output=True, text=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return False
    return process.returncode == 0 and process.stdout.strip() == lazaretto.__file__


def archive_of(java: Java) -> Path:
    """Return where the archive for a Java and this Spark is, if it was made."""
    made_for = f"{java.home.resolve()} {java.version} {Path(pyspark.__file__).parent} {pyspark.__version__}"
    return cache_folder() / f"spark-{pyspark.__version__}-{zlib.crc32(made_for.encode()):08x}.jsa"


def java_options(java: Java) -> str:
    """Return Java's options to use the archive, none if there is none. Java ignores one that does not fit."""
    archive = archive_of(java)
    return f' "-XX:SharedArchiveFile={archive}" -Xlog:cds*=off' if archive.exists() else ""
