"""Fixtures of spreads: several stores, in files and on a server in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import new_store

from lazaretto import QueueOptions
from lazaretto.spread import SpreadBroker, connect

STORES = 3

Open = Callable[..., SpreadBroker]


@pytest.fixture(params=["sqlite", "postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """The addresses of stores that do not exist yet."""
    if request.param == "sqlite":
        yield [f"sqlite:///{tmp_path / f'store-{place}.db'}" for place in range(STORES)]
        return
    server = request.getfixturevalue("postgres")
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(new_store(server.url)) for _ in range(STORES)]


@pytest.fixture
def spread(urls: list[str]) -> Iterator[SpreadBroker]:
    """A spread at home in its first store, with a queue."""
    with connect(urls, home=0) as found:
        found.each(lambda broker: broker.create_queue("orders", QueueOptions(partitions=6)))
        yield found
