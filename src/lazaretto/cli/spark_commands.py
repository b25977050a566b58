"""`lazaretto spark`: runs pipelines, and waits for their queries, which end together."""

from __future__ import annotations

import contextlib
import re
import signal
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lazaretto import errors
from lazaretto.cli import output
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.exits import CommandError, Exit, usage
from lazaretto.errors import LazarettoError
from lazaretto.model.checks import shown
from lazaretto.model.installing import install
from lazaretto.tools.signals import Ending, interrupting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


#: An error of this package in a stack of Python.
_OURS = re.compile(r"^lazaretto\.errors\.(\w+): (.+)$", re.MULTILINE)
#: The last line of a stack of Python.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE)
#: An error of Java's, as the bridge to it shows it.
_OF_JAVA = re.compile(r"^: (.+)$", re.MULTILINE)
commands = Group()
pipelines = commands.group("spark")

#: Seconds after which it is looked whether to end, and which queries have ended.
_LOOK = 0.5


@contextlib.contextmanager
def in_a_sentence(*, only_of_queries: bool = False) -> Iterator[None]:
    """Raise errors of Spark as one of ours, if that is their cause, or as CommandError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException, StreamingQueryException

    kinds = (StreamingQueryException,) if only_of_queries else (PySparkException, Py4JError)
    try:
        yield
    except kinds as error:
        text = str(error)
        raise cause_of(text) or CommandError("spark_failed", sentence_of(text)) from None


def cause_of(output: str) -> LazarettoError | None:
    """Return the error of ours that Spark tells of among stacks, None if it tells of none."""
    for name, text in reversed(_OURS.findall(output)):
        kind = getattr(errors, name, None)
        if kind is not None:
            cause: LazarettoError = kind.__new__(kind, text)
            return cause
    return None


def sentence_of(output: str) -> str:
    """Return what is wrong: the error that Python code raised, or Java's, or else Spark's first line."""
    for pattern in (_RAISED, _OF_JAVA):
        sentences: list[str] = pattern.findall(output)
        if sentences:
            return sentences[-1]
    first = output.strip().partition("\n")[0]
    return f"{first} Java says why, above" if first.startswith("[JAVA_GATEWAY_EXITED]") else first


@pipelines.command("run")
def run(
    pipeline: Annotated[
        str, argument("Function that takes the session and returns its queries.", "MODULE:FUNCTION")
    ],
    master: Annotated[
        str | None, option("A spark:// or k8s:// URL, or yarn; else this machine.", "URL")
    ] = None,
    archive: Annotated[str | None, option("Packages for executors, from `spark pack`.", "FILE")] = None,
    py_files: Annotated[
        list[str] | None, option("Modules for executors: .py or .zip; repeatable.", "FILE")
    ] = None,
    environment: Annotated[
        list[str] | None, option("Variable that tasks get too; repeatable.", "NAME", "--env")
    ] = None,
    setting: Annotated[
        list[str] | None, option("Setting of Spark; repeatable.", "NAME=VALUE", "--conf")
    ] = None,
) -> None:
    """Run the queries of a pipeline until they end.

    It builds a Spark session with all that the pipeline needs. On a cluster, executors get this package
    and the pipeline's module. SIGTERM or Control-C stops the queries.
    """
    try:
        from lazaretto.spark import spark_session
        from lazaretto.spark.executors import is_cluster
    except ImportError as error:
        raise _missing(error) from error
    from lazaretto.host import load_function

    settings = {}
    for text in setting or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise usage(f"expected --conf NAME=VALUE, got {text!r}")
        settings[name] = value
    if master is not None:
        settings["spark.master"] = master
    function = load_function(pipeline)
    # Told to end before it waits, it leaves no folder behind either.
    with interrupting(), tempfile.TemporaryDirectory(prefix="lazaretto-") as folder:
        if is_cluster(settings.get("spark.master")):
            settings = _for_cluster(settings, Path(folder), pipeline, archive, py_files or [])
        elif archive or py_files:
            raise usage(
                "--archive and --py-files are for a cluster, and executors of "
                f"{settings.get('spark.master', 'this machine')} have all that is here: omit them, "
                "or give a cluster's --master"
            )
        with in_a_sentence():
            spark = spark_session(settings, environment or [])
        with stopping(spark):
            # Where else the function failed is told by Python's stack.
            with in_a_sentence(only_of_queries=True):
                queries = queries_of(spark, function(spark), pipeline)
            with in_a_sentence():
                wait_for(spark, queries)


def _for_cluster(
    settings: dict[str, str], folder: Path, pipeline: str, archive: str | None, py_files: list[str]
) -> dict[str, str]:
    """Return Spark's settings with what executors get."""
    from lazaretto.spark.packed_code import pack_code, settings_for, uri_of, use_python_on_path

    for file in py_files:
        if not _is_there(file):
            raise usage(f"expected --py-files to be .py or .zip files, got {file!r}: zip a package's folder")
    if archive is not None and not _is_there(archive):
        raise usage(f"expected --archive to be a file, got {archive!r}: `lazaretto spark pack` makes one")
    code = folder / "code.zip"
    pack_code(code, pipeline.partition(":")[0])
    if archive is not None:
        use_python_on_path()
    files = [*filter(None, [settings.get("spark.submit.pyFiles")]), *map(uri_of, py_files)]
    sent = {"spark.submit.pyFiles": ",".join(files)} if files else {}
    return {**settings, **settings_for(code, archive, settings), **sent}


