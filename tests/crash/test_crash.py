"""Processes killed by SIGKILL at named points and at random: nothing lost, nothing settled twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lazaretto
from lazaretto import ManualClock, Message, Outcome, PoisonPolicy, QueueOptions

from .child import QUEUE
from .stage import Stage

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))


@pytest.fixture
def stage(place: str, queues: str, tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path, place) as stage:
        yield stage


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_writer_killed_at_a_point(stage: Stage, point: str) -> None:
    for count in range(1, 60 if SOAK else 7):
        stage.await_death(stage.start("send", point, count))
    stage.check()


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_writer_to_two_queues_killed_at_a_point(stage: Stage, point: str) -> None:
    for count in range(1, 60 if SOAK else 5):
        stage.await_death(stage.start("send_pairs", point, count))
    stage.check_pairs()


@pytest.mark.parametrize("point", ["before_commit", "after_commit", "in_publish"])
def test_publisher_killed_at_a_point(stage: Stage, point: str) -> None:
    for count in range(1, 60 if SOAK else 7):
        stage.await_death(stage.start("publish", point, count))
    stage.check_topic()


@pytest.mark.parametrize("point", ["before_commit", "after_commit", "in_settle"])
def test_killed_while_it_forwards_what_waited(stage: Stage, point: str) -> None:
    # More than all those who are killed pass on before: 200 in each commit.
    count = 8_000 if SOAK else 700
    stage.fill_backlog(count)
    stage.open_backlog()
    for hit in range(1, 60 if SOAK else 6):
        stage.await_death(stage.start("pass_on", point, 1 if point == "before_commit" else hit * 7))
    stage.check_backlog(count)


@pytest.mark.parametrize("role", ["consume", "consume_with_sql"])
@pytest.mark.parametrize("point", ["before_commit", "after_commit", "in_settle", "in_handler"])
def test_consumer_killed_at_a_point(stage: Stage, role: str, point: str) -> None:
    rounds = 60 if SOAK else 6
    stage.fill(40 * rounds)
    for count in range(1, rounds + 1):
        stage.await_death(stage.start(role, point, 1 + count % 9))
    stage.check()


@pytest.mark.parametrize("point", ["after_commit", "in_settle", "in_handler"])
def test_consumer_of_sessions_killed_at_a_point(stage: Stage, point: str) -> None:
    """More sessions than kills: those of the dead are locked for a second."""
    rounds = 60 if SOAK else 6
    stage.fill_sessions([f"s{i}" for i in range(2 * rounds)], 8)
    for count in range(1, rounds + 1):
        stage.await_death(stage.start("consume_sessions", point, 1 + count % 9))
    stage.check_sessions()


@pytest.mark.partitioned
def test_killed_at_random(stage: Stage) -> None:
    """A writer and two consumers at the same time, one of them killed every few moments."""
    draw = random.Random(7)
    stage.fill(200)
    roles = ["send", "consume", "consume_with_sql"]
    rounds = 300 if SOAK else 12
    running = {role: stage.start(role) for role in roles}
    for _ in range(rounds):
        role = draw.choice(roles)
        stage.wait_for_work(running[role], draw.randrange(1, 40))
        stage.kill(running[role])
        running[role] = stage.start(role)
    for process in running.values():
        stage.kill(process)
    assert stage.kills == rounds + len(roles)
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
        assert dead.reason == "WorkerCrashed"
        assert (dead.counters.deliveries, dead.counters.worker_deaths) == (3, 3)
        attempts = broker.dead_letter(QUEUE, dead.sequence_number).attempts
        assert [a.outcome for a in attempts] == [Outcome.LOST] * 3
        assert len({a.worker for a in attempts}) == 3
