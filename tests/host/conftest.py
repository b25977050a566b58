"""Fixtures of the service host's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lazaretto
from lazaretto import Broker, PoisonPolicy, QueueOptions


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "host.db"


@pytest.fixture
def broker(store: Path) -> Iterator[Broker]:
    """A broker with a queue `work` on which a message is tried twice, and a queue `out`."""
    with lazaretto.connect(store) as broker:
        broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=1)))
        broker.create_queue("out")
        yield broker


@pytest.fixture(params=["process", "inline"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)