def _is_there(file: str) -> bool:
    # Spark itself looks for what is elsewhere.
    return "://" in file or Path(file).is_file()


@pipelines.command("pack")
def pack(
    file: Annotated[Path, argument("Where the archive goes, such as env.zip.")],
) -> None:
    """Make an archive of the packages that executors need.

    Give it to `lazaretto spark run --archive`. It has Arrow, pandas and the database's drivers of this
    Python, so executors need a Python of the same version and system, and nothing else.
    """
    from lazaretto.spark.packed_code import pack_environment

    try:
        count = pack_environment(file)
    except ImportError as error:
        raise _missing(error, "spark,postgres") from error
    output.line(f"{file}: {count} packages, {file.stat().st_size >> 20} MB")


def _missing(error: ImportError, extras: str = "spark") -> CommandError:
    advice = "" if "pip install" in str(error) else f"; {install(extras)}"
    return CommandError("spark_missing", f"{error}{advice}", Exit.USAGE)


@pipelines.command("prepare")
def prepare() -> None:
    """Make sessions start faster.

    It runs a small pipeline and keeps what Java loaded, 170 MB in the cache folder. Do it once for each
    version of Spark and Java.
    """
    try:
        from lazaretto.spark.first_run import prepare
    except ImportError as error:
        raise _missing(error) from error
    archive = prepare()
    output.line(f"sessions start from {archive} from now on ({archive.stat().st_size >> 20} MB)")


@contextlib.contextmanager
def stopping(spark: SparkSession) -> Iterator[None]:
    """Stop a session in the end. After an error, its queries too, as far as that works."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            _stop(spark, spark.streams.active)
            spark.stop()
        raise
    spark.stop()


def queries_of(spark: SparkSession, started: object, pipeline: str) -> list[StreamingQuery]:
    """Return the queries that a pipeline's function has returned, or all that run if it returned none."""
    from pyspark.sql.streaming.query import StreamingQuery

    returned: list[StreamingQuery] = []
    for one in started if isinstance(started, list | tuple) else [started]:
        if isinstance(one, StreamingQuery):
            returned.append(one)
        elif one is not None:
            raise usage(f"expected {pipeline} to return its queries, got {shown(one)}")
    # A `return` that was forgotten must not end a query that has begun.
    return returned or list(spark.streams.active)


class MessageCount:
    """Counts a query's messages: Spark keeps what it tells of the latest micro-batches only."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._batch = -1
        self._messages = 0

    def look(self) -> int:
        """Return how many there are so far. To be called before Spark forgets a micro-batch."""
        last = self._query.lastProgress
        if last is not None and last["batchId"] > self._batch:
            # All that Spark keeps takes a hundred questions.
            progress = [last] if last["batchId"] == self._batch + 1 else self._query.recentProgress
            self._messages += sum(_messages(one) for one in progress if one["batchId"] > self._batch)
            self._batch = progress[-1]["batchId"]
        return self._messages


def _messages(progress: Mapping[str, Any]) -> int:
    """Return how many messages a micro-batch had: the pipeline tells, for Spark may see none of them."""
    metrics = progress["observedMetrics"].get("lazaretto")
    return int(progress["numInputRows"] if metrics is None else metrics["rows"] or 0)


def wait_for(spark: SparkSession, queries: Sequence[StreamingQuery]) -> None:
    """Wait until all queries end, one fails, or this process is told to end; stop those that are left then.

    Prints a line for each that ends by itself. Raises what a query failed with, or KeyboardInterrupt.
    """
    ending = Ending()
    counts = {query: MessageCount(query) for query in queries}
    # As an exception, Control-C would meet a call of Java, which is not over yet.
    with ending.on_signals():
        try:
            while counts and not ending.asked:
                next(iter(counts)).awaitTermination(_LOOK)  # type: ignore[arg-type]  # parts of seconds, too
                for query, count in [*counts.items()]:
                    ended = not query.isActive
                    messages = count.look()
                    if ended:
                        del counts[query]
                        query.awaitTermination()
                        output.say(f"{query.name or query.id}: {messages:,} message{'s' * (messages != 1)}")
        except Exception:
            # A supervisor may tell Java to end as well, which fails then before it answers.
            if not ending.asked:
                _stop(spark, counts)
                raise
        if ending.asked:
            # Who presses Control-C again does not wait until Java has stopped them.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _stop(spark, counts)
            raise KeyboardInterrupt


def _stop(spark: SparkSession, queries: Iterable[StreamingQuery]) -> None:
    """Stop queries, as far as Java is there to do it."""
    with contextlib.suppress(Exception):
        # Tasks that are interrupted may fail in ways that Spark logs with Java's stack.
        spark.sparkContext.setLogLevel("OFF")
        for query in queries:
            query.stop()
