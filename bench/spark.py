"""`python -m bench.spark`: the pipeline on Spark beside what people write by hand.

Sections: `sqlite` and `postgres` (the pipeline on messages of a queue, in a file and on a server) and `rows`
(`quarantine` on rows of another source). Every run has a fresh copy of the store. Figures are microseconds
a message, by the clock and of processors: of this process and all below it, which are Spark's, the handlers'
and the server's. JDBC needs Debian's libxerial-sqlite-jdbc-java and libpostgresql-jdbc-java.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servers import free_port

from bench.figures import Figure
from bench.processor import spend_with_children
from bench.rounds import options, private, run
from bench.servers import PostgresServer
from bench.spark_places import Databases, Files, Places
from bench.spark_rows import compare_rows, prepare
from bench.spark_runs import JARS, JAVA, NEEDED, Run, by_hand, jdbc, ours, plain, settled
from lazaretto.spark import spark_session

_STORES = ("sqlite", "postgres")
SECTIONS = (*_STORES, "rows")
_LARGE = 500_000
_ISOLATED = ours("process")
_PLAIN = "plain mapInArrow"
_JDBC = "spark.read.jdbc, rows deleted"
#: Runs that stand side by side: by the name of the row, on which messages.
_RUNS: dict[str, tuple[str, dict[str, Run]]] = {
    "claims of 100,000": ("good", {"isolated": _ISOLATED, _PLAIN: plain()}),
    "claims of 500,000": (
        "good",
        {
            "isolated": ours("process", claim=_LARGE),
            _PLAIN: plain(_LARGE),
            "the body alone, plain": plain(_LARGE, NEEDED),
            "the body alone, settled in foreachBatch": settled(_LARGE),
            _JDBC: jdbc,
        },
    ),
    "results to Parquet": ("good", {"isolated": ours("process", results=True), _PLAIN: plain()}),
    "inline": ("good", {"inline": ours("inline"), _PLAIN: plain()}),
    "on a stream": ("good", {"isolated": ours("process", direct=False), _PLAIN: plain()}),
    "0.1 % poison": ("spoilt", {"isolated": _ISOLATED, _PLAIN: plain()}),
    "few": ("few", {"isolated": _ISOLATED, "foreachBatch, rows deleted by hand": by_hand}),
}


def _session() -> Any:
    settings = {"spark.driver.memory": "2g", "spark.master": "local[2,4]"}
    # Executors in folders of their own import the handlers, too.
    settings["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).parents[1])
    if jars := [str(jar) for jar in JARS if jar.exists()]:
        settings["spark.jars"] = ",".join(jars)
        # Read by Java itself: the session's own options stay as they are.
        settings["spark.driver.defaultJavaOptions"] = JAVA
    return spark_session(settings)


@contextlib.contextmanager
def _places(store: str, folder: Path) -> Iterator[Places]:
    with private(folder) as home:
        if store == "sqlite":
            yield Files(home)
            return
        server = PostgresServer(home, free_port())
        try:
            yield Databases(home, server)
        finally:
            server.stop()


def _once(work: Run, spark: Any, places: Places, prepared: str) -> tuple[float, float]:
    place = places.copy(prepared)
    found = spend_with_children(functools.partial(work, spark, place))
    places.remove(place)
    return found


def pipelines(
    spark: Any, store: str, places: Places, counts: dict[str, int], only: list[str]
) -> Iterator[Figure]:
    """Compare the pipeline with what is written by hand, on one kind of store."""
    for row, (prepared, runs) in _RUNS.items():
        count = counts[prepared]
        for name, work in runs.items() if any(word in row for word in only) else ():
            if name != _JDBC or all(jar.exists() for jar in JARS):
                seconds, cpu = _once(work, spark, places, prepared)
                cost = cpu / count * 1e6
                yield Figure(f"{store}, {row}", name, seconds / count * 1e6, "µs", less=True, cost=cost)


def measure(given: argparse.Namespace) -> int:
    """Prepare what is asked for, warm up, and measure round by round."""
    sections = given.sections or SECTIONS
    rows = min(given.rows, 5_000) if given.quick else given.rows
    counts = {"good": rows, "spoilt": rows, "few": min(rows, 200_000)}
    with contextlib.ExitStack() as stack:
        spark = _session()
        stack.callback(spark.stop)
        given.dir.mkdir(parents=True, exist_ok=True)
        folder = stack.enter_context(private(given.dir))
        stores = {name: stack.enter_context(_places(name, folder)) for name in _STORES if name in sections}
        for places in stores.values():
            places.prepare("warm", 5_000)
            for name, count in counts.items():
                places.prepare(name, count, 1_000 if name == "spoilt" else 0)
            for work in (plain(), ours("process", results=True)):
                _once(work, spark, places, "warm")
        if "rows" in sections:
            prepare(folder, rows)
            list(compare_rows(spark, folder, rows, warm=True))

        def figures(_folder: Path, _number: int) -> Iterator[Figure]:
            for name, places in stores.items():
                yield from pipelines(spark, name, places, counts, given.only)
            if "rows" in sections:
                yield from compare_rows(spark, folder, rows, warm=False)

        return run(given, figures)


def main() -> int:
    """Measure and print."""
    parser = options("bench.spark", __doc__, 3)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="all, if none is named")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="+", default=[""], help="words in the names of rows")
    return measure(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
