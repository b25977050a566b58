"""Several processes on one file: they write in line and wake each other, whoever is killed where."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lazaretto
from lazaretto import Message, StoreBusy, StoreError
from lazaretto.broker.broker import store_of
from lazaretto.store.sqlite import wake_file
from lazaretto.store.sqlite.store import SqliteStore
from lazaretto.store.sqlite.wake_file import READERS, WRITERS, WakeFile, wake_file_of

from .line_child import POINTS, QUEUE

pytestmark = pytest.mark.skipif(not wake_file.is_there(), reason="naps and polls are tested everywhere")

CHILD = Path(__file__).with_name("line_child.py")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with lazaretto.connect(tmp_path / "store.db") as broker:
        broker.create_queue(QUEUE)
    return tmp_path / "store.db"


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def run(role: str, name: str = "", argument: object = "", *, until: str = "") -> subprocess.Popen[str]:
        words = [sys.executable, str(CHILD), role, str(path), name, str(argument)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert not until or process.stdout.readline().strip() == until
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def _wake_file(broker: lazaretto.Broker) -> WakeFile:
    store = store_of(broker)
    assert isinstance(store, SqliteStore)
    assert store._wake_file is not None
    return store._wake_file


def _await(met: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not met():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_four_processes_lose_nothing_and_get_nothing_twice(path: Path, start: Start) -> None:
    count = 40
    processes = [start("cycle", name, count) for name in "abcd"]
    got = [line for process in processes for line in process.communicate(timeout=120)[0].split()]
    assert sorted(got) == sorted(f"{name}-{number}" for name in "abcd" for number in range(count))


@pytest.mark.parametrize("point", POINTS)
def test_a_sender_that_is_killed_holds_nobody_up(path: Path, start: Start, point: str) -> None:
    """Another process waits in line for the one that dies, and a third for its message."""
    with lazaretto.connect(path) as broker:
        reader = start("read", until="ready")
        _await(lambda: _wake_file(broker).waiting(READERS))
        holder = start("hold", until="held") if point == "in line" else None
        dying = start("send", "dying", point, until="ready")
        assert dying.wait(120) == -signal.SIGKILL
        if holder is not None:
            holder.communicate("")
        broker.sender(QUEUE).send(Message(b"living"))
        assert reader.stdout is not None
        committed = point not in ("begun", "in line")
        got = [reader.stdout.readline().strip() for _ in range(1 + committed)]
        assert sorted(got) == ["dying", "living"][not committed :]
        # What the dead have said of themselves is cleared away.
        _await(lambda: not _wake_file(broker).waiting(WRITERS))


def test_who_stands_in_line_goes_on_when_the_holder_is_killed(path: Path, start: Start) -> None:
    holder = start("hold", until="held")
    senders = [start("send", name, until="ready") for name in "ab"]
    with lazaretto.connect(path) as broker:
        _await(lambda: len(_wake_file(broker).waiting(WRITERS)) == 2)
        holder.kill()
        for sender in senders:
            assert sender.communicate(timeout=120)[0].strip() == "sent"
        assert broker.queue(QUEUE).counts.active == 2


def test_the_wait_in_line_ends_in_time(path: Path, start: Start) -> None:
    with lazaretto.connect(path, timeout=0.2) as broker:
        holder = start("hold", until="held")
        with pytest.raises(StoreBusy):
            broker.sender(QUEUE).send(Message(b""))
        assert not _wake_file(broker).waiting(WRITERS)
        holder.communicate("")
        broker.sender(QUEUE).send(Message(b""))


def test_readers_that_were_killed_are_forgotten(path: Path, start: Start) -> None:
    with lazaretto.connect(path) as broker:
        readers = [start("read", until="ready") for _ in range(2)]
        _await(lambda: len(_wake_file(broker).waiting(READERS)) == 2)
        readers[0].kill()
        readers[0].wait()
        for number in range(3):
            broker.sender(QUEUE).send(Message(b"%d" % number))
        assert readers[1].stdout is not None
        assert [readers[1].stdout.readline().strip() for _ in range(3)] == ["0", "1", "2"]
        _await(lambda: len(_wake_file(broker).waiting(READERS)) == 1)
        # Its slot is free.
        again = WakeFile(path)
        assert again.slot not in (_wake_file(broker).slot, *_wake_file(broker).waiting(READERS))
        again.close()


def test_a_forked_child_leaves_its_parents_slot_alone(path: Path) -> None:
    with lazaretto.connect(path) as broker, lazaretto.connect(path) as other:
        pid = os.fork()
        if not pid:
            try:
                broker.sender(QUEUE).send(Message(b"from the child"))
            except StoreError:
                broker.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        thread = threading.Timer(0.05, lambda: other.sender(QUEUE).send(Message(b"after the fork")))
        thread.start()
        with broker.receiver(QUEUE) as receiver:
            (message,) = receiver.receive(max_wait=120)
        assert message.body == b"after the fork"
        thread.join()


@pytest.mark.parametrize("obstacle", ["folder", "link", "another version"])
def test_without_a_wake_file_all_goes_on(path: Path, tmp_path: Path, obstacle: str) -> None:
    place, stranger = Path(wake_file_of(path)), tmp_path / "stranger"
    place.unlink()
    stranger.write_bytes(b"mine")
    if obstacle == "folder":
        place.mkdir()
    elif obstacle == "link":
        place.symlink_to(stranger)
    else:
        place.write_bytes(bytes(1 << 20))
    with lazaretto.connect(path) as broker, lazaretto.connect(path) as other:
        got: list[bytes] = []

        def receive() -> None:
            with broker.receiver(QUEUE) as receiver:
                got.extend(message.body for message in receiver.receive(max_wait=120))

        thread = threading.Thread(target=receive)
        thread.start()
        other.sender(QUEUE).send(Message(b"polled"))
        thread.join(120)
        assert got == [b"polled"]
    assert stranger.read_bytes() == b"mine"
