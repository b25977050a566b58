"""The pipeline's processes are killed at every step: each message is settled once, in order."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import lazaretto
from lazaretto import Broker, Message, PoisonPolicy, QueueOptions

from .cluster import IMPATIENT, cluster
from .program import catalog_of

HERE = Path(__file__).parent
SOAK = "LAZARETTO_SOAK" in os.environ
SESSIONS, EACH = 8, 50 if SOAK else 25
#: What is killed where. A JVM that dies takes all of Spark's processes along.
SHORT = ["jvm-after-take", "self-before-stage", "jvm-in-settle"]
LONG = [
    "jvm-after-settle",
    "jvm-before-take", "jvm-before-start", "jvm-after-start", "driver-after-start", "self-after-start",
    "jvm-before-stage",
    "jvm-after-stage", "self-after-stage", "driver-before-stage", "self-before-settle",
    "driver-before-settle", "self-after-settle", "driver-after-settle", "jvm-during-read",
    "self-during-read", "driver-during-read", "jvm-in-stage", "self-in-stage", "jvm-before-settle",
    "self-in-settle", "driver-in-settle",
]  # fmt: skip
#: Those that meet a stream in another way: Spark reads there, and plans the task around the handler.
OF_STREAMS = [
    "jvm-before-start", "self-after-start", "driver-after-start", "jvm-during-read", "self-during-read",
    "driver-during-read", "jvm-in-stage", "self-in-stage",
]  # fmt: skip
#: Where a task's executor has a JVM of its own.
ON_EXECUTORS = [
    "executor-after-start", "executor-during-read", "executor-before-stage", "executor-in-stage",
    "executor-after-stage",
]  # fmt: skip


class Job:
    """A pipeline that is started again until it ends well."""

    def __init__(
        self,
        store: Path,
        isolation: str = "process",
        shards: int = 2,
        source: str = "direct",
        results: str = "",
        url: str = "",
        master: str = "",
        lease: float = 300,
        words: Sequence[str] = (),
    ) -> None:
        self.store = store
        self.faults = store.with_name("faults")
        (self.faults / "killed").mkdir(parents=True, exist_ok=True)
        (self.faults / "calm").touch()
        program = [str(HERE / "program.py"), url or str(store), "10", isolation, str(shards), source]
        self._words = [sys.executable, *(words or program)]
        path = [str(HERE / "faults"), str(HERE.parents[1] / "src")]
        self.environment = {
            **os.environ, "LAZARETTO_FAULTS": str(self.faults), "PYTHONPATH": os.pathsep.join(path),
            "LAZARETTO_RESULTS": results, "LAZARETTO_BASE": str(store), "LAZARETTO_MASTER": master,
            "LAZARETTO_LEASE": str(lease),
        }  # fmt: skip

    def run(self) -> int:
        """Run it to its end; return how it ended. Once more where Spark did not wait for its Python."""
        for _ in range(4):
            with self.start() as running:
                try:
                    _, errors = running.communicate(timeout=900)
                finally:
                    running.kill()
            self.output = errors.decode("utf-8", "replace")
            if running.returncode == 0 or IMPATIENT not in self.output:
                break
        return running.returncode

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._words, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run_until_done(self, most: int) -> int:
        """Return how many runs it took."""
        for runs in range(1, most + 1):
            if self.run() == 0:
                return runs
        raise AssertionError(f"not done after {most} runs: {self.output[-3000:]}")


def results(store: Path) -> list[tuple[str, int]]:
    files = sorted(Path(f"{store}-results").glob("claim=*/part-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
    return [(row["session"], row["n"]) for row in rows]


def table_results(kind: str, store: Path) -> list[tuple[str, int]]:
    """Return what readers see in a table of a kind."""
    if kind == "database":
        with contextlib.closing(sqlite3.connect(f"{store}-results.db")) as connection:
            return connection.execute("SELECT session, n FROM results").fetchall()
    if kind == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(f"{store}-results").to_pyarrow_table()
    else:
        from pyiceberg.catalog import load_catalog

        found = load_catalog("tests", **catalog_of(str(store))).load_table("shop.orders").scan().to_arrow()
    return [(row["session"], row["n"]) for row in found.to_pylist()]


def in_order(pairs: list[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for session, n in pairs:
        found.setdefault(session, []).append(n)
    return found


def check(
    broker: Broker, store: Path, bad: dict[bytes, int], kind: str = "", *, in_sessions: bool = True
) -> None:
    """Every good message done once and in its session's order, every bad one set aside, nothing left."""
    counts = broker.queue("work").counts
    assert (counts.total, counts.dead_letter) == (counts.dead_letter, sum(bad.values()))
    dead = Counter(d.message.body for d in broker.dead_letters("work") if d.message is not None)
    assert dead == bad
    done = table_results(kind, store) if kind else results(store)
    assert len(done) == len(set(done)) == SESSIONS * EACH - sum(bad.values())
    if in_sessions:
        emitted = [(m.subject or "", int(m.body)) for m in broker.peek("out", 10_000)]
        assert sorted(emitted) == sorted(done)
        for numbers in in_order(emitted).values():
            assert numbers == sorted(numbers)


