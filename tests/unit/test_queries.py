"""The loader of named queries."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lazaretto.store.sql.query_files import load_queries, with_rows


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "queries_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, folder.name, raising=False)
    return folder


def test_names_purposes_and_texts(package: Path) -> None:
    (package / "queries.sql").write_text(
        "-- A heading.\n\n-- == part ==\n\n"
        "-- name: one\n-- What it is for.\nSELECT 1\n\n"
        "-- name: two\n-- What it is for,\n-- in two lines.\nSELECT 2\nFROM t\n"
    )
    assert load_queries(package.name) == {"one": "SELECT 1", "two": "SELECT 2\nFROM t"}


def test_a_name_that_stands_twice(package: Path) -> None:
    (package / "queries.sql").write_text("-- name: a\n-- x\nSELECT 1\n\n-- name: a\n-- y\nSELECT 2\n")
    with pytest.raises(ValueError, match="query 'a' stands twice"):
        load_queries(package.name)


def test_a_part_stands_in_the_queries_behind_it(package: Path) -> None:
    (package / "queries.sql").write_text(
        "-- part: a\n-- x\nSELECT 1\n\n"
        "-- name: b\n-- y\nSELECT ([a]), ([c])\n\n"
        "-- name: c\n-- z\nVALUES [rows] ()\n"
    )
    assert load_queries(package.name) == {
        "b": "SELECT (SELECT 1), ([c])",
        "c": "VALUES [rows] ()",
    }


def test_rows_are_repeated() -> None:
    assert with_rows("INSERT INTO t VALUES [rows] (?, ?)", 3) == "INSERT INTO t VALUES (?, ?), (?, ?), (?, ?)"
