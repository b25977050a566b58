"""Reading from a standby."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest
from servers import Server, start, start_standby

import lazaretto


@pytest.fixture
def primary() -> Iterator[Server]:
    server = start()
    yield server
    server.stop()


def _wait_for(standby: Server, rows: int) -> None:
    """Wait until a standby has replayed so many inserts."""
    end = time.monotonic() + 120
    with psycopg.connect(standby.url, autocommit=True) as connection:
        while connection.execute("SELECT count(*) FROM own").fetchone() != (rows,):
            assert time.monotonic() < end
            time.sleep(0.01)


def test_the_mark_of_commits_tells_of_one_that_began_before_others(primary: Server) -> None:
    lazaretto.connect(primary.url).close()
    oldest, first, second = (psycopg.connect(primary.url) for _ in range(3))
    with oldest, first, second:
        second.execute("CREATE TABLE own (number INTEGER)")
        second.commit()
        # While this one is open, the snapshot of a standby keeps the text that it has.
        oldest.execute("INSERT INTO own VALUES (0)")
        standby = start_standby(primary)
        try:
            with lazaretto.connect(standby.url, create=False) as reader:
                first.execute("INSERT INTO own VALUES (1)")
                second.execute("INSERT INTO own VALUES (2)")
                second.commit()
                _wait_for(standby, 1)
                before = reader._store.mark_of_commits()
                first.commit()
                _wait_for(standby, 2)
                assert before is not None
                assert reader._store.mark_of_commits() != before
        finally:
            standby.stop()