def make(store: Path | str, bad: dict[tuple[int, int], bytes], *, in_sessions: bool = True) -> Broker:
    broker = lazaretto.connect(store)
    options = QueueOptions(requires_session=in_sessions, policy=PoisonPolicy(receive_retry_count=0))
    broker.create_queue("work", options)
    broker.create_queue("out")
    for n in range(EACH):
        broker.sender("work").send(
            [
                Message(bad.get((s, n), b"%d" % n), session_id=f"s{s}")
                if in_sessions
                else Message(bad.get((s, n), b"%d" % (s * EACH + n)))
                for s in range(SESSIONS)
            ]
        )
    return broker


@pytest.mark.parametrize(
    ("isolation", "shards", "source"),
    [
        ("process", 2, "direct"),
        *([("process", 1, "direct"), ("process", 1, "stream")] if SOAK else []),
        *([("inline", 2, "stream"), ("inline", 1, "direct")] if SOAK else []),
    ],
)
def test_killed_at_every_step_each_message_is_settled_once(
    tmp_path: Path, isolation: str, shards: int, source: str
) -> None:
    store = tmp_path / "store.db"
    bad = {(1, 3): b"raise", (2, 20): b"raise"} | ({(5, 7): b"exit"} if isolation == "process" else {})
    job = Job(store, isolation, shards, source)
    with make(store, bad) as broker:
        wanted = SHORT + ((LONG if source == "direct" else OF_STREAMS) if SOAK else [])
        for name in wanted:
            (job.faults / name).touch()
        runs = job.run_until_done(len(wanted) + 2)
        killed = [file.name for file in (job.faults / "killed").iterdir()]
        assert sorted(killed) == sorted(wanted)
        # A task that dies is tried again by Spark; whatever else dies ends the query.
        in_tasks = [name for name in wanted if name.startswith("self") and "settle" not in name]
        assert runs <= len(wanted) - len(in_tasks) + 1
        check(broker, store, dict(Counter(bad.values())))


@pytest.mark.skipif(not SOAK, reason="five sessions of Spark, one after the other: LAZARETTO_SOAK=1")
def test_killed_while_it_removes_each_message_is_settled_once(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    job = Job(store)
    with make(store, {(1, 3): b"raise"}, in_sessions=False) as broker:
        wanted = ["driver-in-remove", "jvm-in-remove", "driver-after-settle", "jvm-after-settle"]
        for name in wanted:
            (job.faults / name).touch()
        job.run_until_done(len(wanted) + 2)
        assert sorted(file.name for file in (job.faults / "killed").iterdir()) == sorted(wanted)
        check(broker, store, {b"raise": 1}, in_sessions=False)
        assert {claim.lease_until for claim in broker.claims("work")} == {None}
        assert broker.check() == []


@pytest.mark.stores("postgres")
@pytest.mark.skipif(not SOAK, reason="sessions on a cluster, one after the other: LAZARETTO_SOAK=1")
@pytest.mark.parametrize("target", ["self", "executor", "driver", "jvm"])
def test_killed_at_every_step_on_a_cluster_each_message_is_settled_once(
    url: str, tmp_path: Path, target: str
) -> None:
    store = tmp_path / "store"
    bad = {(1, 3): b"raise", (2, 20): b"raise", (5, 7): b"exit"}
    wanted = [name for name in [*SHORT, *LONG, *ON_EXECUTORS] if name.startswith(target)]
    with cluster(tmp_path, workers=2, cores=1) as master, make(url, bad) as broker:
        job = Job(store, url=url, master=master)
        for name in wanted:
            (job.faults / name).touch()
        job.run_until_done(len(wanted) + 2)
        assert sorted(file.name for file in (job.faults / "killed").iterdir()) == sorted(wanted)
        check(broker, store, dict(Counter(bad.values())))


@pytest.mark.skipif(not SOAK, reason="a dozen sessions of Spark, one after the other: LAZARETTO_SOAK=1")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["delta", "iceberg", "database"])
def test_a_table_has_each_result_once_whatever_is_killed(tmp_path: Path, kind: str) -> None:
    store = tmp_path / "store.db"
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        Path(f"{store}-warehouse").mkdir()
        load_catalog("tests", **catalog_of(str(store))).create_namespace("shop")
    if kind == "database":
        with contextlib.closing(sqlite3.connect(f"{store}-results.db")) as connection, connection:
            connection.execute(
                "CREATE TABLE results (sequence_number BIGINT, claim BIGINT, n BIGINT, session TEXT)"
            )
    job = Job(store, results=kind)
    with make(store, {(1, 3): b"raise"}) as broker:
        wanted = [*SHORT, "driver-before-settle", "driver-in-settle", "driver-after-settle", "self-in-stage"]
        for name in wanted:
            (job.faults / name).touch()
        job.run_until_done(len(wanted) + 2)
        assert sorted(file.name for file in (job.faults / "killed").iterdir()) == sorted(wanted)
        check(broker, store, {b"raise": 1}, kind)


@pytest.mark.skipif(not SOAK, reason="six sessions of Spark, one after the other: LAZARETTO_SOAK=1")
def test_a_message_that_kills_the_jvm_is_found_and_set_aside(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    job = Job(store)
    with make(store, {(3, 11): b"jvm"}) as broker:
        assert job.run_until_done(7) <= 6
        check(broker, store, {b"jvm": 1})
        (letter,) = broker.dead_letters("work")
        assert letter.reason == "WorkerCrashed"
        assert 3 <= letter.counters.worker_deaths <= 4
