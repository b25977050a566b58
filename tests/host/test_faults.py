"""Faults around a host that pass: every slot goes on, and no message is blamed for them."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import PATIENCE, wait_until

import lazaretto
from lazaretto import Broker, Message, NotAllowed, PoisonPolicy, QueueOptions, ReceivedMessage
from lazaretto.host import Handler, HandlerContext, ServiceHost
from lazaretto.host import settlements as settling

from .serving import send, worked_off

SECONDS = 600.0 if os.environ.get("LAZARETTO_SOAK") else 6.0

#: Each message has one attempt: whatever blames it for something else is seen at once.
ONE_ATTEMPT = PoisonPolicy(receive_retry_count=0)


def act(message: ReceivedMessage, context: HandlerContext) -> None:
    """Print, and write down in the settling commit who did it."""
    print(message.body.decode())
    time.sleep(0.002)
    word = "?" if b"sqlite" in message.body else "%s"
    context.execute(
        f"INSERT INTO done (n, who) VALUES ({word}, {word})", (message.sequence_number, os.getpid())
    )


def plainly(message: ReceivedMessage) -> None:
    """Do nothing that the store could fail at."""


def inline(message: ReceivedMessage, context: HandlerContext) -> None:
    """Send on, with the thread that did it."""
    time.sleep(0.002)
    context.send("out", Message(b"%d" % threading.get_ident()))


@pytest.fixture
def connected(place: str) -> Iterator[Broker]:
    """A broker of little patience, on either store."""
    with lazaretto.connect(place) as broker:
        options = QueueOptions(policy=ONE_ATTEMPT, breaker=None)
        for queue in ("sql", "plain", "inline", "out"):
            broker.create_queue(queue, options)
        broker.create_queue("steps", QueueOptions(policy=ONE_ATTEMPT, breaker=None, requires_session=True))
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE done (n BIGINT, who BIGINT)")
    with lazaretto.connect(place, timeout=0.3) as broker:
        yield broker


@pytest.fixture
def patient(place: str, connected: Broker) -> Iterator[Broker]:
    """A broker beside it, which faults that have passed keep from nothing."""
    with lazaretto.connect(place) as broker:
        yield broker


# -- faults, from outside ------------------------------------------------------------------------


def _admin(place: str) -> Callable[[str], None]:
    import psycopg

    def run(sql: str) -> None:
        # What is tried here must not keep itself from being undone.
        options = "-c default_transaction_read_only=off"
        with psycopg.connect(
            place.split("?")[0], autocommit=True, application_name="admin", options=options
        ) as connection:
            connection.execute(sql.encode())

    return run


def end_connections(place: str) -> Iterator[None]:
    """End what the broker talks through, a few times."""
    for _ in range(3):
        _admin(place)(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lazaretto'"
        )
        time.sleep(random.uniform(0, 0.05))
    yield


def read_only(place: str) -> Iterator[None]:
    """Have the server take no changes."""
    run = _admin(place)
    run("ALTER SYSTEM SET default_transaction_read_only = on")
    run("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        run("ALTER SYSTEM RESET default_transaction_read_only")
        run("SELECT pg_reload_conf()")


def locked(place: str) -> Iterator[None]:
    """Keep the file from all others, for longer than they wait."""
    other = sqlite3.connect(place.removeprefix("sqlite:///"), isolation_level=None, timeout=5)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
    finally:
        other.close()


def no_descriptors(place: str) -> Iterator[None]:
    """Leave none to open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def no_room(place: str) -> Iterator[None]:
    """Let no file grow any further, as if the disk were full."""
    size = Path(place.removeprefix("sqlite:///")).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


Fault = Callable[[str], Iterator[None]]
SERVERS: tuple[Fault, ...] = (end_connections, read_only, no_descriptors)
FILES: tuple[Fault, ...] = (locked, no_room, no_descriptors)


def faults_of(place: str) -> tuple[Fault, ...]:
    return FILES if place.startswith("sqlite") else SERVERS


# -- the tests -----------------------------------------------------------------------------------


def fill(broker: Broker, count: int, kind: bytes) -> None:
    """Send to every queue, once the store takes it."""
    for queue in ("sql", "plain", "inline", "steps"):
        messages = [Message(kind, session_id=f"s{n % 5}" if queue == "steps" else None) for n in range(count)]
        broker.sender(queue).send(messages)


