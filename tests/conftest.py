"""Settings shared by all tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from memory import memory_folder
from modules_in_turn import ModulesInTurn, name_apart, sort_long_first
from partitioned import partition_all
from servers import Server, describe, find
from stock import used_store

# What tests start imports the package again and again: compiling it once is enough.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(sys.prefix) / "pycache"))

# A shell that starts the tests in the background, and nohup, have these ignored; what tests start would
# inherit that.
for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, default)

# The folders of tests are in memory, where the commits of their stores wait for no disk.
if (memory := memory_folder()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))

settings.register_profile("tests", max_examples=60, deadline=None, derandomize=True, database=None)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server, for all tests of this process."""
    server = find()
    yield server
    server.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Refuse an error that the test before left behind as one being handled, the context of others."""
    error = sys.exception()
    assert error is None, f"an error is still being handled as a test begins: {error!r}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, lest one process is left with it in the end."""
    name_apart(items)
    sort_long_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ModulesInTurn | None:
    """Return how processes share the tests where they share them by module."""
    return ModulesInTurn(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use `queues` on partitioned ones, too: in the long form all, else those so marked."""
    if "queues" in metafunc.fixturenames:
        also = os.environ.get("LAZARETTO_SOAK") or metafunc.definition.get_closest_marker("partitioned")
        metafunc.parametrize("queues", ["plain", "partitioned"] if also else ["plain"], indirect=True)


@pytest.fixture
def queues(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Say how the queues are that a test makes."""
    kind: str = request.param
    if kind == "partitioned":
        partition_all(monkeypatch)
    return kind


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the address of a store for several processes, in a file and on a server in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'several.db'}"
        return
    with used_store(request.getfixturevalue("postgres").url) as url:
        yield url


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which server it was."""
    terminalreporter.write_line(f"PostgreSQL for the tests: {describe()}")
