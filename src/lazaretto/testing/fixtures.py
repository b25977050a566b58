"""Fixtures for pytest: put `pytest_plugins = ["lazaretto.testing.fixtures"]` into your conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lazaretto.broker.broker import Broker
from lazaretto.model.clock import ManualClock
from lazaretto.testing.hosts import temporary_broker
from lazaretto.testing.service_bus import LocalEmulator, ServiceBus


@pytest.fixture
def lazaretto_clock() -> ManualClock:
    """The clock of `lazaretto_broker`, which stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
def lazaretto_broker(lazaretto_clock: ManualClock) -> Iterator[Broker]:
    """A broker without queues, on a store of the test's own."""
    with temporary_broker(clock=lazaretto_clock) as broker:
        yield broker


@pytest.fixture(scope="session")
def lazaretto_config() -> Path | None:
    """The Config.json of `lazaretto_service_bus`: give one of your own by a fixture of this name."""
    return None


@pytest.fixture(scope="session")
def lazaretto_emulator(lazaretto_config: Path | None) -> Iterator[LocalEmulator]:
    """An emulator of Service Bus for all tests of a run."""
    with LocalEmulator(lazaretto_config) as emulator:
        yield emulator


@pytest.fixture
def lazaretto_service_bus(lazaretto_emulator: LocalEmulator) -> Iterator[ServiceBus]:
    """The connection string of a namespace of the test's own."""
    with lazaretto_emulator.namespace() as bus:
        yield bus