def test_faults_of_every_kind_leave_every_slot_at_work(
    connected: Broker, patient: Broker, place: str
) -> None:
    """Long under LAZARETTO_SOAK."""
    chance = random.Random(7)
    kind = b"sqlite" if place.startswith("sqlite") else b"postgres"
    handlers = [
        Handler("sql", act, concurrency=2, batch_size=5),
        Handler("plain", plainly, concurrency=2, batch_size=5),
        Handler("inline", inline, isolation="inline", concurrency=2, batch_size=5),
        Handler("steps", act, concurrency=2, batch_size=5),
    ]

    def on_output(text: bytes) -> None:
        if chance.random() < 0.3:
            raise BrokenPipeError("nobody reads this")

    sent = 0
    host = ServiceHost(connected, handlers, on_output=on_output)
    with host:
        fill(patient, 20, kind)
        sent += 20
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with contextlib.contextmanager(chance.choice(faults_of(place)))(place):
                time.sleep(chance.uniform(0.1, 0.8))
            with contextlib.suppress(lazaretto.StoreError):
                if worked_off(patient, "sql", "plain", "inline", "steps")():
                    fill(patient, 20, kind)
                    sent += 20
            time.sleep(chance.uniform(0, 0.3))
        queues = ("sql", "plain", "inline", "steps")
        wait_until(surely(worked_off(patient, *queues)))
        assert [patient.queue(queue).counts.dead_letter for queue in queues] == [0] * 4
        assert all(thread.is_alive() for thread in host._threads)
        seen: list[set[object]] = [set(), set()]
        end = time.monotonic() + PATIENCE
        while min(map(len, seen)) < 2:
            assert time.monotonic() < end, seen
            fill(patient, 40, kind)
            wait_until(worked_off(patient, *queues))
            with patient.transaction() as tx:
                seen[0] |= set(tx.execute("SELECT DISTINCT who FROM done").fetchall())
            with patient.receiver("out", mode="receive_and_delete") as receiver:
                seen[1] |= {m.body for m in receiver.receive(10_000)}
    assert [patient.queue(queue).counts.total for queue in queues] == [0] * 4


def surely(true: Callable[[], bool]) -> Callable[[], bool]:
    """Return what is not known while the store is away as not true."""

    def found() -> bool:
        with contextlib.suppress(lazaretto.StoreError):
            return true()
        return False

    return found


@pytest.mark.parametrize("batch_size", [1, 20])
def test_no_message_is_blamed_for_the_store(
    connected: Broker, patient: Broker, place: str, batch_size: int
) -> None:
    """Its own SQL meets a store that is away, over and over; it takes effect once."""
    kind = b"sqlite" if place.startswith("sqlite") else b"postgres"
    send(patient, "sql", *[kind] * 60)
    handler = Handler("sql", act, batch_size=batch_size, isolation="inline", concurrency=2)
    faults = faults_of(place)[:2]
    with ServiceHost(connected, handler) as host:
        for fault in faults * 3:
            with contextlib.contextmanager(fault)(place):
                time.sleep(0.5)
        wait_until(surely(worked_off(patient, "sql")))
        (report,) = host.reports()
    assert (report.dead, report.retried) == (0, 0)
    with patient.transaction() as tx:
        assert tx.execute("SELECT count(*), count(DISTINCT n) FROM done").fetchone() == (60, 60)


