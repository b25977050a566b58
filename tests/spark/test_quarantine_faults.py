"""Quarantine is killed at every step: each row ends once, in the results or as a letter."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
import servers

import lazaretto
from lazaretto import Broker, PoisonPolicy, PoisonSession, QueueOptions

from .cluster import SPECULATION, ConnectServer, cluster
from .conftest import source_of_kafka
from .test_faults import HERE, Job
from .test_kafka import Topic
from .test_quarantine import bodies, with_body

SOAK = "LAZARETTO_SOAK" in os.environ
#: Between the results and the commit.
SHORT = ["driver-before_settle-rows"]
LONG = [
    "jvm-before_publish-rows",
    "self-in-stage-rows", "jvm-in-stage-rows", "driver-in-rows", "jvm-in-rows", "jvm-before_settle-rows",
    "driver-after_settle-rows", "driver-after_publish-rows", "jvm-after_publish-rows", "jvm-during-read",
    "self-after-start", "jvm-in-stage", "driver-in-settle",
]  # fmt: skip
#: The same over Spark Connect, where a process of the server's does what is the driver's.
CONNECT = ["self-before_settle-rows"]
LONG_OF_CONNECT = [
    "jvm-before_settle-rows", "self-in-rows", "self-before_publish-rows", "jvm-before_publish-rows",
    "self-after_settle-rows", "jvm-after_publish-rows", "self-in-stage-rows", "jvm-in-stage",
    "self-in-settle",
]  # fmt: skip
#: On a cluster, where executors have a JVM of their own and the store and the results are on two servers.
CLUSTER = [
    "self-in-stage-rows", "executor-in-stage-rows", "jvm-before_publish-rows", "store-in-rows",
    "sink-before_publish-rows",
]  # fmt: skip
LONG_OF_CLUSTER = [
    "self-after-start", "self-during-read", "self-in-stage", "executor-after-start", "executor-during-read",
    "executor-before-stage", "executor-in-stage", "executor-after-stage",
    "driver-before_settle-rows", "driver-in-rows", "driver-in-settle", "driver-after_settle-rows",
    "driver-in-publish", "driver-after_publish-rows",
    "jvm-in-stage-rows", "jvm-during-read", "jvm-in-stage", "jvm-before_settle-rows", "jvm-in-rows",
    "jvm-in-settle", "jvm-in-publish", "jvm-after_publish-rows",
    "store-in-stage-rows", "store-during-read", "store-in-stage", "store-before_settle-rows",
    "store-in-settle", "store-after_settle-rows", "store-in-publish", "store-after_publish-rows",
    "sink-in-stage-rows", "sink-during-read", "sink-in-stage", "sink-before_settle-rows", "sink-in-rows",
    "sink-in-settle", "sink-in-publish", "sink-after_publish-rows",
]  # fmt: skip
FILES, EACH = (16, 10) if SOAK else (2, 10)
#: The line of a file that is repaired, but for the last file's; the one that stays as it is, or is purged.
BAD, WORSE = 3, 7


def lines(file: int) -> list[str]:
    first = file * EACH
    marks = {BAD: "bad " if file < FILES - 1 else "", WORSE: "worse " if file else "worst "}
    return [f"{marks.get(place, '')}{first + place}" for place in range(EACH)]


def send_back(broker: Broker) -> None:
    """Repair all letters that can be, and purge one."""
    for letter in list(broker.dead_letters("work")):
        body = b"" if letter.message is None else letter.message.body
        if body.startswith(b"bad "):
            broker.resubmit("work", letter.sequence_number, edit=with_body(body.removeprefix(b"bad ")))
        if body.startswith(b"worst "):
            broker.purge("work", [letter.sequence_number])


def database(store: Path, kind: str) -> Any:
    """Return a connection to the database of results, None if they are in a folder."""
    if kind.startswith("postgresql:"):
        return psycopg.connect(kind)
    return sqlite3.connect(f"{store}-results.db") if kind == "database" else None


def done(store: Path, kind: str = "") -> list[int]:
    connection = database(store, kind)
    if connection is not None:
        with contextlib.closing(connection):
            return sorted(n for (n,) in connection.execute("SELECT n FROM results"))
    files = sorted(Path(f"{store}-results").glob("claim=*/part-*.parquet"))
    return sorted(n for file in files for n in pq.read_table(file, partitioning=None)["n"].to_pylist())


def check(store: Path, broker: Broker, wanted: list[str], job: Job, kind: str = "") -> None:
    """Run a job, killed at points, to its end, repair meanwhile; look where each row is."""
    for name in wanted:
        (job.faults / name).touch()
    for _ in range(len(wanted) + 3):
        ended = job.run()
        waiting = [message.body for message in broker.peek("work", 1_000)]
        places = [*done(store, kind), *(int(body.split()[-1]) for body in [*waiting, *bodies(broker)])]
        assert len(places) == len(set(places))
        left = [one for one in bodies(broker) if one.startswith(b"bad ")]
        killed = sorted(file.name for file in (job.faults / "killed").iterdir())
        counts = broker.queue("work").counts
        # Behind a row of their session, others may wait.
        if ended == 0 and not left and killed == sorted(wanted) and counts.total == counts.dead_letter:
            break
        assert ended == 0 or killed, job.output[-3000:]
        send_back(broker)
    assert killed == sorted(wanted), job.output[-3000:]
    worse = [file * EACH + WORSE for file in range(FILES)]
    assert done(store, kind) == [n for n in range(FILES * EACH) if n not in worse]
    assert bodies(broker) == sorted(b"worse %d" % n for n in worse[1:])
    assert len(broker.purged("work")) == 1
    assert counts.total == counts.dead_letter
    assert broker.check() == []


def make(store: Path, kind: str = "", url: str = "") -> Broker:
    """Write the files, and make the queue and the table of results; `url`: of the store, if it is no file."""
    folder = store.with_name("in")
    folder.mkdir()
    for file in range(FILES):
        (folder / f"{file}.txt").write_text("".join(f"{line}\n" for line in lines(file)))
    broker = lazaretto.connect(url or store)
    policy = PoisonPolicy(receive_retry_count=0)
    options = QueueOptions(policy=policy)
    if kind == "sessions":
        options = QueueOptions(policy=policy, requires_session=True, on_poison_session=PoisonSession.SKIP)
    broker.create_queue("work", options)
    connection = database(store, kind)
    if connection is not None:
        with contextlib.closing(connection), connection:
            connection.execute("CREATE TABLE results (sequence_number BIGINT, claim BIGINT, n BIGINT)")
    return broker


class ClusterJob(Job):
    """A pipeline on a cluster. Once it has ended, the servers of its store and results are started again."""

    def __init__(self, store: Path, url: str, master: str, started: dict[str, servers.Server]) -> None:
        settings = [f"{name}={value}" for name, value in SPECULATION.items()]
        words = [str(HERE / "any_program.py"), url, str(store.with_name("in")), *settings]
        super().__init__(store, results=started["sink"].url, master=master, words=words)
        self._servers = started
        self._revive()

    def run(self) -> int:
        ended = super().run()
        self._revive()
        return ended

    def _revive(self) -> None:
        for name, server in self._servers.items():
            (self.faults / f"{name}.pid").write_text(str(server.revive()))


class ServedJob(Job):
    """A pipeline on a server of Spark Connect, which is started again where it was killed."""

    def __init__(self, store: Path, words: Sequence[str]) -> None:
        super().__init__(store, results="connect", words=words)
        home = store.with_name("server")
        home.mkdir()
        self.server = ConnectServer(home, self.environment)

    def run(self) -> int:
        (self.faults / "jvm.pid").write_text(str(self.server.start()))
        self.environment["LAZARETTO_MASTER"] = self.server.url
        return super().run()


@pytest.mark.parametrize("kind", ["", *(["sessions", "database"] if SOAK else [])])
def test_killed_at_every_step_each_row_of_files_ends_once(tmp_path: Path, kind: str) -> None:
    store = tmp_path / "store.db"
    with make(store, kind) as broker:
        words = [str(HERE / "any_program.py"), str(store), str(tmp_path / "in")]
        check(store, broker, SHORT + (LONG if SOAK else []), Job(store, results=kind, words=words), kind)


@pytest.mark.parametrize("target", sorted({one.partition("-")[0] for one in CLUSTER}) if SOAK else [""])
def test_killed_at_every_step_on_a_cluster_each_row_ends_once(tmp_path: Path, target: str) -> None:
    store = tmp_path / "store"
    wanted = [one for one in [*CLUSTER, *LONG_OF_CLUSTER] if one.startswith(target)] if SOAK else CLUSTER
    with contextlib.ExitStack() as opened:
        master = opened.enter_context(cluster(tmp_path, workers=2 if SOAK else 1, cores=1))
        started = {name: servers.start() for name in ("store", "sink")}
        for server in started.values():
            opened.callback(server.stop)
        url = f"{started['store'].url}?schema=shop"
        kind = started["sink"].url
        broker = opened.enter_context(make(store, kind, url))
        check(store, broker, wanted, ClusterJob(store, url, master, started), kind)


def test_a_server_of_connect_is_killed_and_each_row_ends_once(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with make(store) as broker:
        killed = [*CONNECT, *LONG_OF_CONNECT] if SOAK else CONNECT
        job = ServedJob(store, [str(HERE / "any_program.py"), str(store), str(tmp_path / "in")])
        try:
            check(store, broker, killed, job)
        finally:
            job.server.stop()


@pytest.mark.skipif(not SOAK, reason="six sessions of Spark, one after the other: LAZARETTO_SOAK=1")
def test_killed_at_every_step_each_row_of_a_topic_ends_once(spark: Any, kafka: str, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    topic = Topic(spark, kafka, "killed")
    topic.make()
    topic.send(*((None, line.encode(), file % 2) for file in range(FILES) for line in lines(file)))
    with make(store) as broker:
        settings = [f"{name}={value}" for name, value in source_of_kafka().items()]
        words = [str(HERE / "any_program.py"), str(store), f"{kafka}/{topic.name}", *settings]
        check(store, broker, [*SHORT, *LONG[:4]], Job(store, words=words))
