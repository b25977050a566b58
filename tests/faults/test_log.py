"""The write-ahead log of a file: kept short, and copied only by whoever holds the right to write."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import lazaretto
from lazaretto import Message, QueueOptions
from lazaretto.cli import main
from lazaretto.store.sqlite import connection as log
from lazaretto.store.sqlite.connection import has_reset_bug
from lazaretto.store.sqlite.store import SqliteStore

#: A thousand pages, and what two stores may add between two looks of each, in bytes.
_SHORT = 4 * 1024 * 1024 + 2 * log._LOOK_EVERY * 600_000


def length(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with lazaretto.connect(path) as broker:
        broker.create_queue("q", QueueOptions(max_message_size=1_000_000))
    return path


def store_of(broker: lazaretto.Broker) -> SqliteStore:
    assert isinstance(broker._store, SqliteStore)
    return broker._store


def fill(broker: lazaretto.Broker, megabytes: int) -> None:
    with broker.sender("q") as sender:
        for _ in range(megabytes * 2):
            sender.send(Message(b"x" * 500_000))


def test_the_log_stays_short(path: Path) -> None:
    with lazaretto.connect(path) as broker:
        fill(broker, 30)
        assert length(path) < _SHORT
        assert path.stat().st_size > 24 * 1024 * 1024
        assert broker.check() == []


def test_the_log_stays_short_where_several_write(path: Path) -> None:
    with lazaretto.connect(path) as one, lazaretto.connect(path) as other:
        for _ in range(10):
            fill(one, 1)
            with other.transaction() as tx:
                tx.execute("SELECT 1")
                for _ in range(3):
                    tx.send("q", Message(b"x" * 500_000))
        assert length(path) < _SHORT
        assert one.check() == other.check() == []


def test_the_log_is_short_again_once_an_old_reader_is_gone(path: Path) -> None:
    with lazaretto.connect(path) as broker:
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM lazaretto_messages").fetchall()
        fill(broker, 20)
        long = length(path)
        assert long > 18 * 1024 * 1024
        reader.close()
        fill(broker, 60)
        assert length(path) < 2 * long
        fill(broker, 10)
        looking = sqlite3.connect(path)
        _, pages, _ = looking.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        looking.close()
        assert pages < _SHORT // 4096


def test_only_who_may_write_copies_the_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is made while its process is in a transaction, so that nobody else is in one."""
    with lazaretto.connect(path) as broker:
        store = store_of(broker)
        fill(broker, 5)
        made: list[bool] = []
        copy = store._log.copy

        def seen() -> None:
            other = sqlite3.connect(path, isolation_level=None, timeout=0)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            other.close()
            copy()
            made.append(True)

        monkeypatch.setattr(store._log, "copy", seen)
        fill(broker, 12)
        assert 1 <= len(made) <= 5
        assert store._connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


def test_processes_that_write_at_once(path: Path) -> None:
    script = """
import sys, lazaretto
from lazaretto import Message
with lazaretto.connect(sys.argv[1]) as broker:
    for number in range(60):
        broker.sender("q").send([Message(b"x" * 60_000) for _ in range(4)])
"""
    others = [subprocess.Popen([sys.executable, "-c", script, str(path)]) for _ in range(3)]
    assert [other.wait(120) for other in others] == [0, 0, 0]
    with lazaretto.connect(path) as broker:
        assert broker.check() == []
        assert broker.queue("q").counts.active == 720


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 53, 0), False),
    ],
)
def test_which_versions_have_the_bug(version: tuple[int, int, int], expected: bool) -> None:
    assert has_reset_bug(version) is expected


def test_the_doctor_says_which_sqlite_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--store", str(path), "doctor"]) == 0
    has = "with" if has_reset_bug(sqlite3.sqlite_version_info) else "without"
    assert f"{sqlite3.sqlite_version}, {has} the WAL-reset bug" in capsys.readouterr().out
