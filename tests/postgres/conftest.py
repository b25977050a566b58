"""A store on the server, for each test its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import Server, new_store


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    """Return the address of a store that is dropped behind the test."""
    with new_store(postgres.url) as found:
        yield found
