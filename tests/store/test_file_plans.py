"""How queries of a file are planned: what is asked for by key is looked up, however many others there are."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import lazaretto
from lazaretto.store.sqlite.schema import QUERIES, place


def plans(path: Path, *names: str) -> dict[str, list[str]]:
    """Return how queries are planned in a new file, by name."""
    lazaretto.connect(path).close()
    found = {}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for name in names:
            statement, parameters = place(QUERIES[name].sql)
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * len(parameters)).fetchall()
            found[name] = [line for *_, line in plan]
    return found


def test_letters_that_are_named_are_looked_up(tmp_path: Path) -> None:
    named = "select_dead_letters_named", "select_letter_keys_named", "select_frozen_named"
    for name, lines in plans(tmp_path / "store.db", *named).items():
        assert "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)" in lines, (name, lines)


def test_a_breaker_and_what_is_advised_read_the_latest_failures_alone(tmp_path: Path) -> None:
    for lines in plans(tmp_path / "store.db", "select_refundable", "sum_client_failures").values():
        assert "SEARCH lazaretto_attempts USING INDEX lazaretto_attempts_by_time (ended>?)" in lines
