"""Pipelines on a standalone cluster of this machine, with its store on a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zoo
from zoo import BAD_ZOO

from lazaretto import Broker, Message

from .cluster import SPECULATION, VERSION, cluster, ended, quick_start, submitting

PASSWORD = "tongue-twister-8"
PIPELINE = """\
import os
import pathlib

from lazaretto.spark import process
from shop_handlers import book

def start(spark):
    pathlib.Path(os.environ["DRIVER"]).write_text(str(os.getpid()))
    query = process(
        spark, book, store="env:SHOP", queue="work", checkpoint="check", results="results",
        schema="n bigint", name="booking", max_rows=int(os.environ["ROWS"]), trigger={"availableNow": True},
    )
    lines = []
    for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(file.read_bytes().replace(b"\\0", b" ").decode(errors="replace"))
        except OSError:
            pass
    pathlib.Path("command-lines").write_text("\\n".join(lines))
    return query
"""
#: Two queries; between them, and where a micro-batch is planned, executors have nothing to do.
TWICE = """\
import os
import time

import lazaretto
from lazaretto.spark import process
from shop_handlers import book

def start(spark):
    executors = spark.sparkContext._jsc.sc().getExecutorIds
    for bodies in open("bodies").read().splitlines():
        with lazaretto.connect(os.environ["SHOP"]) as broker:
            broker.sender("work").send([lazaretto.Message(body.encode()) for body in bodies.split()])
        query = process(
            spark, book, store="env:SHOP", queue="work", checkpoint="check", results="results",
            schema="n bigint", max_rows=50, trigger={"availableNow": True},
        )
        query.awaitTermination()
        end = time.monotonic() + 300
        while executors().size():
            assert time.monotonic() < end
            time.sleep(0.1)
    return query
"""
ZOO = """\
from lazaretto.spark import process
from spark.acts import act_zoo

def start(spark):
    return process(
        spark, act_zoo, store="env:SHOP", queue="work", checkpoint="check", results="results",
        schema="n bigint", name="zoo", deadline=4.0, memory=200_000_000, breaker=None,
    )
"""
HANDLERS = """\
import os
import pathlib
import signal

AGAIN = 10_000

def book(message):
    if message.body == b"bad":
        raise ValueError("no")
    if message.body[:1] == b"/":
        marker = pathlib.Path(message.body.decode())
        try:
            file = marker.open("x")
        except FileExistsError:
            return {"n": AGAIN} if marker.name == "freeze" else None
        if marker.name == "freeze":
            pids = above("CoarseGrainedExecutorBackend")
            file.write(" ".join(map(str, pids)))
            file.close()
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            raise ValueError("woken")
        os.kill(target(marker.name), signal.SIGKILL)
    return {"n": int(message.body)}

def target(what):
    if what == "driver":
        return int(pathlib.Path(os.environ["DRIVER"]).read_text())
    return above({"worker": "pyspark.daemon", "executor": "CoarseGrainedExecutorBackend"}[what])[0]

def above(what):
    pids = [os.getpid()]
    while what.encode() not in pathlib.Path(f"/proc/{pids[0]}/cmdline").read_bytes():
        pids[:0] = [int(pathlib.Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])]
    return pids
