"""Many threads and processes on one store: one holder for each message, each settled once."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import Forked

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
from lazaretto.model.keys import PARTITION_SEQUENCE_BITS

from .child import QUEUE, SESSIONS, Span, main, read_spans, send, work

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
#: Messages at the start of a race, and how many more are sent meanwhile.
MESSAGES = 4000 if SOAK else 300
LATE = 1000 if SOAK else 80
PROCESSES = 4


@pytest.fixture
def store(place: str, queues: str) -> str:
    with lazaretto.connect(place) as broker:
        policy = PoisonPolicy(receive_retry_count=1000)
        broker.create_queue(QUEUE, QueueOptions(lock_duration=1, policy=policy))
        broker.create_queue(SESSIONS, QueueOptions(lock_duration=1, policy=policy, requires_session=True))
        with broker.sender(QUEUE) as sender:
            sender.send([Message(b"%d" % i) for i in range(MESSAGES)])
    return place


def run_processes(store: str, folder: Path, job: str, late: int = 0) -> list[Span]:
    """Let several processes at the store, and return what all of them wrote down."""
    journals = [folder / f"spans{i}" for i in range(PROCESSES)]
    processes = [Forked(main, store, str(journal), job, str(late)) for journal in journals]
    for process in processes:
        assert process.wait(300) == 0
    return [span for journal in journals for span in read_spans(journal)]


def check_spans(spans: list[Span], messages: int) -> None:
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
    assert len(completed) == messages
    partitions: dict[int, set[int]] = defaultdict(set)
    for number in completed:
        partitions[number >> PARTITION_SEQUENCE_BITS].add(number & (1 << PARTITION_SEQUENCE_BITS) - 1)
    for numbers in partitions.values():
        assert numbers == set(range(1, len(numbers) + 1))
    assert not [span for span in spans if span.outcome == "stale"], "a stale token settled a message"


@pytest.mark.partitioned
def test_threads_and_processes_on_one_store(store: str, tmp_path: Path) -> None:
    spans = run_processes(store, tmp_path, "messages", LATE)
    check_spans(spans, MESSAGES + PROCESSES * LATE)
    with lazaretto.connect(store) as broker:
        assert broker.queue(QUEUE).counts.total == 0
        assert broker.check() == []


def test_eight_threads_share_a_broker(store: str) -> None:
    spans: list[Span] = []
    with lazaretto.connect(store) as broker:
        sent = threading.Event()
        works = [(broker, spans.append, seed, sent) for seed in range(8)]
        threads = [threading.Thread(target=work, args=arguments) for arguments in works]
        threads.append(threading.Thread(target=send, args=(broker, LATE, sent)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()
        assert broker.queue(QUEUE).counts.total == 0
    check_spans(spans, MESSAGES + LATE)


@pytest.mark.partitioned
def test_a_session_has_one_holder_among_processes(store: str, tmp_path: Path) -> None:
    """Spans by session do not overlap, and each session is completed in its order."""
    each, names = (100 if SOAK else 15), range(12)
    with lazaretto.connect(store) as broker, broker.sender(SESSIONS) as sender:
        for _ in range(each):
            sender.send([Message(b"", session_id=str(name)) for name in names])
    spans = run_processes(store, tmp_path, "sessions")
    for name in names:
        held = sorted((span for span in spans if span.attempt == name), key=lambda span: span.end)
        done = [span.sequence_number for span in held if span.outcome == "completed"]
        assert done == sorted(set(done)), f"session {name} was not worked off in order"
        assert len(done) == each
        # Messages of one hand-over share its start; the next holder's starts after the last of them.
        for earlier, later in itertools.pairwise(held):
            assert later.start == earlier.start or later.start >= earlier.end, f"two held session {name}"


def test_one_lock_is_settled_by_one_of_many(store: str) -> None:
    """Eight threads settle the same message; one succeeds, and the others change nothing."""
    with lazaretto.connect(store) as broker, broker.receiver(QUEUE) as receiver:
        for _ in range(20):
            (message,) = receiver.receive()
            won: list[str] = []
            barrier = threading.Barrier(8)

            def settle(index: int, message: ReceivedMessage = message) -> None:
                barrier.wait(120)  # noqa: B023
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
                thread.join(120)
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


def waiting(broker: Broker, threads: int = 1) -> None:
    """Wait until so many threads wait for something to receive."""
    end = time.monotonic() + 120
    while broker._store.notifier.waiting < threads:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_closing_wakes_those_that_wait(tmp_path: Path) -> None:
    """However many wait or send: all get BrokerClosed, and what was answered is there."""
    broker = lazaretto.connect(tmp_path / "close.db")
    broker.create_queue(QUEUE)
    broker.create_queue("sent")
    broker.create_queue(SESSIONS, QueueOptions(requires_session=True))
    errors: list[BaseException] = []
    answered: list[int] = []

    def send_for_ever() -> None:
        while True:
            answered.append(broker.sender("sent").send(Message(b"")))

    def receive_in_a_transaction() -> None:
        with broker.transaction() as tx:
            tx.receive(QUEUE, max_wait=None)

    jobs: list[Callable[[], object]] = [
        lambda: broker.receiver(QUEUE).receive(max_wait=None),
        lambda: broker.receiver(QUEUE).receive(max_wait=None),
        lambda: broker.receiver(SESSIONS, session=NEXT_SESSION).receive(max_wait=None),
        lambda: broker.events(broker.last_event(), max_wait=None),
        receive_in_a_transaction,
    ]
    waiters = len(jobs)

    def run(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    jobs += [send_for_ever] * 3
    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    waiting(broker, waiters)
    broker.close()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert [type(e) for e in errors] == [BrokerClosed] * len(jobs)
    with pytest.raises(BrokerClosed):
        broker.queue(QUEUE)
    with pytest.raises(BrokerClosed):
        broker.sender(QUEUE).send(Message(b""))
    with pytest.raises(BrokerClosed):
        broker.transaction().execute("SELECT 1")
    with lazaretto.connect(tmp_path / "close.db") as again:
        assert {m.sequence_number for m in again.peek("sent", 100_000)} >= set(answered)


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
        thread.join(120)
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
            assert started.wait(120)
            with pytest.raises(TransactionError):
                broker.sender(QUEUE).send(Message(b"same thread"))
            assert broker.queue(QUEUE).counts.total == 0
            assert not sent.is_set()
            tx.send(QUEUE, Message(b"inside"))
        assert sent.wait(120)
        thread.join(120)
        assert {m.body for m in broker.peek(QUEUE, 10)} == {b"inside", b"other"}


def test_processes_open_one_new_file_at_once(tmp_path: Path) -> None:
    script = "import lazaretto, sys; b = lazaretto.connect(sys.argv[1]); print(len(b.queues())); b.close()"
    words = [sys.executable, "-c", script, str(tmp_path / "new.db")]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert [p.communicate(timeout=120)[0].strip() for p in processes] == ["1"] * 6


def test_transactions_with_sql_from_many_threads(tmp_path: Path) -> None:
    """They take turns; each sees what the one before it wrote."""
    with lazaretto.connect(tmp_path / "turns.db") as broker:
        broker.create_queue(QUEUE)
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE counter (n)")
            tx.execute("INSERT INTO counter VALUES (0)")

        def count() -> None:
            for _ in range(10):
                with broker.transaction() as tx:
                    ((n,),) = tx.execute("SELECT n FROM counter").fetchall()
                    tx.execute("UPDATE counter SET n = ?", (n + 1,))
                    tx.send(QUEUE, Message(b"%d" % n))

        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        assert [int(m.body) for m in broker.peek(QUEUE, 100)] == list(range(80))
