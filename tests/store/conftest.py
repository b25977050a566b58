"""Fixtures of the behavioural suite, which is written once and runs on every store.

A further store is one further entry of STORES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lazaretto
from lazaretto import Broker, ManualClock

#: The stores that the suite runs on: how each makes the URL of a new one within a folder.
STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder / 'store.db'}",
}

Connect = Callable[..., Broker]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that does not exist yet."""
    return STORES[request.param](tmp_path)


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
