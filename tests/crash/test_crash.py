"""Processes killed by SIGKILL at named points and at random: nothing lost, nothing settled twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import lazaretto
from lazaretto import ManualClock, Message, Outcome, PoisonPolicy, QueueOptions

from .child import QUEUE

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
CHILD = Path(__file__).with_name("child.py")
#: A message that holds the locks of dead receivers expired: an hour after everything that happens here.
LATER = 3600.0


class Stage:
    """A store, a journal, and the processes at work on them."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "crash.db"
        self.journal = folder / "journal"
        self.journal.touch()
        self.kills = 0
        self._sent = 0
        options = QueueOptions(lock_duration=1, policy=PoisonPolicy(receive_retry_count=400))
        with lazaretto.connect(self.store) as broker:
            broker.create_queue(QUEUE, options)
            with broker.transaction() as tx:
                tx.execute("CREATE TABLE results (name TEXT PRIMARY KEY)")

    def start(self, role: str, point: str = "none", count: int = 0) -> subprocess.Popen[bytes]:
        self._sent += 1_000_000
        words = [role, self.store, self.journal, point, count, self._sent]
        return subprocess.Popen([sys.executable, CHILD, *map(str, words)])

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.journal.read_text().splitlines()]

    def wait_for_work(self, process: subprocess.Popen[bytes], lines: int) -> None:
        """Wait until the journal has grown by so many lines, or the process is gone."""
        size = len(self.lines())
        while process.poll() is None and len(self.lines()) < size + lines:
            time.sleep(0.002)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process, unless it has done so itself; it must not have ended in any other way."""
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
        self.kills += 1

    def fill(self, count: int) -> None:
        """Send as a process that lives."""
        names = [f"f{i}" for i in range(count)]
        with lazaretto.connect(self.store) as broker, broker.sender(QUEUE) as sender:
            sender.send([Message(b"x", message_id=name) for name in names])
        with self.journal.open("a") as file:
            file.writelines(f"sending {name}\nsent {name}\n" for name in names)

    def check(self) -> None:
        """Compare what the processes were told with what the store holds."""
        told: dict[str, list[str]] = {}
        handed: dict[int, list[int]] = {}
        for kind, *values in self.lines():
            if kind == "handed":
                handed.setdefault(int(values[0]), []).append(int(values[1]))
            else:
                told.setdefault(kind, []).append(values[0])
        sent, sending = set(told.get("sent", [])), set(told.get("sending", []))
        completing = set(told.get("completing", []))
        completed = Counter(told.get("completed", []))
        assert max(completed.values(), default=1) == 1, "a message was settled twice"
        for number, attempts in handed.items():
            assert attempts == sorted(set(attempts)), f"an attempt of message {number} was handed over twice"

        clock = ManualClock(time.time() + LATER)
        with lazaretto.connect(self.store, clock=clock) as broker:
            assert broker.check() == []
            counts = broker.queue(QUEUE).counts
            left = broker.peek(QUEUE, 100_000)
            dead = list(broker.dead_letters(QUEUE))
            assert counts.total == len(left) + len(dead)
            held = {m.message_id for m in left} | {d.message_id for d in dead}
            assert len(held) == len(left) + len(dead), "a message is there twice"
            assert held <= sending, "a message is there that nobody sent"
            assert not held & set(completed), "a completed message is there again"
            assert sent - held <= completing, "a message is gone that nobody completed"
            for message in left:
                attempts = handed.get(message.sequence_number, [0])
                assert message.attempt >= max(attempts), "an attempt was forgotten"

            # What is left is handed over again, in order, and nothing else is.
            numbers = [m.sequence_number for m in left]
            with broker.receiver(QUEUE) as receiver:
                got = []
                while batch := receiver.receive(100):
                    got += [m.sequence_number for m in batch]
                    for m in batch:
                        assert m.attempt > max(handed.get(m.sequence_number, [0]))
                    receiver.complete(batch)
            assert sorted(got) == numbers
            assert broker.queue(QUEUE).counts.active == 0
            with broker.transaction() as tx:
                rows = {name for (name,) in tx.execute("SELECT name FROM results")}
            assert not rows & held, "a row was written whose message was not settled with it"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_writer_killed_at_a_point(stage: Stage, point: str) -> None:
    for count in range(1, 60 if SOAK else 8):
        stage.end(stage.start("send", point, count))
    stage.check()


@pytest.mark.parametrize("role", ["consume", "consume_with_sql"])
@pytest.mark.parametrize("point", ["before_commit", "after_commit", "in_settle", "in_handler"])
def test_consumer_killed_at_a_point(stage: Stage, role: str, point: str) -> None:
    rounds = 60 if SOAK else 6
    stage.fill(40 * rounds)
    for count in range(1, rounds + 1):
        if role == "consume_with_sql" and point == "in_settle":
            # Its settling is done by a connection of the transaction's own.
            process = stage.start(role)
            stage.wait_for_work(process, 2 + count)
        else:
            process = stage.start(role, point, 1 + count % 9)
            process.wait(60)
        stage.end(process)
    stage.check()


def test_killed_at_random(stage: Stage) -> None:
    """A writer and two consumers at the same time, one of them killed every few moments."""
    draw = random.Random(7)
    stage.fill(200)
    roles = ["send", "consume", "consume_with_sql"]
    running = {role: stage.start(role) for role in roles}
    for _ in range(300 if SOAK else 12):
        role = draw.choice(roles)
        stage.wait_for_work(running[role], draw.randrange(1, 40))
        stage.end(running[role])
        running[role] = stage.start(role)
    for process in running.values():
        stage.end(process)
    assert stage.kills >= (300 if SOAK else 12)
    stage.check()


def test_a_message_that_kills_its_consumer_ends_among_the_dead_letters(tmp_path: Path) -> None:
    """Also when the last attempt dies: no consumer has to survive for the verdict."""
    store = tmp_path / "killer.db"
    clock = ManualClock()
    with lazaretto.connect(store, clock=clock) as broker:
        policy = PoisonPolicy(receive_retry_count=2)
        broker.create_queue(QUEUE, QueueOptions(lock_duration=5, policy=policy))
        with broker.sender(QUEUE) as sender:
            sender.send([Message(b"killer"), Message(b"bystander")])
    script = (
        "import lazaretto, os, signal, sys\n"
        "clock = lazaretto.ManualClock(float(sys.argv[2]))\n"
        "broker = lazaretto.connect(sys.argv[1], clock=clock)\n"
        "(message,) = broker.receiver('work').receive(1)\n"
        "os.kill(os.getpid(), signal.SIGKILL if message.body == b'killer' else signal.SIGTERM)\n"
    )
    start = clock.now() / 1_000_000
    for attempt in range(3):
        done = subprocess.run([sys.executable, "-c", script, store, str(start + 10 * attempt)], check=False)
        assert done.returncode == -signal.SIGKILL
    clock.advance(60)
    with lazaretto.connect(store, clock=clock) as broker, broker.receiver(QUEUE) as receiver:
        (message,) = receiver.receive(10)
        assert message.body == b"bystander"
        assert message.attempt == 1
        (dead,) = broker.dead_letters(QUEUE)
        assert dead.reason == "MaxDeliveryCountExceeded"
        assert dead.counters.lock_expiries == 3
        attempts = broker.dead_letter(QUEUE, dead.sequence_number).attempts
        assert [a.outcome for a in attempts] == [Outcome.EXPIRED] * 3
        assert len({a.worker for a in attempts}) == 3
