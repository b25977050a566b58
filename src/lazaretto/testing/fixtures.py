"""Fixtures for pytest: put `pytest_plugins = ["lazaretto.testing.fixtures"]` into your conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lazaretto.broker import Broker
from lazaretto.model.clock import ManualClock
from lazaretto.testing.brokers import temporary_broker


@pytest.fixture
def lazaretto_clock() -> ManualClock:
    """The clock of `lazaretto_broker`, which stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
def lazaretto_broker(lazaretto_clock: ManualClock) -> Iterator[Broker]:
    """A broker without queues, on a store of the test's own."""
    with temporary_broker(clock=lazaretto_clock) as broker:
        yield broker
