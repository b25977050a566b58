"""A store on the server, for each test its own, and two hosts on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import Server, new_store

import lazaretto
from lazaretto import Broker, ManualClock, QueueOptions

from .witness import Witness


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    """Return the address of a store that is dropped behind the test."""
    with new_store(postgres.url) as found:
        yield found


@pytest.fixture
def witness(postgres: Server) -> Iterator[Witness]:
    found = Witness(postgres)
    yield found
    found.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hosts(url: str, witness: Witness, clock: ManualClock) -> Iterator[tuple[Broker, Broker]]:
    """Two processes' brokers on one store; the first one is watched."""
    with (
        lazaretto.connect(witness.url(url), clock=clock) as one,
        lazaretto.connect(url, clock=clock) as other,
    ):
        one.create_queue("work", QueueOptions(lock_duration=30))
        one.create_queue("other")
        yield one, other
