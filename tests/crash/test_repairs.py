"""Runners of repairs are killed: each letter is sent once, in order, and all of it can be undone."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psycopg
import pytest
from forked import Forked
from servers import Server, new_store

import lazaretto
from lazaretto import Broker, DeadLetterFilter, Message, QueueOptions, Repair, RepairCounts, RepairPhase

from .repair_child import POINTS, main

SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
PICTURES = (
    "SELECT key, state, due, expires, enqueued, message_id, session_id, deliveries, delivery_count, "
    "generation, enqueued_sequence_number, resubmitted_from, headers, body "
    "FROM lazaretto_messages ORDER BY key",
    "SELECT * FROM lazaretto_dead_letters ORDER BY key",
    "SELECT place, fingerprint, waiting FROM lazaretto_fingerprints ORDER BY 1, 2",
)


class RepairStage:
    """A store with dead letters, a repair of them, and processes that run it and are killed."""

    def __init__(
        self, store: str, letters: int, sessions: int = 0, partitions: int = 1, keys: int = 0
    ) -> None:
        self.store = store
        self.broker: Broker = lazaretto.connect(store)
        self.letters = letters
        self.kills = 0
        self.broker.create_queue("q", QueueOptions(requires_session=bool(sessions), partitions=partitions))
        self._set_aside(sessions, keys)
        self.before = self.picture()
        self.repair: Repair = self.broker.plan_repair(
            "q", DeadLetterFilter(), everything=True, canary=0, in_flight=None
        )

    def _set_aside(self, sessions: int, keys: int) -> None:
        sender = self.broker.sender("q")
        for start in range(0, self.letters, 500):
            sender.send([
                Message(
                    b"%d" % n,
                    session_id=f"s{n % sessions}" if sessions else None,
                    partition_key=f"k{n % keys}" if keys else None,
                )
                for n in range(start, min(start + 500, self.letters))
            ])  # fmt: skip
        for session in self.broker.sessions("q") if sessions else [None]:
            with self.broker.receiver("q", session=session) as receiver:
                while messages := receiver.receive(500):
                    receiver.dead_letter(messages, reason="why")

    def close(self) -> None:
        self.broker.close()

    def picture(self) -> list[Any]:
        """Everything that a letter is made of, in the store."""
        with self.broker.transaction() as tx:
            return [tx.execute(sql).fetchall() for sql in PICTURES]

    def start(self, point: str, count: int) -> Forked:
        """Start a runner, and wait until it is ready."""
        ready, told = Pipe(duplex=False)
        with ready, told:
            process = Forked(main, self.store, point, count, told)
            told.close()
            assert ready.poll(60.0)
            # A commit of the broker's own thread may have been the one at which it kills itself.
            with contextlib.suppress(EOFError):
                ready.recv()
        return process

    def run_at_point(self, point: str, count: int) -> None:
        """Let a runner work until it kills itself, or is done."""
        with self.start(point, count) as process:
            assert process.wait(120) in (0, -signal.SIGKILL)
        self.kills += process.returncode != 0

    def run_for(self, seconds: float, point: str = "none") -> None:
        """Let a runner, or a host, work for some time, and kill it."""
        with self.start(point, 0) as process:
            ended = process.wait(seconds)
            assert ended in (None, 0, -signal.SIGKILL)
            if ended is None:
                process.kill()
                self.kills += 1

    def check_applied(self, orders: int = 0) -> None:
        """Check that each letter was sent once, and in order: in that of each session or key, if any."""
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
        if orders:
            of_each = [[n for n in sent if n % orders == one] for one in range(orders)]
            assert of_each == [list(range(one, self.letters, orders)) for one in range(orders)]
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
        stage.close()


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


def test_killed_hosts(place: str, made: list[RepairStage]) -> None:
    """With LAZARETTO_SOAK: 100,000 letters and 100 kills of hosts that run the repair beside a handler."""
    letters, kills = (100_000, 100) if SOAK else (2_000, 1)
    stage = RepairStage(place, letters)
    made.append(stage)
    stage.broker.create_queue("elsewhere")
    draw = random.Random(11)
    for verb, check in ((stage.repair.apply, stage.check_applied), (stage.repair.undo, stage.check_undone)):
        verb()
        stage.kills = 0
        while stage.kills < kills and stage.repair.status().phase in (
            RepairPhase.APPLYING, RepairPhase.UNDOING,
        ):  # fmt: skip
            stage.run_for(draw.uniform(0.0, 0.12), "host")
        check()


def test_connections_that_are_cut(postgres: Server) -> None:
    """With LAZARETTO_SOAK: 100,000 letters; 100 times all connections are cut, and as often in the undo."""
    letters, cuts = (100_000, 100) if SOAK else (1_500, 2)
    draw = random.Random(13)
    with (
        new_store(postgres.url) as url,
        psycopg.connect(postgres.url, autocommit=True) as operator,
        contextlib.closing(RepairStage(url, letters)) as stage,
    ):
        for verb, check in (
            (stage.repair.apply, stage.check_applied), (stage.repair.undo, stage.check_undone),
        ):  # fmt: skip
            verb()
            with stage.start("none", 0) as process:
                done = 0
                while process.returncode is None and done < cuts:
                    time.sleep(draw.uniform(0.0, 0.03))
                    operator.execute(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                        "WHERE application_name = 'lazaretto'"
                    )
                    done += 1
                assert process.wait(300) == 0
            assert done
            check()


@pytest.mark.parametrize("partitions", [1, 8])
def test_sessions_stay_whole(place: str, made: list[RepairStage], partitions: int) -> None:
    """100 sessions (with LAZARETTO_SOAK of 100 letters each) are never split, whoever is killed."""
    sessions, kills = 100, 20 if SOAK else 1
    stage = RepairStage(place, 10_000 if SOAK else 1_000, sessions, partitions)
    made.append(stage)
    each = stage.letters // sessions
    canary = stage.broker.plan_repair("q", DeadLetterFilter(), everything=True, canary=3 * each)
    assert (canary.status().order, canary.status().sessions) == ("session", sessions)
    assert canary.status().canary == 3 * each
    bodies = [letter.sequence_number for letter in canary.left()]
    by_number = {letter.sequence_number: letter.message for letter in canary.left(messages=True)}
    order = [int(by_number[number].body) % sessions for number in bodies]  # type: ignore[union-attr]
    assert len([1 for one, next_ in itertools.pairwise(order) if one != next_]) == sessions - 1
    canary.cancel()
    stage.repair.apply()
    draw = random.Random(17)
    while stage.kills < kills and stage.repair.status().phase is RepairPhase.APPLYING:
        stage.run_for(draw.uniform(0.0, 0.1))
    stage.check_applied(sessions)
    stage.repair.undo()
    stage.check_undone()


def test_partitions_keep_their_order(place: str, made: list[RepairStage]) -> None:
    """Each key of a partitioned queue keeps its order, though runners are killed, also while it is undone."""
    keys, kills = 50, 100 if SOAK else 2
    stage = RepairStage(place, 100_000 if SOAK else 1_500, partitions=8, keys=keys)
    made.append(stage)
    draw = random.Random(23)
    stage.repair.apply()
    for point in ("in_messages", "in_repair"):
        stage.run_at_point(point, 2)
    while stage.kills < kills and stage.repair.status().phase is RepairPhase.APPLYING:
        stage.run_for(draw.uniform(0.0, 0.06))
    stage.check_applied(keys)
    assert stage.kills >= 2
    stage.kills = 0
    stage.repair.undo()
    for point in ("in_undo", "after_commit"):
        stage.run_at_point(point, 1)
    while stage.kills < kills and stage.repair.status().phase is RepairPhase.UNDOING:
        stage.run_for(draw.uniform(0.0, 0.06))
    assert stage.kills >= 2
    stage.check_undone()


def test_an_edit_by_a_function_is_killed(
    place: str, made: list[RepairStage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = 20_000 if SOAK else 600
    (tmp_path / "killed_edit.py").write_text(
        "from lazaretto import Message\n"
        "def mend(letter):\n    return Message(letter.message.body, subject='mended')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    stage = RepairStage(place, letters)
    made.append(stage)
    stage.repair = stage.broker.plan_repair(
        "q", DeadLetterFilter(), everything=True, canary=0, in_flight=None, edit="killed_edit:mend"
    )
    stage.repair.apply()
    draw = random.Random(19)
    while stage.kills < (20 if SOAK else 2) and stage.repair.status().phase is RepairPhase.APPLYING:
        stage.run_for(draw.uniform(0.3, 1.0))
    stage.check_applied()
    assert {message.subject for message in stage.broker.peek("q", letters)} == {"mended"}
    stage.repair.undo()
    stage.run_for(0.02)
    stage.check_undone()


def test_one_that_does_not_help(place: str, made: list[RepairStage]) -> None:
    """The canary's letters are sent, and not one more; the ramp stops by itself as well."""
    stage = RepairStage(place, 2_000)
    made.append(stage)
    stage.repair.cancel()
    repair = stage.broker.plan_repair("q", DeadLetterFilter(), everything=True, canary=10)
    over = threading.Event()

    def fail_all() -> None:
        with stage.broker.receiver("q") as receiver:
            while not over.is_set():
                for message in receiver.receive(10, max_wait=0.1):
                    receiver.dead_letter(message, reason="as before")

    consumer = threading.Thread(target=fail_all)
    consumer.start()
    try:
        repair.canary()
        assert repair.run().phase is RepairPhase.FAILED
        assert len(list(repair.letters())) == 10
        second = stage.broker.plan_repair("q", DeadLetterFilter(), everything=True, canary=0, in_flight=100)
        second.apply()
        assert second.run().phase is RepairPhase.STOPPED
        assert len(list(second.letters())) <= 10
    finally:
        over.set()
        consumer.join()


@pytest.mark.skipif(not SOAK, reason="a million letters: LAZARETTO_SOAK=1")
def test_a_million(place: str, made: list[RepairStage]) -> None:
    stage = RepairStage(place, 1_000_000)
    made.append(stage)
    stage.repair.apply()
    stage.check_applied()
    stage.repair.undo()
    stage.check_undone()
