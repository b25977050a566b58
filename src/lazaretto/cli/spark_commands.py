"""`lazaretto spark`: runs pipelines."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lazaretto.cli import output
from lazaretto.cli.command import Group
from lazaretto.cli.exits import CommandError, Exit

commands = Group()
pipelines = commands.group("spark")


@pipelines.command("run")
def run(
    pipeline: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION", help="Function that takes the session and returns its queries."
        ),
    ],
    setting: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="Setting of Spark; repeatable."),
    ] = None,
) -> None:
    """Run the queries of a pipeline until they end.

    It builds a Spark session with all that the pipeline needs.
    """
    try:
        from lazaretto.spark import spark_session
    except ImportError as error:
        raise CommandError("spark_missing", f"{error}; pip install 'lazaretto[spark]'", Exit.USAGE) from error
    from lazaretto.host import load_function

    settings = {}
    for text in setting or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandError("usage", f"expected --conf NAME=VALUE, got {text!r}", Exit.USAGE)
        settings[name] = value
    function = load_function(pipeline)
    spark = spark_session(settings)
    try:
        started = function(spark)
        queries = started if isinstance(started, list | tuple) else [started]
        for query in queries:
            if query is not None:
                query.awaitTermination()
                rows = sum(map(_rows, query.recentProgress))
                output.line(f"{query.name or query.id}: {rows:,} rows")
    finally:
        spark.stop()


@pipelines.command("prepare")
def prepare() -> None:
    """Make sessions start faster.

    It runs a small pipeline and keeps what Java loaded, 170 MB in the cache folder. Do it once for each
    version of Spark and Java.
    """
    try:
        from lazaretto.spark.class_archive import prepare
    except ImportError as error:
        raise CommandError("spark_missing", f"{error}; pip install 'lazaretto[spark]'", Exit.USAGE) from error
    archive = prepare()
    output.line(f"sessions start from {archive} from now on ({archive.stat().st_size >> 20} MB)")


def _rows(progress: Any) -> int:
    """Return how many messages a micro-batch had: the pipeline tells, for Spark may see none of them."""
    told = progress["observedMetrics"].get("lazaretto")
    return int(progress["numInputRows"] if told is None else told["rows"] or 0)
