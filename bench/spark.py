"""`python -m bench.spark`: the pipeline on Spark beside what people write by hand, and what its parts can do.

Sections, in turn in one run: `claims` (taking and settling, in a file and on a server), `pipelines` (beside
a plain `mapInArrow`, foreachBatch, JDBC and a process pool), `rows` (`quarantine` beside a plain
`mapInArrow`), `growth` (time and memory by the length of
the queue), `latency` (from a send to its visible result, while a query runs), `executors` (one and two on a
cluster). Every run has a fresh copy of the store, and runs of one round take turns. CPU is that of this
process and all below it: Spark's, the handlers', the server's. JDBC needs Debian's packages
libxerial-sqlite-jdbc-java and libpostgresql-jdbc-java.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from servers import free_port

from bench import claims
from bench.family import Measured
from bench.machine import Machine
from bench.postgres import PostgresServer
from bench.spark_latency import latencies
from bench.spark_places import Databases, Files, Places
from bench.spark_rows import compare_rows
from bench.spark_runs import JARS, JAVA, NEEDED, Run, by_hand, jdbc, ours, plain, pool, settled
from lazaretto.spark import spark_session

SECTIONS = ("claims", "pipelines", "rows", "growth", "latency", "executors")
#: A run by its name: on which messages, and what it is.
Runs = dict[str, tuple[str, Run]]
_PLAIN, _OURS = "plain mapInArrow", "pipeline, isolated"


def _session(master: str = "local[2,4]") -> Any:
    settings = {"spark.driver.memory": "2g", "spark.master": master}
    # Executors in folders of their own import the handlers, too.
    settings["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).parents[1])
    jars = [str(jar) for jar in JARS if jar.exists()]
    if jars:
        settings["spark.jars"] = ",".join(jars)
        # Read by Java itself: the session's own options stay as they are.
        settings["spark.driver.defaultJavaOptions"] = JAVA
    return spark_session(settings)


@contextlib.contextmanager
def _places(store: str, folder: Path) -> Iterator[Places]:
    if store == "sqlite":
        yield Files(folder)
        return
    server = PostgresServer(folder, free_port())
    try:
        yield Databases(folder, server)
    finally:
        server.stop()


def _pipelines(store: str) -> Runs:
    runs: Runs = {
        _PLAIN: ("all", plain()),
        _OURS: ("all", ours("process")),
        "the same, claims of 500,000": ("all", ours("process", claim=500_000)),
        "plain mapInArrow, claims of 500,000": ("all", plain(500_000)),
        "the same with results to Parquet": ("all", ours("process", results=True)),
        "the same, 0.1 % poison": ("spoilt", ours("process")),
        "pipeline, inline": ("all", ours("inline")),
        "pipeline on a stream, isolated": ("all", ours("process", direct=False)),
        "the body alone, plain, claims of 500,000": ("all", plain(500_000, NEEDED)),
        "the body alone, settled in foreachBatch": ("all", settled(500_000)),
        "foreachBatch, rows deleted by hand": ("few", by_hand),
        "spark.read.jdbc, rows deleted": ("all", jdbc),
        "a process pool, row by row": ("few", pool),
    }
    if not all(jar.exists() for jar in JARS):
        del runs["spark.read.jdbc, rows deleted"]
    if store == "postgres":
        for name in ("the same, 0.1 % poison", "pipeline, inline", "a process pool, row by row"):
            del runs[name]
    return runs


def pipelines(
    store: str, folder: Path, rows: int, few: int, rounds: int, only: list[str], console: Console
) -> None:
    """Compare pipelines on one kind of store. `only`: what the names of those besides the plain one have."""
    runs = {
        name: run
        for name, run in _pipelines(store).items()
        if name == _PLAIN or any(word in name for word in only)
    }
    counts = {"all": rows, "spoilt": rows, "few": min(few, rows)}
    with _places(store, folder) as places:
        for name in {name for name, _ in runs.values()}:
            places.prepare(name, counts[name], 1_000 if name == "spoilt" else 0)
        spark = _session()
        _warm_up(spark, places)
        each: dict[str, list[Measured]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, (prepared, run) in runs.items():
                place = places.copy(prepared)
                with Measured() as found:
                    run(spark, place)
                each[name].append(found)
                console.print(f"{name}: {found.seconds:.1f} s, {found.cpu:.1f} s of CPU", style="dim")
                places.remove(place)
        spark.stop()
    table = Table(f"on {store}", "rows/s", "µs a message", "of CPU", "time to plain", "CPU to plain")
    for name, measured in each.items():
        count = counts[runs[name][0]]
        seconds = statistics.median(one.seconds for one in measured)
        cpu = statistics.median(one.cpu for one in measured)
        # Each round compares with its own, message by message.
        pairs = list(zip(measured, each[_PLAIN], strict=True))
        times = statistics.median(one.seconds / count / (other.seconds / rows) for one, other in pairs)
        cpus = statistics.median(one.cpu / count / (other.cpu / rows) for one, other in pairs)
        table.add_row(
            f"{name} ({count:,})", f"{count / seconds:,.0f}", f"{seconds / count * 1e6:.1f}",
            f"{cpu / count * 1e6:.1f}", f"{times:.2f}", f"{cpus:.2f}",
        )  # fmt: skip
    console.print(table)


def _warm_up(spark: Any, places: Places) -> None:
    places.prepare("warm", 5_000)
    for run in (plain(), ours("process", results=True)):
        place = places.copy("warm")
        run(spark, place)
        places.remove(place)


def growth(folder: Path, lengths: list[int], console: Console) -> None:
    """Print what a message costs in queues of different lengths, and the memory of each kind of process."""
    places = Files(folder)
    spark = _session()
    _warm_up(spark, places)
    table = Table("messages", "rows/s", "µs a message", "of CPU", "peak memory, MiB")
    for rows in lengths:
        places.prepare(f"queue-{rows}", rows, table=False)
        place = places.copy(f"queue-{rows}")
        with Measured() as found:
            ours("process")(spark, place)
        places.remove(place)
        table.add_row(
            f"{rows:,}", f"{rows / found.seconds:,.0f}", f"{found.seconds / rows * 1e6:.1f}",
            f"{found.cpu / rows * 1e6:.1f}", found.memory(),
        )  # fmt: skip
    spark.stop()
    console.print(table)


def latency(store: str, folder: Path, seconds: float, console: Console) -> None:
    """Print how long after it was sent a message has its result where readers see it."""
    with _places(store, folder) as places:
        spark = _session()
        table = Table(f"on {store}: messages/s", "results", "p50, s", "p95, s", "micro-batches", "of s (p50)")
        _warm_up(spark, places)
        for rate in (10, 1_000):
            found = latencies(spark, places, rate, seconds)
            cuts = statistics.quantiles(found.seconds, n=20)
            table.add_row(
                f"{rate:,}", f"{len(found.seconds):,}", f"{statistics.median(found.seconds):.2f}",
                f"{cuts[-1]:.2f}", f"{len(found.batches):,}", f"{statistics.median(found.batches):.2f}",
            )  # fmt: skip
        spark.stop()
    console.print(table)


def executors(folder: Path, rows: int, rounds: int, console: Console) -> None:
    """Compare one and two executors of one core, on Spark's own cluster in this machine."""
    table = Table("executors", "rows/s", "µs a message", "of CPU")
    with _places("postgres", folder) as places:
        places.prepare("all", rows)
        for number in (1, 2):
            spark = _session(f"local-cluster[{number},1,1024]")
            _warm_up(spark, places) if number == 1 else None
            measured = []
            for _ in range(rounds + 1):
                place = places.copy("all")
                with Measured() as found:
                    ours("process")(spark, place)
                measured.append(found)
                places.remove(place)
            spark.stop()
            # The first one warms up.
            seconds = statistics.median(one.seconds for one in measured[1:])
            cpu = statistics.median(one.cpu for one in measured[1:])
            table.add_row(
                f"{number}",
                f"{rows / seconds:,.0f}",
                f"{seconds / rows * 1e6:.1f}",
                f"{cpu / rows * 1e6:.1f}",
            )
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="all, if none is named")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=200_000, help="of runs that take long")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=[100_000, 1_000_000, 5_000_000])
    parser.add_argument("--only", nargs="+", default=[""], help="words in the names of pipelines")
    parser.add_argument("--seconds", type=float, default=30.0, help="for which messages are sent")
    parser.add_argument("--stores", nargs="+", choices=["sqlite", "postgres"], default=["sqlite", "postgres"])
    parser.add_argument("--dir", type=Path, default=Path())
    given = parser.parse_args()
    console = Console(width=130)
    for section in given.sections or SECTIONS:
        stores = [""] if section in ("claims", "rows", "growth", "executors") else given.stores
        for store in stores:
            with tempfile.TemporaryDirectory(dir=given.dir) as here:
                folder = Path(here).absolute()
                # The server may run as another user.
                folder.chmod(0o711)
                machine = Machine.here(folder)
                if section == "claims":
                    claims.compare(given.stores, given.rows, given.rounds, folder, console)
                elif section == "pipelines":
                    pipelines(store, folder, given.rows, given.few, given.rounds, given.only, console)
                elif section == "rows":
                    spark = _session()
                    compare_rows(spark, folder, given.few, given.rounds, console)
                    spark.stop()
                elif section == "growth":
                    growth(folder, given.lengths, console)
                elif section == "latency":
                    latency(store, folder, given.seconds, console)
                else:
                    executors(folder, given.few, given.rounds, console)
                load = f"{machine.load_before} before, {machine.after().load_after} after"
                console.print(f"{section}: {machine.date}, {machine.cores} cores, load {load}")


if __name__ == "__main__":
    main()
