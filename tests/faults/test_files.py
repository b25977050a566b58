"""A store's file in its folder: where it is, who can read it, and what if it is removed or replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lazaretto
from lazaretto import Message, StoreGone
from lazaretto.store.sqlite.store import SqliteStore


def remove(path: Path) -> None:
    path.unlink()


def rename(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def replace(path: Path) -> None:
    other = path.with_name("other.db")
    with lazaretto.connect(other) as broker:
        broker.create_queue("q")
    other.replace(path)


def remove_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def put_back_log(path: Path) -> None:
    """A backup tool that puts copies in the files' place."""
    log = Path(f"{path}-wal")
    copy = log.with_name("copy")
    shutil.copy(log, copy)
    copy.replace(log)


HARM = [remove, rename, replace, remove_log, remove_folder, put_back_log]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "store.db"


def test_a_relative_path_is_of_the_folder_of_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.chdir(second)
    with lazaretto.connect("sqlite:///store.db") as other:
        other.create_queue("other")
    monkeypatch.chdir(first)
    with lazaretto.connect("sqlite:///store.db") as broker:
        broker.create_queue("q")
        monkeypatch.chdir(second)
        seen: list[list[str]] = []
        # Each of them opens a reader of its own.
        start = threading.Barrier(4)

        def look() -> None:
            start.wait()
            seen.append([queue.path for queue in broker.queues() if not queue.path.startswith("$")])

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE own (n)")
        broker.sender("q").send(Message(b"x"))
        assert broker.facts()["path"] == str(first / "store.db")
    assert all(paths == ["q"] for paths in seen)
    with lazaretto.connect(first / "store.db", create=False) as broker:
        assert broker.queue("q").counts.active == 1


@pytest.mark.parametrize("harm", HARM)
def test_every_call_is_refused(path: Path, harm: Callable[[Path], None]) -> None:
    broker = lazaretto.connect(path)
    broker.create_queue("q")
    receiver, sender = broker.receiver("q"), broker.sender("q")
    sender.send([Message(b"1"), Message(b"2")])
    (message,) = receiver.receive()
    transaction = broker.transaction()
    transaction.execute("SELECT 1")
    harm(path)
    calls: list[Callable[[], object]] = [
        transaction.commit,
        lambda: sender.send(Message(b"lost")),
        lambda: receiver.complete(message),
        receiver.receive,
        lambda: broker.peek("q"),
        broker.queues,
        broker.facts,
        broker.check,
    ]
    for call in calls:
        with pytest.raises(StoreGone) as caught:
            call()
        assert str(path) in str(caught.value)
    broker.close()


@pytest.mark.parametrize("harm", HARM)
def test_a_receiver_that_waits_is_told(path: Path, harm: Callable[[Path], None]) -> None:
    broker = lazaretto.connect(path)
    broker.create_queue("q")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            broker.receiver("q").receive(max_wait=60)
        except StoreGone as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not broker._store.notifier.waiting:
        assert thread.is_alive()
    harm(path)
    thread.join(120)
    assert not thread.is_alive()
    assert len(errors) == 1
    broker.close()


def test_a_receiver_is_told_though_nobody_could_look_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file goes before the thread that looks after the store has opened it."""
    harmed, opened = threading.Event(), SqliteStore.version_reader

    def open_late(store: SqliteStore) -> Any:
        harmed.wait(120)
        return opened(store)

    monkeypatch.setattr(SqliteStore, "version_reader", open_late)
    broker = lazaretto.connect(path)
    broker.create_queue("q")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            broker.receiver("q").receive(max_wait=60)
        except StoreGone as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not broker._store.notifier.waiting:
        assert thread.is_alive()
    path.rename(path.with_name("elsewhere"))
    harmed.set()
    thread.join(120)
    assert not thread.is_alive()
    assert len(errors) == 1
    broker.close()


def test_a_renamed_folder_further_up_is_noticed_soon(tmp_path: Path) -> None:
    (tmp_path / "above" / "data").mkdir(parents=True)
    with lazaretto.connect(tmp_path / "above" / "data" / "store.db") as broker:
        broker.create_queue("q")
        (tmp_path / "above").rename(tmp_path / "elsewhere")
        with pytest.raises(StoreGone):
            # Nothing happened in the folder itself; the broker's own thread looks twice a second.
            broker.receiver("q").receive(max_wait=60)
        with pytest.raises(StoreGone):
            broker.sender("q").send(Message(b"x"))


def test_another_process_is_refused_too(path: Path) -> None:
    script = """
import sys, lazaretto
from lazaretto import Message
broker = lazaretto.connect(sys.argv[1])
broker.create_queue("q")
broker.sender("q").send(Message(b"x"))
print("ready", flush=True)
sys.stdin.readline()
for call in (lambda: broker.sender("q").send(Message(b"y")), broker.queues):
    try:
        call()
    except lazaretto.StoreGone as error:
        print(error.code, flush=True)
broker.close()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    replace(path)
    told, _ = other.communicate("go\n", timeout=120)
    assert told.split() == ["store_gone", "store_gone"]


def test_a_file_that_is_put_back_is_used_again(path: Path) -> None:
    with lazaretto.connect(path) as broker:
        broker.create_queue("q")
        rename(path)
        with pytest.raises(StoreGone):
            broker.sender("q").send(Message(b"x"))
        path.with_name("elsewhere.db").rename(path)
        broker.sender("q").send(Message(b"y"))
        assert [m.body for m in broker.peek("q", 10)] == [b"y"]


def test_the_file_in_its_place_is_left_alone(path: Path) -> None:
    """SQLite removes the log by its name when the last connection is closed."""
    old = lazaretto.connect(path)
    old.create_queue("old")
    for file in path.parent.iterdir():
        file.rename(path.parent.parent / file.name)
    with lazaretto.connect(path) as new:
        new.create_queue("new")
        with pytest.raises(StoreGone):
            old.queues()
        old.close()
        assert Path(f"{path}-wal").exists()
        new.sender("new").send(Message(b"x"))
    with lazaretto.connect(path, create=False) as new:
        assert new.queue("new").counts.active == 1


def test_a_new_store_is_its_owners_alone(path: Path) -> None:
    before = os.umask(0o022)
    try:
        with lazaretto.connect(path) as broker:
            broker.create_queue("q")
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {f"store.db{part}": 0o600 for part in ("", "-wal", "-shm", "-wake")}


def test_the_rights_of_a_file_that_is_there_are_kept(path: Path) -> None:
    path.touch()
    path.chmod(0o660)
    with lazaretto.connect(path) as broker:
        broker.create_queue("q")
        modes = {file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {0o660}