"""
#: What the handler returns of a message that an earlier attempt was frozen with.
AGAIN = 10_000
SOAK = "LAZARETTO_SOAK" in os.environ
#: What is killed, one after the other. After the driver another session has to begin.
KILLED = ("worker", "executor", "driver") if SOAK else ("worker", "executor")

pytestmark = pytest.mark.stores("postgres")
of_soak = pytest.mark.skipif(not SOAK, reason="a cluster of processes: LAZARETTO_SOAK=1")


class Submitted:
    """A pipeline that `lazaretto spark run` sends to a cluster."""

    def __init__(self, folder: Path, url: str, rows: int = 100_000, pipeline: str = PIPELINE) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(pipeline)
        # Where the driver finds it, and no executor.
        (folder / "driver").mkdir()
        (folder / "driver" / "shop_handlers.py").write_text(HANDLERS)
        (folder / "events").mkdir()
        self._url = url.replace("lazaretto@", f"lazaretto:{PASSWORD}@")
        self._rows = rows

    def start(self, master: str, *words: str, path: str = "", **settings: str) -> subprocess.Popen[str]:
        wanted = {
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "600m", "spark.executor.memory": "512m", "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false", "spark.python.authenticate.socketTimeout": "300s",
            "spark.lazaretto.executorWait": "300", "spark.executor.extraJavaOptions": quick_start(),
            "spark.eventLog.dir": f"file://{self.folder}/events",
        } | settings  # fmt: skip
        conf = [word for name, value in wanted.items() for word in ("--conf", f"{name}={value}")]
        environment = submitting(
            {"SHOP": self._url, "ROWS": str(self._rows), "DRIVER": str(self.folder / "driver.pid")}
        )
        environment["PYTHONPATH"] += f"{os.pathsep}{self.folder / 'driver'}{os.pathsep}{path}"
        run = [sys.executable, "-m", "lazaretto", "spark", "run", "shop:start", "--master", master]
        return subprocess.Popen(
            [*run, *conf, *words],
            cwd=self.folder, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, master: str, *words: str, timeout: float, **how: str) -> tuple[int, str, str]:
        """Run it to its end; return its exit code, and what it printed."""
        with ended(self.start(master, *words, **how)) as running:
            output, errors = running.communicate(timeout=timeout)
        return running.returncode, output, errors

    def run_to_end(self, master: str, *words: str, times: int = 5) -> None:
        """Run it until it ends well, as whoever starts a driver again that was killed."""
        for _ in range(times):
            code, _, errors = self.run(master, *words, timeout=580, **SPECULATION)
            if code == 0:
                break
        assert code == 0, errors

    def results(self) -> list[int]:
        files = sorted(self.folder.rglob("results/**/part-*.parquet"))
        return sorted(n for file in files for n in pq.read_table(file, partitioning=None)["n"].to_pylist())

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return what Spark has logged of a kind."""
        files = [file for file in (self.folder / "events").rglob("*") if file.is_file()]
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines() if kind in line]
        return [line for line in lines if line["Event"] == kind]

    def files_with(self, text: str) -> list[Path]:
        return [
            file
            for file in self.folder.rglob("*")
            if file.is_file() and file.suffix not in (".zip", ".so") and text.encode() in file.read_bytes()
        ]


@of_soak
def test_executors_get_code_and_the_password_and_nobody_else_does(
    broker: Broker, url: str, tmp_path: Path
) -> None:
    broker.sender("work").send([*(Message(b"%d" % n) for n in range(200)), Message(b"bad")])
    job = Submitted(tmp_path, url)
    with cluster(tmp_path) as master:
        handlers = str(tmp_path / "driver" / "shop_handlers.py")
        code, output, errors = job.run(master, "--env", "SHOP", "--py-files", handlers, timeout=400)
    assert (code, output) == (0, "booking: 201 messages\n"), errors
    assert job.results() == list(range(200))
    counts = broker.queue("work").counts
    assert counts.total == counts.dead_letter == 1
    assert any("CoarseGrainedExecutorBackend" in line for line in _commands(tmp_path))
    # Its name is known, so these are the files that would have it.
    assert {"events", "work-0"} <= {file.relative_to(tmp_path).parts[0] for file in job.files_with("booking")}
    assert not job.files_with(PASSWORD)
    assert PASSWORD not in output + errors


