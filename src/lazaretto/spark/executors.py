"""The Spark of a session, also of Spark Connect, and whether a cluster's executors can do the work."""

from __future__ import annotations

import pickle
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession, functions

import lazaretto
from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.errors import (
    EntityNotFound,
    ExecutorNotReady,
    InvalidOption,
    LazarettoError,
    NotAllowed,
    StoreIncomplete,
    StoreOutdated,
    StoreTooNew,
)
from lazaretto.model.checks import seconds
from lazaretto.spark.results import is_seen
from lazaretto.spark.store_access import broker_at
from lazaretto.spark.task_settings import Carried, TaskSettings

#: The setting of Spark for how long to wait for executors, in seconds.
WAIT = "spark.lazaretto.executorWait"
_WAIT_SECONDS = "120"
#: Tasks that look, at most: one for each core otherwise.
_MOST_TASKS = 64
#: What a task tells of its executor: its machine, the cause (none: it is ready), and details.
Answer = tuple[str, str, str]

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
#: What each cause means, and what to do.
_TEXTS: Mapping[str, str] = {
    "no_executor": "no executor of {where} ran a task within {detail} s: look at the cluster's page for free "
    f"cores and memory, or set {WAIT}",
    "no_python": "an executor cannot start Python ({detail}): name another with PYSPARK_PYTHON",
    "other_python": f"an executor has another Python than the driver's {_PYTHON} ({{detail}}): name another "
    "with PYSPARK_PYTHON",
    "no_package": "the executor on {where} lacks a package ({detail}): send it with --archive "
    "(`lazaretto spark pack` makes one), or install it there",
    "other_version": "the executor on {where} has lazaretto {detail}, and the driver "
    f"{lazaretto.__version__}: install the same version there",
    "no_handler": "the executor on {where} cannot load the handler ({detail}): "
    "send its module with --py-files",
    "no_store": "the executor on {where} does not reach the store ({detail})",
    "other_store": "the executor on {where} reaches another store than the driver ({detail})",
    "other_schema": "the executor on {where} cannot work with the store's tables ({detail})",
    "no_results": "the executor on {where} does not see the driver's results ({detail}): name a folder that "
    "all machines share, or a URI",
    "unknown": "the executors do not answer: {detail}",
}


def is_cluster(master: str | None) -> bool:
    """Return whether a master may run executors on other machines."""
    return master is not None and not master.startswith("local")


def check_executors(
    spark: SparkSession,
    carried: Carried[dict[str, TaskSettings]],
    identities: Mapping[str, int],
    wait: float | None = None,
) -> None:
    """Have tasks try what a pipeline needs.

    `identities`: of its consumers, by queue, as the driver sees them. `wait`: seconds for the first answer;
    None: Spark's setting. Raises ExecutorNotReady with one cause. It sees the executors that there are when
    it looks.
    """
    context = spark.sparkContext
    if wait is None:
        wait = _wait(context.getConf().get(WAIT, _WAIT_SECONDS))
    look = _look(lazaretto.__version__, pickle.dumps((carried, dict(identities))))
    for tasks in (1, min(_MOST_TASKS, context.defaultParallelism)):
        # The first wakes a cluster that starts executors when there is work.
        answers = _run(context, look, tasks, wait)
        if answers is None:
            raise _error("no_executor", str(context.master), f"{wait:g}")
        for where, cause, detail in answers:
            if cause:
                raise _error(cause, where, detail)


