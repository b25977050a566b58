"""The loader of named queries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import pytest

from lazaretto.store.postgres import dialect as postgres
from lazaretto.store.sql.query_files import First, Query, Words, load_queries, with_rows
from lazaretto.store.sql.statements import Statement
from lazaretto.store.sqlite import schema as sqlite

NO_WORDS = Words({}, {})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "queries_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, folder.name, raising=False)
    return folder


def texts(package: Path, words: Words = NO_WORDS) -> dict[str, str]:
    found = load_queries((package.name, "queries.sql"), words=words)
    return {name: query.sql for name, query in found.items()}


def test_names_purposes_and_texts(package: Path) -> None:
    (package / "queries.sql").write_text(
        "-- A heading.\n\n-- == part ==\n\n"
        "-- name: one\n-- What it is for.\nSELECT 1\n\n"
        "-- name: two\n-- What it is for,\n-- in two lines.\nSELECT 2\nFROM t\n"
    )
    assert texts(package) == {"one": "SELECT 1", "two": "SELECT 2\nFROM t"}


def test_a_name_that_stands_twice(package: Path) -> None:
    (package / "queries.sql").write_text("-- name: a\n-- x\nSELECT 1\n\n-- name: a\n-- y\nSELECT 2\n")
    with pytest.raises(ValueError, match="query 'a' stands twice"):
        texts(package)


def test_a_part_stands_in_all_queries_that_name_it(package: Path) -> None:
    (package / "queries.sql").write_text(
        "-- part: a\n-- x\n[of]\n\n"
        "-- name: b\n-- y\nSELECT ([a]), ([c])\n\n"
        "-- part: of\n-- x\nSELECT 1\n\n"
        "-- name: c\n-- z\nVALUES [rows] ()\n"
    )
    assert texts(package) == {
        "b": "SELECT (SELECT 1), ([c])",
        "c": "VALUES [rows] ()",
    }


def test_rows_are_repeated() -> None:
    sql = "INSERT INTO t VALUES [rows] (:a, CAST(:b AS TEXT))"
    repeated = "INSERT INTO t VALUES (:a_0, CAST(:b_0 AS TEXT)), (:a_1, CAST(:b_1 AS TEXT))"
    assert with_rows(sql, 2) == repeated


def test_words_are_said_in_full(package: Path) -> None:
    (package / "queries.sql").write_text(
        "-- name: a\n-- x\nSELECT [sum k, 2] FROM t [hint i] WHERE state = {READY} AND a[1] = 1\n"
    )
    words = Words({"sum": "({0} + {1})", "hint": ""}, {"READY": 1})
    assert texts(package, words) == {"a": "SELECT (k + 2) FROM t  WHERE state = 1 AND a[1] = 1"}


def test_a_word_that_is_not_known(package: Path) -> None:
    (package / "queries.sql").write_text("-- name: a\n-- x\nSELECT [sum k, 2]\n")
    with pytest.raises(ValueError, match=r"\[sum k, 2\]"):
        texts(package)


def test_a_query_says_whether_locks_are_written_first(package: Path) -> None:
    (package / "queries.sql").write_text(
        "-- name: a\n-- x\n-- locks: written first\nSELECT 1\n\n"
        "-- name: b\n-- x\n-- locks: not looked at\nSELECT 1\n\n"
        "-- name: c\n-- x\nSELECT 1\n\n"
        "-- name: d\n-- x\n-- locks: its own written first\nSELECT :key\n"
    )
    said = {name: query.locks_first for name, query in load_queries((package.name, "queries.sql")).items()}
    assert said == {"a": First.ALL, "b": First.NONE, "c": None, "d": First.OWN}


@pytest.mark.parametrize("said", ["locks: perhaps", "claims: its own written first"])
def test_what_a_query_says_of_locks_is_one_of_few_things(package: Path, said: str) -> None:
    (package / "queries.sql").write_text(f"-- name: a\n-- x\n-- {said}\nSELECT 1\n")
    with pytest.raises(ValueError, match=repr(said.partition(": ")[2])):
        texts(package)


class TestParameters:
    SQL = "SELECT a::text FROM t WHERE b = :b AND c > :now AND d > :now AND e = :e"
    VALUES: ClassVar = {"b": 1, "now": 2, "e": 3, "more": 4}

    def test_of_sqlite(self) -> None:
        statement = Statement(Query(self.SQL), sqlite.place)
        assert statement.sql == "SELECT a::text FROM t WHERE b = ? AND c > ? AND d > ? AND e = ?"
        assert statement.pick(self.VALUES) == (1, 2, 2, 3)

    def test_of_postgresql(self) -> None:
        statement = Statement(Query(self.SQL), postgres.place)
        assert statement.sql == "SELECT a::text FROM t WHERE b = $1 AND c > $2 AND d > $2 AND e = $3"
        assert statement.pick(self.VALUES) == (1, 2, 3)

    @pytest.mark.parametrize(("sql", "picked"), [("SELECT 1", ()), ("SELECT :b", (1,))])
    def test_few(self, sql: str, picked: tuple[int, ...]) -> None:
        assert Statement(Query(sql), sqlite.place).pick(self.VALUES) == picked