def test_a_message_whose_sql_ends_its_connection_is_poison(
    connected: Broker, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is well but for this one."""
    if place.startswith("sqlite"):
        pytest.skip("no SQL does that to a file")
    monkeypatch.setattr(settling, "_MOST_BROKEN_ALONE", 3)

    def end(message: ReceivedMessage, context: HandlerContext) -> None:
        if message.body == b"bad":
            context.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        context.execute("INSERT INTO done (n) VALUES (1)")

    bad = send(connected, "sql", b"", b"bad", b"")[1]
    with ServiceHost(connected, Handler("sql", end, isolation="inline")):
        wait_until(worked_off(connected, "sql"))
    assert connected.dead_letter("sql", bad).error_type == "lazaretto.errors.TransactionError"
    with connected.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM done").fetchone() == (2,)


def test_what_python_cannot_give_to_the_store_is_the_message_s_failure(connected: Broker) -> None:
    def ask(message: ReceivedMessage, context: HandlerContext) -> None:
        context.execute("SELECT 1 WHERE 1 = :n", {"n": 1 << 70})

    send(connected, "sql", b"")
    with ServiceHost(connected, Handler("sql", ask, isolation="inline")):
        wait_until(lambda: connected.queue("sql").counts.dead_letter == 1)


def test_a_constraint_that_is_looked_at_last_is_the_message_s_failure(connected: Broker, place: str) -> None:
    late = "DEFERRABLE INITIALLY DEFERRED"
    with connected.transaction() as tx:
        tx.execute("CREATE TABLE parent (n BIGINT PRIMARY KEY)")
        tx.execute(f"CREATE TABLE child (n BIGINT REFERENCES parent (n) {late})")
    if place.startswith("sqlite"):
        pytest.skip("SQLite does not look at foreign keys here")

    def orphan(message: ReceivedMessage, context: HandlerContext) -> None:
        context.execute("INSERT INTO child VALUES (7)")

    send(connected, "sql", b"")
    with ServiceHost(connected, Handler("sql", orphan, isolation="inline")):
        wait_until(lambda: connected.queue("sql").counts.dead_letter == 1)


def test_what_was_in_doubt_when_it_was_taken_is_given_back(connected: Broker, place: str) -> None:
    """A connection that ends while a take is committed must not cost the messages their lock's time."""
    if place.startswith("sqlite"):
        pytest.skip("a file has no connection that could end")
    connected.update_queue("plain", lock_duration=600)
    send(connected, "plain", *[b""] * 50)
    handler = Handler("plain", plainly, isolation="inline", batch_size=2, concurrency=3)
    with ThreadPoolExecutor(1) as pool, ServiceHost(connected, handler):
        stop = threading.Event()

        def end() -> None:
            while not stop.is_set():
                for _ in end_connections(place):
                    pass

        ending = pool.submit(end)
        time.sleep(1.5)
        stop.set()
        ending.result()
        begun = time.monotonic()
        wait_until(surely(worked_off(connected, "plain")))
        assert time.monotonic() - begun < connected.queue("plain").options.lock_duration / 2
    assert connected.queue("plain").counts.dead_letter == 0


def test_what_never_passes_ends_the_host(broker: Broker) -> None:
    host = ServiceHost(broker, [Handler("work", plainly, isolation="inline"), Handler("out", plainly)])

    def make_anew() -> None:
        wait_until(lambda: host.running)
        broker.delete_queue("work")
        broker.create_queue("work", QueueOptions(requires_session=True))

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(make_anew)
        with pytest.raises(NotAllowed, match="requires sessions"):
            host.run()
        made.result()


def test_a_file_that_is_gone_ends_the_host(store: Path, broker: Broker) -> None:
    host = ServiceHost(broker, Handler("work", plainly, isolation="inline"))

    def remove() -> None:
        wait_until(lambda: host.running)
        store.unlink()

    with ThreadPoolExecutor(1) as pool:
        removed = pool.submit(remove)
        with pytest.raises(lazaretto.StoreGone):
            host.run()
        removed.result()


def test_it_ends_a_host_that_nobody_waits_for(broker: Broker) -> None:
    with (
        pytest.raises(NotAllowed),
        ServiceHost(broker, [Handler("work", plainly, isolation="inline"), Handler("out", plainly)]) as host,
    ):
        broker.delete_queue("work")
        broker.create_queue("work", QueueOptions(requires_session=True))
        wait_until(lambda: not host.running)


def test_an_output_hook_that_raises_ends_nothing(broker: Broker) -> None:
    told: list[bytes] = []

    def on_output(text: bytes) -> None:
        told.append(text)
        raise SystemExit("this hook is done")

    def say(message: ReceivedMessage) -> None:
        print("hello", flush=True)

    with ServiceHost(broker, Handler("work", say, batch_size=1), on_output=on_output):
        for _ in range(3):
            send(broker, "work", b"")
            wait_until(worked_off(broker, "work"))
    assert len(told) >= 3
    assert broker.queue("work").counts.total == 0
