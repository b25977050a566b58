"""Many threads and processes on one file: one holder for each message, each settled once."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import lazaretto
from lazaretto import (
    NEXT_SESSION,
    Broker,
    BrokerClosed,
    Message,
    MessageLockLost,
    PoisonPolicy,
    QueueOptions,
    ReceivedMessage,
    SessionCannotBeLocked,
    SessionLockLost,
    TransactionError,
)

from .child import QUEUE, Span, read_spans, work

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
CHILD = Path(__file__).with_name("child.py")
MESSAGES = 4000 if SOAK else 400


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "races.db"
    with lazaretto.connect(path) as broker:
        policy = PoisonPolicy(receive_retry_count=1000)
        broker.create_queue(QUEUE, QueueOptions(lock_duration=1, policy=policy))
        with broker.sender(QUEUE) as sender:
            sender.send([Message(b"%d" % i) for i in range(MESSAGES)])
    return path


def check_spans(spans: list[Span]) -> None:
    """No two holders of one message at the same time; each message completed exactly once."""
    by_message: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        by_message[span.sequence_number].append(span)
    for number, held in by_message.items():
        held.sort(key=lambda span: span.start)
        for earlier, later in itertools.pairwise(held):
            assert earlier.end <= later.start, f"message {number} had two holders"
        attempts = [span.attempt for span in held]
        assert attempts == sorted(set(attempts)), f"message {number}: attempts {attempts}"
    completed = Counter(span.sequence_number for span in spans if span.outcome == "completed")
    assert set(completed.values()) == {1}
    assert set(completed) == set(range(1, MESSAGES + 1))


def test_threads_and_processes_on_one_file(store: Path, tmp_path: Path) -> None:
    journals = [tmp_path / f"spans{i}" for i in range(4)]
    processes = [subprocess.Popen([sys.executable, CHILD, store, journal]) for journal in journals]
    for process in processes:
        assert process.wait(300) == 0
    check_spans([span for journal in journals for span in read_spans(journal)])
    with lazaretto.connect(store) as broker:
        assert broker.queue(QUEUE).counts.total == 0
        assert broker.check() == []


def test_eight_threads_share_a_broker(store: Path) -> None:
    spans: list[Span] = []
    with lazaretto.connect(store) as broker:
        threads = [threading.Thread(target=work, args=(broker, spans.append, seed)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()
        assert broker.queue(QUEUE).counts.total == 0
    check_spans(spans)


def test_one_lock_is_settled_by_one_of_many(store: Path) -> None:
    """Eight threads settle the same message; one succeeds, and the others change nothing."""
    with lazaretto.connect(store) as broker, broker.receiver(QUEUE) as receiver:
        for _ in range(20):
            (message,) = receiver.receive()
            won: list[str] = []
            barrier = threading.Barrier(8)

            def settle(index: int, message: ReceivedMessage = message) -> None:
                barrier.wait(60)  # noqa: B023
                try:
                    if index % 2:
                        receiver.complete(message)
                    else:
                        receiver.dead_letter(message, reason=f"thread {index}")
                    won.append("completed" if index % 2 else "dead")  # noqa: B023
                except MessageLockLost:
                    return

            threads = [threading.Thread(target=settle, args=(i,)) for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert len(won) == 1
            dead = [d.sequence_number for d in broker.dead_letters(QUEUE)]
            assert (message.sequence_number in dead) == (won == ["dead"])


def test_a_session_has_one_holder_and_keeps_its_order(tmp_path: Path) -> None:
    names, each = ["a", "b", "c"], 30
    seen: dict[str, list[int]] = {name: [] for name in names}
    holding: Counter[str] = Counter()
    with lazaretto.connect(tmp_path / "sessions.db") as broker:
        broker.create_queue("s", QueueOptions(requires_session=True))
        with broker.sender("s") as sender:
            for i in range(each):
                sender.send([Message(b"%d" % i, session_id=name) for name in names])

        def consume() -> None:
            while sum(map(len, seen.values())) < each * len(names):
                with broker.receiver("s", session=NEXT_SESSION) as receiver:
                    batch = receiver.receive(4, max_wait=0.05)
                    if not batch:
                        continue
                    name = receiver.session_id
                    assert name is not None
                    holding[name] += 1
                    assert holding[name] == 1
                    with pytest.raises(SessionCannotBeLocked):
                        broker.receiver("s", session=name)
                    seen[name] += [int(m.body) for m in batch]
                    receiver.complete(batch)
                    holding[name] -= 1

        threads = [threading.Thread(target=consume) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    assert seen == {name: list(range(each)) for name in names}


def test_a_lost_session_changes_nothing(tmp_path: Path) -> None:
    clock = lazaretto.ManualClock()
    with lazaretto.connect(tmp_path / "lost.db", clock=clock) as broker:
        broker.create_queue("s", QueueOptions(requires_session=True, lock_duration=10))
        with broker.sender("s") as sender:
            sender.send(Message(b"", session_id="a"))
        first = broker.receiver("s", session="a")
        (message,) = first.receive()
        clock.advance(11)
        second = broker.receiver("s", session="a")
        for attempt in (first.complete, first.abandon):
            with pytest.raises(SessionLockLost):
                attempt(message)
        with pytest.raises(SessionLockLost):
            first.set_session_state(b"mine")
        (again,) = second.receive()
        assert again.attempt == 2
        assert second.get_session_state() is None
        second.complete(again)


def waiting(broker: Broker) -> None:
    """Wait until a thread waits for something to receive."""
    end = time.monotonic() + 60
    while not broker._store.bell.waiting:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_closing_wakes_those_that_wait(tmp_path: Path) -> None:
    broker = lazaretto.connect(tmp_path / "close.db")
    broker.create_queue(QUEUE)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            broker.receiver(QUEUE).receive(max_wait=None)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting(broker)
    broker.close()
    thread.join(60)
    assert [type(e) for e in errors] == [BrokerClosed]
    with pytest.raises(BrokerClosed):
        broker.queue(QUEUE)
    with pytest.raises(BrokerClosed):
        broker.sender(QUEUE).send(Message(b""))


@pytest.mark.parametrize("where", ["thread", "process"])
def test_a_send_wakes_a_receiver(tmp_path: Path, where: str) -> None:
    path = tmp_path / "wake.db"
    with lazaretto.connect(path) as broker:
        broker.create_queue(QUEUE)
        got: list[ReceivedMessage] = []
        thread = threading.Thread(target=lambda: got.extend(broker.receiver(QUEUE).receive(max_wait=60)))
        thread.start()
        waiting(broker)
        if where == "thread":
            broker.sender(QUEUE).send(Message(b"wake"))
        else:
            script = (
                "import lazaretto, sys; b = lazaretto.connect(sys.argv[1]); "
                f"b.sender({QUEUE!r}).send(lazaretto.Message(b'wake')); b.close()"
            )
            subprocess.run([sys.executable, "-c", script, path], check=True)
        thread.join(30)
        assert not thread.is_alive()
        assert [m.body for m in got] == [b"wake"]


def test_others_wait_for_a_transaction_with_sql(tmp_path: Path) -> None:
    with lazaretto.connect(tmp_path / "sql.db") as broker:
        broker.create_queue(QUEUE)
        sent = threading.Event()
        started = threading.Event()

        def send() -> None:
            started.set()
            broker.sender(QUEUE).send(Message(b"other"))
            sent.set()

        with broker.transaction() as tx:
            tx.execute("CREATE TABLE mine (x)")
            thread = threading.Thread(target=send)
            thread.start()
            assert started.wait(60)
            with pytest.raises(TransactionError):
                broker.sender(QUEUE).send(Message(b"same thread"))
            assert broker.queue(QUEUE).counts.total == 0
            assert not sent.is_set()
            tx.send(QUEUE, Message(b"inside"))
        assert sent.wait(60)
        thread.join(60)
        assert {m.body for m in broker.peek(QUEUE, 10)} == {b"inside", b"other"}


def test_processes_open_one_new_file_at_once(tmp_path: Path) -> None:
    script = "import lazaretto, sys; b = lazaretto.connect(sys.argv[1]); print(len(b.queues())); b.close()"
    words = [sys.executable, "-c", script, str(tmp_path / "new.db")]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert [p.communicate(timeout=60)[0].strip() for p in processes] == ["1"] * 6
