"""Where the stores are that processes are killed at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import new_store


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the address of a store, in a file and on a server in turn."""
    if request.param == "sqlite":
        yield str(tmp_path / "crash.db")
        return
    with new_store(request.getfixturevalue("postgres").url) as url:
        yield url