def check_server(
    spark: SparkSession, carried: Carried[dict[str, TaskSettings]], identities: Mapping[str, int]
) -> None:
    """Have a task of a Spark Connect server try what a pipeline needs, as `check_executors` does.

    Raises ExecutorNotReady with one cause.
    """
    look = _look(lazaretto.__version__, pickle.dumps((carried, dict(identities))))

    def ask(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for answer in look(iter(())):
            yield pa.RecordBatch.from_pylist([dict(zip(("place", "cause", "detail"), answer, strict=True))])

    try:
        rows = spark.range(1).mapInArrow(ask, "place string, cause string, detail string").collect()
        answers = [(row["place"], row["cause"], row["detail"]) for row in rows]
    except PySparkException as error:
        answers = [_failed(str(error))]
    for where, cause, detail in answers:
        if cause:
            raise _error(cause, where, detail)


def _wait(text: str) -> float:
    try:
        return seconds(WAIT, float(text), 1.0, 86_400.0)
    except ValueError:
        raise InvalidOption(f"expected {WAIT} to be seconds, got {text!r}") from None


def _error(cause: str, where: str, detail: str) -> ExecutorNotReady:
    return ExecutorNotReady(_TEXTS[cause].format(where=where, detail=detail), cause=cause)


def _run(
    context: Any, look: Callable[[Iterator[int]], Iterator[Answer]], tasks: int, wait: float
) -> list[Answer] | None:
    """Return the answers of tasks, None if there are none in time."""
    group = f"lazaretto-{uuid.uuid4().hex}"
    answers: list[Answer] = []

    def ask() -> None:
        context.setJobGroup(group, "checks that executors are ready", True)
        try:
            answers.extend(context.parallelize(range(tasks), tasks).mapPartitions(look).collect())
        except Exception as error:
            answers.append(_failed(str(error)))

    asking = threading.Thread(target=ask, name="lazaretto-executors", daemon=True)
    asking.start()
    asking.join(wait)
    if asking.is_alive():
        context.cancelJobGroup(group)
        return None
    return answers


def _failed(text: str) -> Answer:
    """Return why a job failed whose tasks could not answer."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if "Cannot run program" in line:
            return "", "no_python", line.partition("Cannot run program ")[2]
        if "PYTHON_VERSION_MISMATCH" in line:
            return "", "other_python", line.partition("PYTHON_VERSION_MISMATCH] ")[2]
        if "No module named" in line:
            return "the cluster", "no_package", line.partition("No module named ")[2]
    said = next((line for line in lines if "Exception" in line or "Error" in line), "no error")
    return "", "unknown", said


def _look(version: str, packed: bytes) -> Callable[[Iterator[int]], Iterator[Answer]]:
    """Return what a task runs. It is sent whole: where this package is missing, it must say so."""

    def look(numbers: Iterator[int]) -> Iterator[Answer]:
        import socket

        where = socket.gethostname()
        try:
            import lazaretto

            if lazaretto.__version__ != version:
                yield where, "other_version", lazaretto.__version__
                return
            from lazaretto.spark.executors import answer
        except ImportError as error:
            yield where, "no_package", error.name or str(error)
            return
        yield (where, *answer(packed))

    return look


def answer(packed: bytes) -> tuple[str, str]:
    """Return why this process cannot work on a pipeline, and details; nothing if it can."""
    carried, identities = pickle.loads(packed)  # noqa: S301 - from our own driver
    try:
        settings: Mapping[str, TaskSettings] = carried.open()
        for one in settings.values():
            one.setup()
        for one in settings.values():
            if one.extras is not None:
                one.extras.prepare()
    except Exception as error:
        return _of_package(error) or ("no_handler", f"{type(error).__name__}: {error}")
    try:
        for queue, one in settings.items():
            with broker_at(one.options.url()) as broker:
                identity = ClaimConsumer(store_of(broker), queue, one.options.consumer).identify()
            if identity != identities[queue]:
                return (
                    "other_store",
                    f"its consumer {one.options.consumer!r} of {queue!r} is not the driver's",
                )
    except EntityNotFound as error:
        return "other_store", str(error)
    except (StoreOutdated, StoreTooNew, StoreIncomplete) as error:
        return "other_schema", str(error)
    except LazarettoError as error:
        return "no_store", str(error)
    except ImportError as error:
        return "no_package", error.name or str(error)
    try:
        for queue, one in settings.items():
            if not is_seen(one.results):
                return "no_results", f"of {queue!r}"
    except Exception as error:
        return _of_package(error) or ("no_results", f"{type(error).__name__}: {error}")
    return "", ""


def _of_package(error: Exception) -> tuple[str, str] | None:
    """Return the answer for an option that needs a package which is not here; None if it is another error."""
    missing = error.__context__
    if isinstance(error, InvalidOption) and isinstance(missing, ImportError):
        return "no_package", missing.name or str(missing)
    return None


#: Where Spark says which query a micro-batch is of.
_QUERY_ID = "sql.streaming.queryId"
#: Tasks of one core each, at most, that are told apart.
_MOST_CORES = 256


def is_remote(source: SparkSession | DataFrame) -> bool:
    """Return whether a session, or a DataFrame of one, is a client of Spark Connect."""
    return type(source).__module__.startswith("pyspark.sql.connect")


def refuse_definitions(caller: str) -> None:
    """Raise NotAllowed while the definitions of a Declarative Pipeline are read, as for a dry run."""
    definitions = sys.modules.get("pyspark.pipelines.graph_element_registry")
    if definitions is None:
        return
    try:
        definitions.get_active_graph_element_registry()
    except PySparkRuntimeError:
        return
    raise NotAllowed(
        f"{caller} starts a query, and the definitions of a Declarative Pipeline start none: call it in a "
        "program of its own. A flow can send rows to a queue, with create_sink and the format 'lazaretto'"
    )


def cores_of(spark: SparkSession) -> int:
    """Return how many tasks Spark makes where nobody says how many: over Spark Connect, a job tells."""
    if not is_remote(spark):
        return int(spark.sparkContext.defaultParallelism)
    numbers = spark.range(_MOST_CORES).select(functions.spark_partition_id().alias("task")).distinct()
    return numbers.count()


def query_of(batch: DataFrame, checkpoint: str) -> str:
    """Return the id of the query that a micro-batch is of, which its checkpoint keeps. Raises NotAllowed."""
    spark = batch.sparkSession
    if is_remote(batch):
        # As it stands, though a reader takes these letters for patterns.
        plain = re.sub(r"([\\\[\]{}*?])", r"\\\1", checkpoint.rstrip("/"))
        return str(spark.read.schema("id string").json(f"{plain}/metadata").collect()[0]["id"])
    query = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if not query:
        raise NotAllowed("Spark does not say which query this is: use PySpark's own thread mode (pinned)")
    return str(query)
