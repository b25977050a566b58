"""Stores with older SQLites: from 3.35 on they work, and below that they are refused in one sentence.

`LAZARETTO_TEST_SQLITE` names old libraries, or the folders that they are in, with the system's separator of
paths between them. They are loaded in the place of Python's own.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import lazaretto
from lazaretto import StoreError, StoreTooNew
from lazaretto.store.sqlite import connection, schema
from lazaretto.store.sqlite.schema import QUERIES

ROOT = Path(__file__).parents[2]
LIBRARIES = [Path(one) for one in os.environ.get("LAZARETTO_TEST_SQLITE", "").split(os.pathsep) if one]
#: The last version of the schema with a table that SQLite below 3.37 does not know.
_STRICT = 24
#: What SQLite has learnt since 3.35, of what a query here might use.
LATER = (
    r"\bSTRICT\b|->>?|\bIS (NOT )?DISTINCT FROM\b|\b(RIGHT|FULL)( OUTER)? JOIN\b|\bunixepoch\("
    r"|\bjson_pretty\(|\bjsonb\w*\(|\boctet_length\(|\bconcat(_ws)?\(|\bstring_agg\(|\bformat\(|\btimediff\(|\bunhex\("
)
#: Parts of the store's tests that use most of its statements.
MODULES = [
    f"tests/store/test_{name}.py"
    for name in (
        "access", "causes", "claims", "dialogs", "message_states", "partitions", "rates", "receive",
        "repairs", "sessions", "settle", "status", "store", "topics", "transactions", "workers",
    )
]  # fmt: skip

WORK = """
import sqlite3, sys, lazaretto
print(sqlite3.sqlite_version)
with lazaretto.connect(sys.argv[1]) as broker:
    broker.sender("q").send(lazaretto.Message(b"new"))
    with broker.receiver("q") as receiver:
        receiver.complete(receiver.receive(2))
    print(broker.queue("q").counts.active, broker.check())
"""


def with_library(library: Path, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command with another SQLite than Python's own."""
    folder = library if library.is_dir() else library.parent
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=cwd, capture_output=True, text=True, timeout=900
    )


def version_of(library: Path) -> tuple[int, ...]:
    """Return the version that Python has with a library; fail if it is not taken."""
    told = with_library(library, "-c", "import sqlite3; print(sqlite3.sqlite_version)").stdout.strip()
    assert told, library
    assert told != sqlite3.sqlite_version, f"{library} is not loaded, or is Python's own"
    return tuple(map(int, told.split(".")))


@pytest.fixture(scope="module", params=[*LIBRARIES, *([] if LIBRARIES else [None])], ids=str)
def library(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        pytest.skip("LAZARETTO_TEST_SQLITE names no old SQLite")
    named: Path = request.param
    return named


def test_no_statement_needs_a_newer_sqlite() -> None:
    folder = resources.files("lazaretto.store.sqlite.migrations")
    statements = {path.name: path.read_text() for path in folder.iterdir() if path.name.endswith(".sql")}
    statements |= {name: query.sql for name, query in QUERIES.items()}
    for name, sql in statements.items():
        text = re.sub(r"--.*|'[^']*'", "", sql)
        assert re.search(LATER, text, re.IGNORECASE) is None, name
        # Only since 3.39 need there be no GROUP BY for HAVING.
        for part in text.split(";"):
            assert "HAVING" not in part or re.search(r"GROUP BY.*HAVING", part, re.DOTALL), name


def test_a_sqlite_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StoreError, match=r"expected SQLite 3\.35 or newer, got 3\.34\.1.*PostgreSQL"):
        lazaretto.connect(tmp_path / "shop.db")
    assert list(tmp_path.iterdir()) == []


def test_what_is_only_not_understood_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    lazaretto.connect(path).close()
    with contextlib.closing(sqlite3.connect(path)) as shell:
        # As a newer SQLite's schema reads for an older one.
        shell.execute("CREATE TABLE newer (a)")
        shell.execute("PRAGMA writable_schema = ON")
        shell.execute("UPDATE sqlite_master SET sql = 'CREATE TABLE newer (a) FROM3050' WHERE name = 'newer'")
        shell.commit()
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match=r"does not understand the file.*\(malformed database schema"):
        lazaretto.connect(path)
    assert path.read_bytes() == before


def test_a_store_with_strict_rates_is_brought_to_what_older_ones_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shop.db"
    steps = [step for step in schema.migrations() if step.number <= _STRICT]
    with monkeypatch.context() as older:
        older.setattr(schema, "migrations", lambda: steps)
        with lazaretto.connect(path) as broker:
            broker.create_queue("q")
            broker.sender("q").send(lazaretto.Message(b"x"))
    with contextlib.closing(sqlite3.connect(path)) as shell:
        (made,) = shell.execute("SELECT sql FROM sqlite_master WHERE name = 'lazaretto_rates'").fetchone()
        before = shell.execute("SELECT * FROM lazaretto_rates ORDER BY 1, 2, 3").fetchall()
        shell.execute("ALTER TABLE lazaretto_rates RENAME TO plain")
        shell.execute("DROP INDEX lazaretto_rates_by_start")
        strict = made.replace("WITHOUT ROWID", "STRICT, WITHOUT ROWID").replace('"', "")
        shell.execute(strict)
        shell.execute("INSERT INTO lazaretto_rates SELECT * FROM plain")
        shell.execute("DROP TABLE plain")
        shell.execute("CREATE INDEX lazaretto_rates_by_start ON lazaretto_rates (span, start)")
        shell.commit()
    lazaretto.connect(path).close()
    with contextlib.closing(sqlite3.connect(path)) as shell:
        tables = [sql for (sql,) in shell.execute("SELECT sql FROM sqlite_master WHERE sql LIKE '%STRICT%'")]
        after = shell.execute("SELECT * FROM lazaretto_rates ORDER BY 1, 2, 3").fetchall()
    assert (tables, [row[:3] for row in after]) == ([], [row[:3] for row in before])


def test_an_older_library_works_or_is_refused(library: Path, tmp_path: Path) -> None:
    path, version = tmp_path / "shop.db", version_of(library)
    with lazaretto.connect(path) as broker:
        broker.create_queue("q")
        broker.sender("q").send(lazaretto.Message(b"x"))
    done = with_library(library, "-c", WORK, str(path))
    if version < connection.OLDEST:
        assert done.returncode == 1
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("lazaretto.errors.StoreError: expected SQLite 3.35 or newer, got "), (
            done.stderr
        )
        return
    assert done.stdout.split("\n")[1] == "0 []", done
    tests = with_library(library, "-m", "pytest", "-q", "-k", "not postgres", *MODULES, cwd=ROOT)
    assert tests.returncode == 0, tests.stdout[-3000:]
