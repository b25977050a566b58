"""What YARN and Kubernetes are told: the command line that Spark gets, and what Spark makes of it.

No cluster of these is here: this shows that settings reach the place where Spark hands them on.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from .cluster import submitting

PASSWORD = "postgresql://spark:tongue-twister-8@db.example.com/shop"
#: Has executors find the variable in a secret of the cluster.
SECRET = "spark.kubernetes.executor.secretKeyRef.OTHER"
#: Stands in the place of spark-submit: writes down what it is told, and keeps what is sent along.
RECORDER = """\
#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word" >> "$RECORD/words"; done
env > "$RECORD/environment"
for word in "$@"; do
    case "$word" in spark.archives=*) code=${word#spark.archives=} ;; esac
done
code=${code%%#*}
cp "$(printf '%s' "${code#file://}" | sed 's/%20/ /g')" "$RECORD/code.zip"
exit 3
"""


@pytest.fixture
def told(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[str], Path]:
    """Return the command line that `lazaretto spark run` starts Spark with, and where more is recorded."""
    (tmp_path / "spark" / "bin").mkdir(parents=True)
    script = tmp_path / "spark" / "bin" / "spark-submit"
    script.write_text(RECORDER)
    script.chmod(0o755)
    (tmp_path / "shop.py").write_text("def start(spark):\n    pass\n")
    # Spark reads a path with a space in another way.
    (tmp_path / "my files").mkdir()
    (tmp_path / "my files" / "more.py").write_text("")
    (tmp_path / "my files" / "env.zip").write_bytes(b"")
    words = [
        "--archive", "my files/env.zip", "--py-files", "my files/more.py", "--env", "ORDERS",
        "--conf", "spark.kubernetes.container.image=spark:4.3.0", "--conf", f"{SECRET}=shop:url",
    ]  # fmt: skip
    environment = submitting({
        "SPARK_HOME": str(tmp_path / "spark"), "RECORD": str(tmp_path), "ORDERS": PASSWORD,
        "TMPDIR": str(tmp_path / "my files"),
    })  # fmt: skip
    environment.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, "-m", "lazaretto", "spark", "run", "shop:start", "--master", request.param, *words],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error[spark_failed]: [JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port "
        "number. Java says why, above"
    ]
    return (tmp_path / "words").read_text().split("\0")[:-1], tmp_path


def parsed(spark: Any, words: list[str], environment: dict[str, str]) -> tuple[dict[str, str], str]:
    """Return the settings and the main class that Spark's own spark-submit makes of a command line."""
    jvm = spark._jvm
    to_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala
    listed, mapped = jvm.java.util.ArrayList(), jvm.java.util.HashMap()
    for word in words:
        listed.add(word)
    for name, value in environment.items():
        mapped.put(name, value)
    empty = jvm.scala.collection.immutable.Map
    variables = getattr(empty, "from")(to_scala(mapped))
    arguments = jvm.org.apache.spark.deploy.SparkSubmitArguments(to_scala(listed).toSeq(), variables)
    none = jvm.scala.Option.empty()
    found = jvm.org.apache.spark.deploy.SparkSubmit().prepareSubmitEnvironment(arguments, none)
    settings = {pair._1(): pair._2() for pair in found._3().getAll()}
    return settings, found._4()


@pytest.mark.parametrize("told", ["yarn", "k8s://https://boss:6443"], indirect=True)
def test_spark_submit_gets_code_packages_and_no_password(spark: Any, told: tuple[list[str], Path]) -> None:
    words, record = told
    pairs = itertools.pairwise(words)
    given = dict(word.split("=", 1) for before, word in pairs if before == "--conf")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    path = f"./lazaretto_environment/lib/{version}/site-packages"
    assert given["spark.executorEnv.PYTHONPATH"] == f"./lazaretto_code:./lazaretto_environment:{path}"
    code, archive = given["spark.archives"].split(",")
    assert code.endswith("#lazaretto_code")
    assert archive == f"{(record / 'my files' / 'env.zip').as_uri()}#lazaretto_environment"
    assert given["spark.submit.pyFiles"] == (record / "my files" / "more.py").as_uri()
    names = zipfile.ZipFile(record / "code.zip").namelist()
    assert {"shop.py", "lazaretto/spark/run_task.py", "lazaretto/store/sql/queries.sql"} <= set(names)
    # Executors elsewhere reach the driver by its own address, and run the Python of their path.
    assert "spark.driver.host" not in given
    assert f"PYSPARK_PYTHON={version}" in (record / "environment").read_text().splitlines()
    assert not any(PASSWORD in word or "tongue-twister" in word for word in words)
    # What Spark itself makes of it, for its cluster.
    settings, main = parsed(spark, words, {"HADOOP_CONF_DIR": str(record), "SPARK_HOME": str(record)})
    assert settings["spark.submit.deployMode"] == "client"
    assert settings[SECRET] == "shop:url"
    assert settings["spark.executorEnv.PYTHONPATH"] == given["spark.executorEnv.PYTHONPATH"]
    sent = settings["spark.yarn.dist.archives" if given["spark.master"] == "yarn" else "spark.archives"]
    assert [one.rpartition("#")[2] for one in sent.split(",")] == ["lazaretto_code", "lazaretto_environment"]
    assert urlsplit(sent.split(",")[1]).path == urlsplit(archive).path
    assert main == "org.apache.spark.api.python.PythonGatewayServer"
