"""One Spark session for all tests of a process: it takes seconds to start."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from stock import used_store

import lazaretto
from examples.kafka_flights.kafka import KafkaMissing, jars, kafka_broker
from lazaretto import Broker, PoisonPolicy, QueueOptions

from .cluster import IMPATIENT

if importlib.util.find_spec("pyspark") is None:
    raise pytest.UsageError("tests/spark needs Spark: `make test` installs it, or pip install -e '.[spark]'")


#: `none`: tests of Kafka and Delta are skipped, whose jars Maven brings.
KAFKA = os.environ.get("LAZARETTO_TEST_KAFKA", "")
WITHOUT_MAVEN = "; LAZARETTO_TEST_KAFKA=none leaves these tests out"


def source_of_kafka() -> dict[str, str]:
    """Return the settings by which Spark has Kafka's source, none if it cannot be had."""
    try:
        return {} if KAFKA == "none" else {"spark.jars": ",".join(map(str, jars("kafka")))}
    except KafkaMissing:
        # Tests that need it say so.
        return {}


#: Whether the Spark that runs is the one for which Delta's source is published.
HAS_DELTA = importlib.metadata.version("pyspark").startswith("4.2.")


def source_of_delta() -> dict[str, str]:
    """Return the settings by which Spark has Delta, none if it is of another Spark."""
    if not HAS_DELTA:
        return {}
    kinds = ("delta",) if KAFKA == "none" else ("delta", "kafka")
    return {
        "spark.jars": ",".join(str(jar) for kind in kinds for jar in jars(kind)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Of 50 tasks, each of which takes longer to start than to read what a small table has.
        "spark.databricks.delta.snapshotPartitions": "1",
    }


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """The address of a broker."""
    if KAFKA == "none":
        pytest.skip("LAZARETTO_TEST_KAFKA=none")
    try:
        with kafka_broker() as address:
            yield address
    except KafkaMissing as error:
        pytest.fail(f"{error}{WITHOUT_MAVEN}", pytrace=False)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from lazaretto.spark import spark_session

    # On a busy machine, Python takes longer to start than Spark waits for it.
    patience = {
        "spark.python.authenticate.socketTimeout": "300s", **source_of_kafka(), **source_of_delta()
    }  # fmt: skip
    # Hundreds of queries share this Java, whose heap keeps something of each.
    session = spark_session({"spark.driver.memory": "1536m", **patience})
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "spark.db"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test anew, five times at most, that failed because Spark did not wait for a Python process."""
    if item.path.parent != Path(__file__).parent:
        return None
    for tries_left in reversed(range(6)):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not tries_left or not any(one.failed and IMPATIENT in one.longreprtext for one in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on a file, or on the stores that its mark `stores` names."""
    if "url" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("stores")
        metafunc.parametrize("url", mark.args if mark else ("sqlite",), indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, store: Path) -> Iterator[str]:
    """The URL of the test's store."""
    if request.param == "sqlite":
        yield str(store)
        return
    with used_store(request.getfixturevalue("postgres").url) as found:
        yield found


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    """A broker with a queue `work` on which a message is tried once, and a queue `out`."""
    with lazaretto.connect(url) as broker:
        broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
        broker.create_queue("out")
        yield broker
