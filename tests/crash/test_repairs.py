"""Runners of repairs are killed: each letter is sent once, in order, and all of it can be undone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lazaretto
from lazaretto import Broker, DeadLetterFilter, Message, QueueOptions, Repair, RepairCounts, RepairPhase

from .repair_child import POINTS

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
TESTS = Path(__file__).parents[1]
PICTURES = (
    "SELECT key, state, due, expires, enqueued, message_id, session_id, deliveries, delivery_count, "
    "generation, enqueued_sequence_number, resubmitted_from, headers, body "
    "FROM lazaretto_messages ORDER BY key",
    "SELECT * FROM lazaretto_dead_letters ORDER BY key",
    "SELECT place, fingerprint, waiting FROM lazaretto_fingerprints ORDER BY 1, 2",
)


class RepairStage:
    """A store with dead letters, a repair of them, and processes that run it and are killed."""

    def __init__(self, store: str, letters: int, sessions: int = 0) -> None:
        self.store = store
        self.broker: Broker = lazaretto.connect(store)
        self.letters = letters
        self.kills = 0
        self.broker.create_queue("q", QueueOptions(requires_session=bool(sessions)))
        self._set_aside(sessions)
        self.before = self.picture()
        self.repair: Repair = self.broker.plan_repair(
            "q", DeadLetterFilter(), everything=True, canary=0, in_flight=None
        )

    def _set_aside(self, sessions: int) -> None:
        sender = self.broker.sender("q")
        for start in range(0, self.letters, 500):
            sender.send([
                Message(b"%d" % n, session_id=f"s{n % sessions}" if sessions else None)
                for n in range(start, min(start + 500, self.letters))
            ])  # fmt: skip
        for session in self.broker.sessions("q") if sessions else [None]:
            with self.broker.receiver("q", session=session) as receiver:
                while messages := receiver.receive(500):
                    receiver.dead_letter(messages, reason="why")

    def picture(self) -> list[Any]:
        """Everything that a letter is made of, in the store."""
        with self.broker.transaction() as tx:
            return [tx.execute(sql).fetchall() for sql in PICTURES]

    def start(self, point: str, count: int) -> subprocess.Popen[str]:
        """Start a runner."""
        words = [sys.executable, "-m", "crash.repair_child", self.store, point, str(count)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=TESTS)

    def run_at_point(self, point: str, count: int) -> None:
        """Let a runner work until it kills itself, or is done."""
        with self.start(point, count) as process:
            assert process.wait(120) in (0, -signal.SIGKILL)
        self.kills += process.returncode != 0

    def run_for(self, seconds: float) -> None:
        """Let a runner work for some time, and kill it."""
        with self.start("none", 0) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                self.kills += 1

    def check_applied(self, sessions: int = 0) -> None:
        """Check that each letter was sent once, and in order."""
        assert self.repair.run().phase is RepairPhase.DONE
        assert self.repair.status().counts == RepairCounts(left=0, waiting=self.letters)
        found = list(self.repair.letters())
        assert [letter.sequence_number for letter in found] == [
            row[0] & (1 << 42) - 1 for row in self.before[1]
        ]
        assert len({letter.sent_as for letter in found}) == self.letters
        assert list(self.broker.dead_letters("q", messages=False)) == []
        sent: list[int] = []
        after = 0
        while some := self.broker.peek("q", 5_000, after + 1):
            sent += [int(message.body) for message in some]
            after = some[-1].sequence_number
        if sessions:
            of_each = [[n for n in sent if n % sessions == one] for one in range(sessions)]
            assert of_each == [list(range(one, self.letters, sessions)) for one in range(sessions)]
        else:
            assert sent == list(range(self.letters))
        assert self.broker.check() == []

    def check_undone(self) -> None:
        """Check that all is as it was."""
        assert self.repair.run().phase is RepairPhase.UNDONE
        assert self.repair.status().counts == RepairCounts(left=0, undone=self.letters)
        assert self.picture() == self.before
        assert self.broker.check() == []


@pytest.fixture
def made(place: str) -> Iterator[list[RepairStage]]:
    stages: list[RepairStage] = []
    yield stages
    for stage in stages:
        stage.broker.close()


@pytest.mark.parametrize("sessions", [0, 20] if SOAK else [20])
def test_killed_at_named_points(place: str, made: list[RepairStage], sessions: int) -> None:
    stage = RepairStage(place, 20_000 if SOAK else 1_500, sessions)
    made.append(stage)
    stage.repair.apply()
    points = ["before_commit", "after_commit", *POINTS]
    for number, point in enumerate(points * (5 if SOAK else 1)):
        if point != "in_undo":
            stage.run_at_point(point, 1 + number % 4)
    assert stage.kills >= (10 if SOAK else 3)
    stage.check_applied(sessions)
    stage.repair.undo()
    for number, point in enumerate(["in_undo", "before_commit", "in_messages", "after_commit"]):
        stage.run_at_point(point, 1 + number % 2)
    stage.check_undone()


def test_killed_at_random(place: str, made: list[RepairStage]) -> None:
    """With LAZARETTO_SOAK: 100,000 letters and 100 kills, then as many while all of it is undone."""
    letters, kills = (100_000, 100) if SOAK else (2_000, 3)
    stage = RepairStage(place, letters)
    made.append(stage)
    draw = random.Random(7)
    for verb in (stage.repair.apply, stage.repair.undo):
        verb()
        stage.kills = 0
        began = time.monotonic()
        while stage.kills < kills and stage.repair.status().next_verbs != ("undo",):
            stage.run_for(draw.uniform(0.0, 0.06))
            if stage.repair.status().phase in (RepairPhase.DONE, RepairPhase.UNDONE):
                break
        print(f"{stage.kills} kills in {time.monotonic() - began:.0f} s")
        if verb == stage.repair.apply:
            stage.check_applied()
        else:
            stage.check_undone()
