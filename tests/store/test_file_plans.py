"""How queries of a file are planned: what is asked for by key is looked up, however many others there are."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import lazaretto
from lazaretto.store.sqlite.dialect import QUERIES, place


def test_letters_that_are_named_are_looked_up(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    lazaretto.connect(path).close()
    named = "select_dead_letters_named", "select_letter_keys_named", "select_frozen_named"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for name in named:
            statement, parameters = place(QUERIES[name].sql)
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * len(parameters)).fetchall()
            lines = [line for *_, line in plan]
            assert "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)" in lines, (name, lines)
