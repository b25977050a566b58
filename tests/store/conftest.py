"""Fixtures of the behavioural suite, which is written once and runs on every store.

A further store is one further entry of STORES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import new_store

import lazaretto
from lazaretto import Broker, ManualClock

#: The stores that the suite runs on.
STORES = ("sqlite", "postgres")

Connect = Callable[..., Broker]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every store, or on those alone that its mark `stores` names."""
    if "url" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("stores")
        metafunc.parametrize("url", mark.args if mark else STORES, indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store that does not exist yet."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    with new_store(request.getfixturevalue("postgres").url) as found:
        yield found


@pytest.fixture
def connect(url: str, clock: ManualClock) -> Iterator[Connect]:
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
