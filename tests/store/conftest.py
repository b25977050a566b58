"""Fixtures of the behavioural suite, which is written once and runs on every store.

A further store is one further entry of STORES. Some modules run with all queues partitioned, too; the long
form runs all modules so, and nothing else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from partitioned import not_promised, partition_all
from stock import used_store

import lazaretto
from lazaretto import Broker, ManualClock

#: The stores that the suite runs on.
STORES = ("sqlite", "postgres")
#: What a store's name ends with where all queues are partitioned.
PARTITIONED = "-partitioned"
#: The modules that are run so in the gate.
ALSO_PARTITIONED = (
    "test_delete_messages",
    "test_poison_sessions",
    "test_policy_halt",
    "test_purged_letters",
    "test_receive_by_number",
)
_SOAK = os.environ.get("LAZARETTO_SOAK") == "1"

Connect = Callable[..., Broker]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every store, or on those alone that its mark `stores` names."""
    if "url" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("stores")
    stores = list(mark.args if mark else STORES)
    partitioned = [f"{store}{PARTITIONED}" for store in stores]
    module = metafunc.module.__name__.rpartition(".")[2]
    if _SOAK:
        stores = partitioned
    elif module in ALSO_PARTITIONED:
        stores += partitioned
    metafunc.parametrize("url", stores, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what relies on what partitions do not promise."""
    for item in items:
        what = not_promised(item.nodeid) if PARTITIONED in item.nodeid else None
        if what is not None:
            item.add_marker(pytest.mark.skip(reason=f"not promised with partitions: {what}"))


@pytest.fixture(scope="session")
def new_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new store's file: to copy it takes a third of what it takes to make one."""
    file = tmp_path_factory.mktemp("new") / "store.db"
    lazaretto.connect(file, clock=ManualClock()).close()
    return file


@pytest.fixture
def url(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, new_file: Path
) -> Iterator[str]:
    """The URL of a store that is as new."""
    if request.param.endswith(PARTITIONED):
        partition_all(monkeypatch)
    if request.param.startswith("sqlite"):
        yield f"sqlite:///{shutil.copyfile(new_file, tmp_path / 'store.db')}"
        return
    with used_store(request.getfixturevalue("postgres").url) as found:
        yield found


@pytest.fixture
def connect(request: pytest.FixtureRequest, url: str, clock: ManualClock) -> Iterator[Connect]:
    """Open a broker on the test's store, with the test's clock; every one is closed in the end."""
    opened: list[Broker] = []

    def connect(**options: Any) -> Broker:
        opened.append(lazaretto.connect(url, **{"clock": clock, **options}))
        return opened[-1]

    yield connect
    for broker in opened:
        broker.close()


@pytest.fixture
def broker(connect: Connect) -> Broker:
    return connect()
