"""Processes that talk by dialogs, killed: all is heard once, in order, and nothing is left."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lazaretto
from lazaretto import Broker, PoisonPolicy

from .stage import Stage
from .test_crash import SOAK

#: Exactly once: a second row for a message would be refused.
_HEARD = "CREATE TABLE heard (conversation TEXT, number INTEGER, PRIMARY KEY (conversation, number))"


class DialogStage(Stage):
    """A store with two services, and what must be true of their dialogs."""

    def __init__(self, folder: Path, store: str) -> None:
        super().__init__(folder, store)
        with lazaretto.connect(store) as broker:
            broker.dialogs.create_service("Front", "front", lock_duration=1.0)
            broker.dialogs.create_service("Shop", "shop", ["DEFAULT"], lock_duration=1.0)
            # However many die of it, here nothing is poison.
            policy = PoisonPolicy(receive_retry_count=1_000, max_worker_deaths=None)
            for path in ("front", "shop"):
                broker.update_queue(path, policy=policy)
            with broker.transaction() as tx:
                tx.execute(_HEARD)

    def begin(self, count: int) -> None:
        """Begin dialogs as a process that lives."""
        with lazaretto.connect(self.store) as broker, self.journal.open("a") as file:
            for _ in range(count):
                with broker.dialogs.transaction() as work:
                    handle = work.begin_dialog("Front", "Shop")
                    for body in (b"1", b"2", b"3", b"4", b"last"):
                        work.send(handle, body=body)
                file.write(f"sending {handle}\nsent {handle}\n")

    def check_dialogs(self) -> None:
        """Let everybody read to the end; then all is heard that was sent, once, and nothing is left."""
        lines = self._lines()
        sending, sent = ({line[1] for line in lines if line[0] == kind} for kind in ("sending", "sent"))
        with self._later() as broker:
            assert broker.check() == []
            before = _heard(broker)
            for numbers in before.values():
                assert sorted(numbers) == list(range(1, len(numbers) + 1)), "a later one went first"
            order = _read_on(broker)
            for handle, numbers in order.items():
                first = len(before.get(handle, [])) + 1
                assert numbers == list(range(first, first + len(numbers))), "out of order"
            heard = {handle: len(numbers) for handle, numbers in before.items()}
            for handle, numbers in order.items():
                heard[handle] = heard.get(handle, 0) + len(numbers)
            far = {f"{handle[:-1]}i": count for handle, count in heard.items()}
            assert set(far) <= sending, "a dialog was heard that nobody began"
            # Killed between its two commits, a dialog has three messages.
            assert set(far.values()) <= {3, 5}
            assert {handle for handle, count in far.items() if count == 3}.isdisjoint(sent)
            assert sent <= set(far), "a dialog is lost"
            for conversation in list(broker.dialogs.conversations(queue="front")):
                if conversation.state.value == "conversing":
                    broker.dialogs.end(conversation.conversation)
            _read_on(broker)
            assert list(broker.dialogs.conversations()) == []
            for path in ("front", "shop"):
                assert broker.queue(path).counts.total == 0
                assert broker.sessions(path) == []
        ((log,),) = self._stored("SELECT count(*) FROM lazaretto_dialog_log")
        assert log == 0


def _heard(broker: Broker) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    with broker.transaction() as tx:
        for handle, number in tx.execute("SELECT conversation, number FROM heard").fetchall():
            found.setdefault(handle, []).append(number)
    return found


def _read_on(broker: Broker) -> dict[str, list[int]]:
    """Read both queues until nothing comes; return what the shop was told."""
    told: dict[str, list[int]] = {}
    quiet = 0
    while quiet < 2:
        quiet += 1
        for path in ("shop", "front"):
            with broker.dialogs.transaction(path) as work:
                for message in work.receive(max_messages=5):
                    quiet = 0
                    if path == "shop" and message.number is not None:
                        told.setdefault(message.conversation, []).append(message.number)
                    if message.body == b"last":
                        work.end(message.conversation)
    return told


@pytest.fixture
def stage(place: str, tmp_path: Path) -> Iterator[DialogStage]:
    with DialogStage(tmp_path, place) as stage:
        yield stage


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_killed_while_it_talks(stage: DialogStage, point: str) -> None:
    for count in range(1, 60 if SOAK else 7):
        stage.await_death(stage.start("talk", point, count))
    stage.check_dialogs()


@pytest.mark.parametrize("point", ["before_commit", "after_commit", "in_settle", "in_handler"])
def test_killed_while_it_listens(stage: DialogStage, point: str) -> None:
    rounds = 60 if SOAK else 6
    stage.begin(12 * rounds)
    for count in range(1, rounds + 1):
        stage.await_death(stage.start("listen", point, 1 + count % 7))
    stage.check_dialogs()


def test_killed_at_random(stage: DialogStage) -> None:
    """Two who talk and two who listen, one of them killed every few moments."""
    draw = random.Random(11)
    roles = {"talk 1": "talk", "talk 2": "talk", "listen 1": "listen", "listen 2": "listen"}
    rounds = 200 if SOAK else 8
    running = {name: stage.start(role) for name, role in roles.items()}
    end = time.monotonic() + (600 if SOAK else 60)
    for _ in range(rounds):
        name = draw.choice(sorted(roles))
        stage.wait_for_work(running[name], draw.randrange(1, 30))
        stage.kill(running[name])
        running[name] = stage.start(roles[name])
        assert time.monotonic() < end
    for process in running.values():
        stage.kill(process)
    stage.check_dialogs()
