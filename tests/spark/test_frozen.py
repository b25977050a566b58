"""A driver that is frozen for longer than its lease, and woken; a checkpoint that two processes use."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import lazaretto
from lazaretto import Broker, Message, PoisonPolicy, QueueOptions

from .cluster import IMPATIENT
from .test_faults import Job, results

pytestmark = pytest.mark.skipif(
    "LAZARETTO_SOAK" not in os.environ, reason="sessions of Spark in processes: LAZARETTO_SOAK=1"
)
COUNT, ELSEWHERE = 60, 15


class Shop:
    """A queue with a message that waits at a closed gate, and a ledger of what was done elsewhere."""

    def __init__(self, broker: Broker, store: Path) -> None:
        self.broker, self.store = broker, store
        self.gate = store.with_name("gate")
        self.elsewhere: list[bytes] = []
        self._lock = self.gate.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.mkfifo(store.with_name("begun"))
        # Also as a writer, so that it never ends.
        self._begun = os.open(store.with_name("begun"), os.O_RDWR)
        bodies = [b"%d" % n for n in range(COUNT)]
        bodies[COUNT // 2] = os.fsencode(self.gate)
        broker.sender("work").send([Message(body) for body in bodies])

    def start(self, job: Job) -> subprocess.Popen[bytes]:
        """Start a job, and wait until its handler is at the gate."""
        running = job.start()
        while not select.select([self._begun], [], [], 0.5)[0]:
            if running.poll() is not None:
                said = running.communicate()[1].decode("utf-8", "replace")
                assert IMPATIENT in said, said[-3000:]
                running = job.start()
        os.read(self._begun, 1)
        return running

    def open_gate(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        self._lock.close()
        os.close(self._begun)

    def check(self) -> None:
        """Each message done once: by the query, with a message sent and a result, or elsewhere."""
        gate = os.fsencode(self.gate)
        sent = Counter(bytes(m.body) for m in self.broker.peek("out", 1_000))
        # The one that waits at the gate has no result.
        assert Counter(b"%d" % n for _, n in results(self.store)) == sent - Counter([gate])
        wanted = {b"%d" % n for n in range(COUNT) if n != COUNT // 2} | {gate}
        assert sent + Counter(self.elsewhere) == Counter(wanted)
        assert self.broker.queue("work").counts.total == 0


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    store = tmp_path / "store.db"
    with lazaretto.connect(store) as broker:
        broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=5)))
        broker.create_queue("out")
        with contextlib.closing(Shop(broker, store)) as shop:
            yield shop


def family(pid: int) -> list[int]:
    """Return a process and all below it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def freeze(pid: int, store: Path) -> list[int]:
    """Freeze a process and all below it, but in the middle of a commit, which would freeze the store, too."""
    while True:
        pids = family(pid)
        signal_all(pids, signal.SIGSTOP)
        try:
            with contextlib.closing(sqlite3.connect(store, timeout=1)) as connection:
                connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            signal_all(pids, signal.SIGCONT)
        else:
            return pids


def test_a_driver_frozen_for_longer_than_its_lease(shop: Shop) -> None:
    broker = shop.broker
    running = shop.start(Job(shop.store, lease=3))
    # It is in the middle of its work.
    pids = freeze(running.pid, shop.store)
    try:
        while not any(claim.state == "revoked" for claim in broker.claims("work")):
            # Whoever receives, of any queue, gives back what has run out.
            broker.receiver("out").receive(1, max_wait=0.2)
        receiver = broker.receiver("work")
        while len(shop.elsewhere) < ELSEWHERE:
            for message in receiver.receive(ELSEWHERE - len(shop.elsewhere), max_wait=60):
                receiver.complete(message)
                shop.elsewhere.append(bytes(message.body))
    finally:
        shop.open_gate()
        signal_all(pids, signal.SIGCONT)
    _, errors = running.communicate(timeout=600)
    assert running.returncode == 0, errors.decode("utf-8", "replace")[-3000:]
    shop.check()


def test_of_two_processes_on_one_checkpoint_the_second_goes_on(shop: Shop) -> None:
    job = Job(shop.store)
    first = shop.start(job)
    # The second takes the claim over, and is at the same message.
    second = shop.start(job)
    shop.open_gate()
    said = [
        process.communicate(timeout=600)[1].decode("utf-8", "replace")[-3000:] for process in (first, second)
    ]
    assert (first.returncode != 0, second.returncode) == (True, 0), said
    assert "another driver has taken over consumer 'spark' of 'work'" in said[0]
    shop.check()
