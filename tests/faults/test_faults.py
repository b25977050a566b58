"""Files, disks, signals and clocks that misbehave: a clear error, nothing lost, usable afterwards."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import lazaretto
from lazaretto import (
    InvalidOption,
    ManualClock,
    Message,
    MessageLockLost,
    QueueOptions,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreReadOnly,
    StoreTooNew,
)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make(path: Path, messages: int = 0) -> None:
    """A closed store with a queue "q" and some messages."""
    with lazaretto.connect(path) as broker:
        broker.create_queue("q")
        if messages:
            broker.sender("q").send([Message(b"%d" % i) for i in range(messages)])


def copy_as_after_a_crash(path: Path, folder: Path) -> Path:
    """Copy an open database with its journals, as it would lie there had its process died now."""
    folder.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, folder)
    return folder / path.name


def run(script: str, *words: object, timeout: float = 120) -> str:
    """Run a script in a process of its own and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestFilesThatAreNoStore:
    def refused(self, path: Path, kind: type[StoreError]) -> str:
        before = digest(path)
        with pytest.raises(kind) as caught:
            lazaretto.connect(path)
        assert digest(path) == before
        assert str(path) in str(caught.value)
        return str(caught.value)

    def test_garbage(self, tmp_path: Path) -> None:
        path = tmp_path / "garbage.db"
        path.write_bytes(os.urandom(10_000))
        self.refused(path, StoreCorrupt)

    def test_text(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("Dear diary,\n")
        self.refused(path, StoreCorrupt)

    def test_a_header_and_nothing_behind_it(self, tmp_path: Path) -> None:
        path = tmp_path / "scribbled.db"
        make(path, 100)
        data = bytearray(path.read_bytes())
        data[100:] = b"\xa5" * (len(data) - 100)
        path.write_bytes(data)
        self.refused(path, StoreCorrupt)

    @pytest.mark.parametrize("journal", ["wal", "delete"])
    def test_another_application(self, tmp_path: Path, journal: str) -> None:
        path = tmp_path / "app.db"
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("CREATE TABLE customers (name)")
        connection.execute("INSERT INTO customers VALUES ('Ada')")
        connection.commit()
        connection.close()
        assert "adopt=True" in self.refused(path, StoreForeign)
        with lazaretto.connect(path, adopt=True) as broker:
            broker.create_queue("q")
            with broker.transaction() as tx:
                assert tx.execute("SELECT name FROM customers").fetchall() == [("Ada",)]

    @pytest.mark.parametrize("journal", ["wal", "delete"])
    def test_another_application_that_crashed(self, tmp_path: Path, journal: str) -> None:
        """What its journal still holds is for that application to recover, not for us."""
        path = tmp_path / "app.db"
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("CREATE TABLE customers (name)")
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO customers VALUES (?)", [("Ada" * 200,)] * 500)
        if journal == "wal":
            connection.execute("COMMIT")
        crashed = copy_as_after_a_crash(path, tmp_path / "crashed")
        connection.close()
        before = {file.name: digest(file) for file in crashed.parent.iterdir()}
        assert len(before) == 2
        # A journal that must be played back first is more than may be found out by reading only.
        self.refused(crashed, StoreForeign if journal == "wal" else StoreReadOnly)
        assert {name: digest(crashed.with_name(name)) for name in before} == before

    def test_a_newer_schema_in_the_log_only(self, tmp_path: Path) -> None:
        path = tmp_path / "new.db"
        make(path)
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("UPDATE lazaretto_meta SET value = '999' WHERE name = 'schema'")
        crashed = copy_as_after_a_crash(path, tmp_path / "crashed")
        connection.close()
        log = digest(crashed.with_name("new.db-wal"))
        self.refused(crashed, StoreTooNew)
        assert digest(crashed.with_name("new.db-wal")) == log

    def test_a_newer_schema(self, tmp_path: Path) -> None:
        path = tmp_path / "new.db"
        make(path)
        connection = sqlite3.connect(path)
        connection.execute("UPDATE lazaretto_meta SET value = '999' WHERE name = 'schema'")
        connection.commit()
        connection.close()
        assert "999" in self.refused(path, StoreTooNew)

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidOption, match="is a folder"):
            lazaretto.connect(tmp_path)

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError):
            lazaretto.connect(tmp_path / "no" / "such" / "folder" / "q.db")

    def test_damage_inside_is_found_by_the_check(self, tmp_path: Path) -> None:
        path = tmp_path / "damaged.db"
        make(path, 2000)
        data = bytearray(path.read_bytes())
        for start in range(20 * 4096, len(data) - 4096, 4 * 4096):
            data[start : start + 512] = b"\x5a" * 512
        path.write_bytes(data)
        try:
            with lazaretto.connect(path) as broker:
                assert broker.check()
        except StoreCorrupt:
            pass


