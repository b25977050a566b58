"""Settings shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from servers import Server, describe, find

settings.register_profile("tests", max_examples=60, deadline=None, derandomize=True, database=None)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server, for all tests of this process."""
    server = find()
    yield server
    server.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which server it was."""
    terminalreporter.write_line(f"PostgreSQL for the tests: {describe()}")