@of_soak
def test_executors_get_all_packages_from_an_archive(
    broker: Broker, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.sender("work").send([Message(b"%d" % n) for n in range(200)])
    job = Submitted(tmp_path, url)
    handlers = str(tmp_path / "driver" / "shop_handlers.py")
    (tmp_path / "my folder").mkdir()
    archive = str(tmp_path / "my folder" / "environment.zip")
    pack = [sys.executable, "-m", "lazaretto", "spark", "pack", archive]
    assert subprocess.run(pack, env=submitting({}), timeout=300).returncode == 0
    words = ["--env", "SHOP", "--py-files", handlers]
    with cluster(tmp_path) as master:
        # The machines' own Python, by its name on their path, has no packages.
        with monkeypatch.context() as without:
            without.setenv("PYSPARK_PYTHON", f"python{VERSION}")
            code, _, errors = job.run(master, *words, timeout=400)
        assert (code, "lacks a package" in errors) == (1, True), errors
        assert broker.claims("work") == []
        code, output, errors = job.run(master, "--archive", archive, *words, timeout=400)
    assert (code, output) == (0, "booking: 200 messages\n"), errors
    assert job.results() == list(range(200))


def test_whatever_is_killed_each_message_is_settled_once(broker: Broker, url: str, tmp_path: Path) -> None:
    killers = [tmp_path / "killed" / name for name in KILLED]
    killers[0].parent.mkdir()
    bodies = [b"%d" % n for n in range(100 * len(killers))]
    for number, marker in enumerate(killers):
        bodies[100 * number + 40] = os.fsencode(marker)
    broker.sender("work").send([Message(body) for body in bodies])
    job = Submitted(tmp_path, url, rows=50)
    with cluster(tmp_path, workers=2 if SOAK else 1, cores=1) as master:
        handlers = str(tmp_path / "driver" / "shop_handlers.py")
        words = ["--env", "SHOP", "--env", "DRIVER", "--py-files", handlers]
        job.run_to_end(master, *words)
    assert all(marker.exists() for marker in killers)
    assert job.results() == [n for n, body in enumerate(bodies) if body[:1] != b"/"]
    assert broker.queue("work").counts.total == 0


@of_soak
def test_an_executor_frozen_until_its_work_was_done_elsewhere(
    broker: Broker, url: str, tmp_path: Path
) -> None:
    marker = tmp_path / "killed" / "freeze"
    marker.parent.mkdir()
    bodies = [b"%d" % n for n in range(200)]
    bodies[120] = os.fsencode(marker)
    broker.sender("work").send([Message(body) for body in bodies])
    job = Submitted(tmp_path, url)
    with cluster(tmp_path, workers=2, cores=1) as master:
        handlers = str(tmp_path / "driver" / "shop_handlers.py")
        with ended(job.start(master, "--env", "SHOP", "--py-files", handlers, **SPECULATION)) as running:
            end = time.monotonic() + 580
            try:
                while not any(claim.state == "settled" for claim in broker.claims("work")):
                    assert running.poll() is None, running.communicate()[1]
                    assert time.monotonic() < end
                    time.sleep(0.1)
            finally:
                for pid in marker.read_text().split() if marker.exists() else ():
                    os.kill(int(pid), signal.SIGCONT)
            _, errors = running.communicate(timeout=580)
    assert running.returncode == 0, errors
    # The first attempt would have failed the message; the second, which was settled, completed it.
    assert job.results() == [*(n for n in range(200) if n != 120), AGAIN]
    assert broker.queue("work").counts.total == 0
    assert any(event["Task Info"]["Speculative"] for event in job.events("SparkListenerTaskStart"))


@of_soak
def test_executors_come_and_go_as_spark_likes(broker: Broker, url: str, tmp_path: Path) -> None:
    killer = tmp_path / "killed" / "executor"
    killer.parent.mkdir()
    bodies = [str(n) for n in range(300)]
    bodies[240] = str(killer)
    job = Submitted(tmp_path, url, pipeline=TWICE)
    (tmp_path / "bodies").write_text("\n".join(" ".join(half) for half in (bodies[:150], bodies[150:])))
    with cluster(tmp_path, workers=2, cores=1) as master:
        handlers = str(tmp_path / "driver" / "shop_handlers.py")
        settings = {
            "spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.minExecutors": "0",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.executorIdleTimeout": "1s", **SPECULATION,
        }  # fmt: skip
        words = ["--env", "SHOP", "--env", "DRIVER", "--py-files", handlers]
        code, _, errors = job.run(master, *words, timeout=900, **settings)
    assert code == 0, errors
    assert killer.exists()
    assert job.results() == [n for n in range(300) if n != 240]
    assert broker.queue("work").counts.total == 0
    # Spark ended those that had nothing to do, before the second query began and after it; one was killed.
    removed = [event["Removed Reason"] for event in job.events("SparkListenerExecutorRemoved")]
    assert sum("killed by driver" in reason for reason in removed) >= 2, removed
    assert any("137" in reason for reason in removed), removed
    # One that comes when the driver is about to end is not removed any more.
    assert len(job.events("SparkListenerExecutorAdded")) >= len(removed) >= 3


@of_soak
def test_a_zoo_on_a_cluster_fails_no_task(broker: Broker, url: str, tmp_path: Path) -> None:
    total, every = 2_000, 60
    bad = {n: BAD_ZOO[n // every % len(BAD_ZOO)] for n in range(every // 2, total, every)}
    bodies = [bad[n].encode() if n in bad else b"good" for n in range(total)]
    numbers = broker.sender("work").send([Message(body) for body in bodies])
    job = Submitted(tmp_path, url, pipeline=ZOO)
    root = str(Path(__file__).parents[1])
    with cluster(tmp_path, workers=2, cores=1) as master:
        # The handler's module, and the zoo, as they are installed on executors.
        settings = {"spark.executorEnv.PYTHONPATH": root, "spark.executor.cores": "1"}
        code, _, errors = job.run(master, "--env", "SHOP", timeout=900, path=root, **settings)
    assert code == 0, errors
    ends = [event["Task End Reason"]["Reason"] for event in job.events("SparkListenerTaskEnd")]
    assert set(ends) == {"Success"}
    assert job.results() == [number for n, number in enumerate(numbers) if n not in bad]
    dead = {letter.sequence_number: letter for letter in broker.dead_letters("work")}
    assert set(dead) == {numbers[n] for n in bad}
    for n, kind in bad.items():
        _, status, error, _stack = zoo.ZOO[kind]
        letter = dead[numbers[n]]
        assert letter.reason == zoo.REASONS[status], kind
        assert (letter.error_type or "").endswith(error or "?"), kind


def _commands(folder: Path) -> list[str]:
    return (folder / "command-lines").read_text().splitlines()