class TestRoomAndRights:
    def test_a_full_disk(self, tmp_path: Path) -> None:
        """A limit on the size of files stands in for the disk's end."""
        path = tmp_path / "full.db"
        make(path)
        script = """
            import resource, signal, sys
            import lazaretto
            from lazaretto import Message, StoreError
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            broker = lazaretto.connect(sys.argv[1])
            sender = broker.sender("q")
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
            sent = 0
            try:
                while True:
                    sender.send([Message(b"x" * 1000) for _ in range(10)])
                    sent += 10
            except StoreError as error:
                assert type(error) is not StoreError or "disk" in str(error), error
            assert broker.queue("q").counts.active == sent, (broker.queue("q").counts, sent)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            sender.send(Message(b"there is room again"))
            print(sent + 1)
            """
        sent = int(run(script, path))
        assert sent > 10
        with lazaretto.connect(path) as broker:
            assert broker.check() == []
            assert broker.queue("q").counts.active == sent
            numbers = [m.sequence_number for m in broker.peek("q", sent)]
            assert numbers == sorted(set(numbers))

    def test_a_limit_of_pages(self, tmp_path: Path) -> None:
        path = tmp_path / "pages.db"
        with lazaretto.connect(path) as broker:
            broker.create_queue("q")
            connection = broker._store._connection
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + 30}")
            sent = 0
            with pytest.raises(lazaretto.StoreFull) as caught:
                while True:
                    broker.sender("q").send(Message(b"x" * 3000))
                    sent += 1
            assert caught.value.retriable
            assert broker.queue("q").counts.active == sent
            with broker.receiver("q", mode="receive_and_delete") as receiver:
                assert len(receiver.receive(10)) == 10
            broker.sender("q").send(Message(b"x" * 3000))

    def test_no_room_for_many_threads(self, tmp_path: Path) -> None:
        """Each is told of its own message; what was answered is there."""
        with lazaretto.connect(tmp_path / "crowd.db") as broker:
            broker.create_queue("q")
            broker._store._connection.execute("PRAGMA max_page_count = 100")
            sent: list[int] = []
            errors: list[BaseException] = []

            def send() -> None:
                try:
                    while True:
                        sent.append(broker.sender("q").send(Message(b"x" * 3000)))
                except Exception as error:
                    errors.append(error)

            threads = [threading.Thread(target=send) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
                assert not thread.is_alive()
            assert {type(error) for error in errors} == {lazaretto.StoreFull}
            assert [m.sequence_number for m in broker.peek("q", 1000)] == sorted(sent)
            # The record of a hand-over takes a little room.
            broker._store._connection.execute("PRAGMA max_page_count = 102")
            with broker.receiver("q", mode="receive_and_delete") as receiver:
                assert len(receiver.receive(1000)) == len(sent)
            assert broker.sender("q").send(Message(b"x" * 3000)) > max(sent)

    @pytest.mark.parametrize("kind", ["IMMEDIATE", "EXCLUSIVE"])
    def test_a_file_another_process_keeps_locked(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "locked.db"
        make(path, 1)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute(f"BEGIN {kind}")
        # Opening does not wait for who is writing.
        with lazaretto.connect(path, timeout=0.2) as broker:
            with pytest.raises(StoreBusy) as caught:
                broker.sender("q").send(Message(b""))
            assert caught.value.retriable
            for attempt in (broker.receiver("q").receive, lambda: broker.transaction().execute("SELECT 1")):
                with pytest.raises(StoreBusy):
                    attempt()
            assert broker.queue("q").counts.active == 1
            other.execute("ROLLBACK")
            other.close()
            broker.sender("q").send(Message(b""))
            assert broker.queue("q").counts.active == 2

    def test_a_file_one_may_only_read(self, tmp_path: Path) -> None:
        """Looked at by a user without rights: this user may write anything if it is root."""
        path = tmp_path / "readonly.db"
        make(path, 3)
        before = digest(path)
        script = """
            import os, sys
            import lazaretto
            # Python may stand where that user cannot read.
            import lazaretto.store.sqlite.store
            from lazaretto import Message, StoreReadOnly
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            try:
                with lazaretto.connect(sys.argv[1]) as broker:
                    broker.sender("q").send(Message(b""))
            except StoreReadOnly as error:
                print(error.code)
            """
        if os.getuid() == 0:
            # The way there must be open to that user.
            for parent in [tmp_path, *tmp_path.parents]:
                if parent.owner() == "root" and str(parent).startswith(("/tmp/", "/dev/shm/")):
                    parent.chmod(0o755)
        path.chmod(0o444)
        tmp_path.chmod(0o555)
        try:
            assert run(script, path).strip() == StoreReadOnly.code
        finally:
            tmp_path.chmod(0o755)
        assert digest(path) == before


class TestProcessesAndSignals:
    def test_a_fork_with_an_open_broker(self, tmp_path: Path) -> None:
        path = tmp_path / "fork.db"
        make(path)
        script = """
            import os, sys
            import lazaretto
            broker = lazaretto.connect(sys.argv[1])
            broker.queue("q")
            calls = [
                lambda: broker.sender("q").send(lazaretto.Message(b"child")),
                lambda: broker.receiver("q").receive(),
                lambda: broker.peek("q"),
                lambda: broker.queue("q"),
                lambda: broker.transaction().execute("CREATE TABLE child (x)"),
            ]
            pid = os.fork()
            if pid == 0:
                for call in calls:
                    try:
                        call()
                        os._exit(9)
                    except lazaretto.StoreError as error:
                        if "fork" not in str(error):
                            os._exit(8)
                broker.close()
                os._exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            broker.sender("q").send(lazaretto.Message(b"parent"))
            broker.close()
            """
        assert run(script, path).strip() == "7"
        with lazaretto.connect(path) as broker:
            assert broker.check() == []
            assert [m.body for m in broker.peek("q", 5)] == [b"parent"]

    def test_a_child_forked_while_the_store_is_open_does_not_open_it(self, tmp_path: Path) -> None:
        """It would have none of the locks: once its parent closes, it would write into a log that is gone."""
        path = tmp_path / "own.db"
        make(path)
        script = """
            import multiprocessing, sys
            import lazaretto

            def send(closed, answers):
                closed.wait()
                try:
                    with lazaretto.connect(sys.argv[1]) as own:
                        own.sender("q").send(lazaretto.Message(b"child"))
                        answers.put("sent")
                        answers.join()
                except lazaretto.StoreError as error:
                    answers.put(str(error))

            context = multiprocessing.get_context("fork")

            def start():
                closed, answers = context.Event(), context.JoinableQueue()
                context.Process(target=send, args=(closed, answers)).start()
                return closed, answers

            with lazaretto.connect(sys.argv[1]):
                closed, answers = start()
            with lazaretto.connect(sys.argv[1]) as again:
                closed.set()
                print(answers.get(timeout=120))
                answers.task_done()
            closed, answers = start()
            closed.set()
            print(answers.get(timeout=120))
            answers.task_done()
            """
        refused, sent = run(script, path).strip().splitlines()
        assert "forked from one that had the store open" in refused
        assert sent == "sent"
        with lazaretto.connect(path) as broker:
            assert [m.body for m in broker.peek("q", 5)] == [b"child"]

    def test_interrupted_while_waiting(self, tmp_path: Path) -> None:
        """In a process of its own, whose main thread is certainly the one that waits."""
        path = tmp_path / "wait.db"
        make(path)
        script = """
            import os, signal, sys, threading, time
            import lazaretto
            broker = lazaretto.connect(sys.argv[1])
            def interrupt():
                while not broker._store.notifier.waiting:
                    time.sleep(0.001)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            thread = threading.Thread(target=interrupt)
            thread.start()
            try:
                broker.receiver("q").receive(max_wait=60)
            except KeyboardInterrupt:
                print("interrupted")
            thread.join(120)
            broker.sender("q").send(lazaretto.Message(b"after"))
            broker.close()
            """
        assert run(script, path).strip() == "interrupted"
        with lazaretto.connect(path) as broker:
            assert broker.queue("q").counts.active == 1

    def test_interrupted_again_and_again_while_many_send(self, tmp_path: Path) -> None:
        """The main thread sends too and is interrupted; nobody is left hanging."""
        path = tmp_path / "interrupted.db"
        make(path)
        script = """
            import os, signal, sys, threading, time
            import lazaretto
            from lazaretto import Message
            broker = lazaretto.connect(sys.argv[1])
            sent, stop = [0] * 5, threading.Event()
            def send(index):
                sender = broker.sender("q")
                while not stop.is_set():
                    try:
                        sender.send(Message(b"thread"))
                        sent[index] += 1
                    except lazaretto.StoreError as error:
                        assert "interrupted" in str(error), error
            threads = [threading.Thread(target=send, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            armed = False
            def interrupt(*_):
                global armed
                if armed:
                    armed = False
                    raise KeyboardInterrupt
            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.003)
            hits, sender = 0, broker.sender("q")
            while hits < 100:
                try:
                    armed = True
                    while True:
                        sender.send(Message(b"main"))
                        sent[4] += 1
                except KeyboardInterrupt:
                    hits += 1
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            stop.set()
            for thread in threads:
                thread.join(120)
                assert not thread.is_alive()
            sender.send(Message(b"last"))
            print(sum(sent) + 1)
            broker.close()
            """
        answered = int(run(script, path))
        with lazaretto.connect(path) as broker:
            assert broker.check() == []
            # An interrupted send may have been done; one that was answered certainly was.
            assert answered <= broker.queue("q").counts.active <= answered + 1000

    def test_a_broker_left_open_at_the_end(self, tmp_path: Path) -> None:
        run("import lazaretto, sys; broker = lazaretto.connect(sys.argv[1])", tmp_path / "open.db")


class TestClocksThatJump:
    def test_backward(self, tmp_path: Path) -> None:
        """Locks hold longer, nothing is lost, order is by number and not by time."""
        clock = ManualClock()
        with lazaretto.connect(tmp_path / "back.db", clock=clock) as broker:
            broker.create_queue("q", QueueOptions(lock_duration=30))
            with broker.sender("q") as sender, broker.receiver("q") as receiver:
                sender.send(Message(b"1"))
                (message,) = receiver.receive()
                clock.advance(-3600)
                sender.send(Message(b"2"))
                assert [m.body for m in receiver.receive(5)] == [b"2"]
                receiver.complete(message)
                clock.advance(40)
                assert [m.body for m in receiver.receive(5)] == [b"2"]

    def test_backward_with_a_session_and_a_life(self, tmp_path: Path) -> None:
        """What is measured from before the jump takes that much longer, and then happens."""
        clock = ManualClock()
        with lazaretto.connect(tmp_path / "lives.db", clock=clock) as broker:
            broker.create_queue("q", QueueOptions(dead_letter_on_expiration=True))
            broker.create_queue("s", QueueOptions(requires_session=True, lock_duration=30))
            broker.sender("q").send(Message(b"mortal", time_to_live=60))
            broker.sender("s").send(Message(b"", session_id="a"))
            holder = broker.receiver("s", session="a")
            (message,) = holder.receive()
            clock.advance(-3600)
            with pytest.raises(lazaretto.SessionCannotBeLocked):
                broker.receiver("s", session="a")
            holder.renew_session_lock()
            clock.advance(31)
            with pytest.raises(lazaretto.SessionLockLost):
                holder.complete(message)
            assert broker.queue("q").counts.active == 1
            clock.advance(3700)
            assert broker.receiver("q").receive() == []
            (dead,) = broker.dead_letters("q")
            assert dead.reason == "TTLExpiredException"
            (again,) = broker.receiver("s", session="a").receive()
            assert again.attempt == 2

    def test_forward(self, tmp_path: Path) -> None:
        """Locks run out at once; their holders are told, and the messages come again."""
        clock = ManualClock()
        with lazaretto.connect(tmp_path / "forward.db", clock=clock) as broker:
            broker.create_queue("q", QueueOptions(lock_duration=30))
            with broker.sender("q") as sender, broker.receiver("q") as receiver:
                sender.send(Message(b"1"))
                (message,) = receiver.receive()
                clock.advance(10 * 365 * 86_400)
                with pytest.raises(MessageLockLost):
                    receiver.complete(message)
                (again,) = receiver.receive()
                assert again.attempt == 2
                receiver.complete(again)


def test_the_file_does_not_grow_at_a_steady_depth(tmp_path: Path) -> None:
    """Every room that a message leaves is used again: nobody needs to VACUUM."""
    with lazaretto.connect(tmp_path / "steady.db") as broker:
        # Samples of good messages grow to their own bound.
        broker.create_queue("q", QueueOptions(kept_samples=0))
        sizes = []
        with broker.sender("q") as sender, broker.receiver("q") as receiver:
            for _round in range(12):
                for size in (300, 5000):
                    sender.send([Message(b"x" * size) for _ in range(200)])
                batch = receiver.receive(400)
                receiver.abandon(batch[:20], error=ValueError("again"))
                receiver.complete(batch[20:])
                receiver.complete(receiver.receive(20))
                sizes.append(broker.facts()["file_bytes"])
        assert broker.queue("q").counts.total == 0
    assert sizes[-1] <= sizes[2]
