"""Workers that die with messages in their hands: who is blamed, who is cleared, who is not charged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import lazaretto
from lazaretto import Broker, Message, Outcome, PoisonPolicy, QueueOptions

QUEUE = "work"
PATIENCE = 120.0

#: Works as a service host does: under leases, which it starts on when it is about to call handlers.
HOST = """
import os, signal, sys
import lazaretto
from lazaretto.engine.unit_of_work import FinishHandover
from lazaretto.engine.messages.settle import COMPLETE, Settled
store, size, ahead = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
broker = lazaretto.connect(store)
receiver = broker.receiver("work")
while True:
    handover = receiver.take(size, 0.0)
    if handover is None:
        break
    if ahead:
        receiver.take(ahead, 0.0, started=False)
    for message in handover.messages:
        if message.body.startswith(b"killer"):
            os.kill(os.getpid(), signal.SIGKILL)
    settled = [Settled(m, COMPLETE) for m in handover.messages]
    broker._store.run(FinishHandover(settled, token=handover.lock.token))
broker.close()
"""
#: A plain receiver: it knows nothing of leases.
PLAIN = """
import os, signal, sys
import lazaretto
broker = lazaretto.connect(sys.argv[1])
receiver = broker.receiver("work")
while batch := receiver.receive(int(sys.argv[2])):
    for message in batch:
        if message.body.startswith(b"killer"):
            os.kill(os.getpid(), signal.SIGKILL)
    receiver.complete(batch)
broker.close()
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "blame.db"


@pytest.fixture
def broker(store: Path) -> Iterator[Broker]:
    with lazaretto.connect(store) as broker:
        broker.create_queue(QUEUE, QueueOptions(policy=PoisonPolicy()))
        yield broker


def _fill(broker: Broker, bodies: list[bytes]) -> None:
    broker.sender(QUEUE).send([Message(body) for body in bodies])


def _run(script: str, store: Path, *words: int) -> int:
    return subprocess.run(
        [sys.executable, "-c", script, str(store), *map(str, words)], check=False
    ).returncode


def _await(broker: Broker, kind: str, count: int) -> None:
    """Wait until there were so many events of a kind."""
    position, seen = 0, 0
    while seen < count:
        found = broker.events(position, kind=kind, max_wait=PATIENCE)
        assert found, f"expected {count} events {kind}, got {seen}"
        position, seen = found[-1].position, seen + len(found)


def _work_off(script: str, broker: Broker, store: Path, *words: int) -> int:
    """Start the worker again each time it dies, until it ends by itself; return the deaths."""
    deaths = 0
    while (code := _run(script, store, *words)) != 0:
        assert code == -signal.SIGKILL
        deaths += 1
        assert deaths < 50
        held = list(broker.events(kind="suspects_held"))
        _await(broker, "suspects_held", len(held) or 1)
        _until_free(broker)
    return deaths


def _until_free(broker: Broker) -> None:
    """Wait until nothing is locked: what the dead held was given back, blamed, or has run out."""
    position = broker.last_event()
    while broker.queue(QUEUE).counts.locked:
        broker.events(position, max_wait=0.05)


@pytest.mark.parametrize("script", [HOST, PLAIN], ids=["host", "plain receiver"])
@pytest.mark.parametrize("killers", [1, 3] if "LAZARETTO_SOAK" in os.environ else [3])
def test_only_the_killers_among_fifty_are_set_aside(
    broker: Broker, store: Path, script: str, killers: int
) -> None:
    at = {17, 30, 44} if killers == 3 else {17}
    if script == PLAIN:
        # What it held comes back when its locks have run out.
        broker.update_queue(QUEUE, lock_duration=2)
    _fill(broker, [b"killer %d" % n if n in at else b"%d" % n for n in range(50)])
    deaths = _work_off(script, broker, store, 50, 0)
    # One that holds them all, then each alone, as often as the policy lets it.
    assert deaths == 1 + 3 * killers
    assert broker.queue(QUEUE).counts.total == killers
    dead = list(broker.dead_letters(QUEUE))
    assert {d.message.body for d in dead if d.message} == {b"killer %d" % n for n in at}
    assert {d.reason for d in dead} == {"WorkerCrashed"}
    assert {d.counters.worker_deaths for d in dead} == {4}
    cleared = [e.detail for e in broker.events(kind="suspect_cleared")]
    assert cleared == [{"deaths": 1}] * (50 - killers)
    found = Counter(e.sequence_number for e in broker.events(kind="killer_found"))
    assert set(found) == {d.sequence_number for d in dead}


def test_the_history_tells_the_evidence(broker: Broker, store: Path) -> None:
    _fill(broker, [b"killer", b"bystander"])
    _work_off(HOST, broker, store, 2, 0)
    (dead,) = broker.dead_letters(QUEUE)
    attempts = broker.dead_letter(QUEUE, dead.sequence_number).attempts
    assert [a.outcome for a in attempts] == [Outcome.LOST] * 4
    texts = [a.error_message or "" for a in attempts]
    assert texts[0].endswith("died while it held 2 messages")
    assert all(text.endswith("died while it held this message alone") for text in texts[1:])
    assert len({a.worker for a in attempts}) == 4


def test_what_a_host_had_not_started_is_given_back_uncharged(broker: Broker, store: Path) -> None:
    _fill(broker, [b"killer"] + [b"%d" % n for n in range(10)])
    assert _run(HOST, store, 1, 10) == -signal.SIGKILL
    _await(broker, "killer_found", 1)
    with broker.receiver(QUEUE) as receiver:
        (killer,) = receiver.receive(50)
        assert (killer.body, killer.delivery_count) == (b"killer", 1)
        receiver.dead_letter(killer)
        rest = receiver.receive(50)
    assert [m.body for m in rest] == [b"%d" % n for n in range(10)]
    assert {m.delivery_count for m in rest} == {0}
    for message in rest:
        (past,) = broker.attempts(QUEUE, message.sequence_number)
        assert past.outcome is Outcome.RELEASED


def test_the_same_of_one_whose_locks_have_run_out_when_somebody_looks(store: Path) -> None:
    with lazaretto.connect(store) as broker:
        broker.create_queue(QUEUE, QueueOptions(lock_duration=1))
        _fill(broker, [b"killer"] + [b"%d" % n for n in range(10)])
    assert _run(HOST, store, 1, 10) == -signal.SIGKILL
    time.sleep(1.1)
    with lazaretto.connect(store) as broker:
        _await(broker, "killer_found", 1)
        rest = broker.peek(QUEUE, 50)[1:]
        assert {(m.delivery_count, m.state.value) for m in rest} == {(0, "active")}
        for message in rest:
            (past,) = broker.attempts(QUEUE, message.sequence_number)
            assert past.outcome is Outcome.RELEASED


def test_a_host_that_dies_is_noticed_long_before_its_locks_run_out(store: Path) -> None:
    with lazaretto.connect(store) as broker:
        broker.create_queue(QUEUE, QueueOptions(lock_duration=86_400))
        _fill(broker, [b"killer", b"x"])
        assert _run(HOST, store, 2, 0) == -signal.SIGKILL
        _await(broker, "suspects_held", 1)
        assert broker.queue(QUEUE).counts.suspect == 2


def test_suspects_are_charged_nothing_by_kills_that_were_not_theirs(broker: Broker, store: Path) -> None:
    """A rolling restart kills three workers at work; all they held is innocent, and stays uncharged."""
    _fill(broker, [b"%d" % n for n in range(30)])
    script = HOST.replace('if message.body.startswith(b"killer"):', "if True:")
    for round_ in range(1, 4):
        assert _run(script, store, 30, 0) == -signal.SIGKILL
        _until_free(broker)
        # The first dies with all of them; from then on they go out alone.
        assert broker.queue(QUEUE).counts.suspect == 30, round_
    rows = broker.peek(QUEUE, 50)
    # The first in order was alone with the second and the third worker: twice is not poison yet.
    assert sorted(m.delivery_count for m in rows) == [0] * 29 + [3]
    assert _run(HOST, store, 50, 0) == 0
    assert broker.queue(QUEUE).counts.total == 0


def test_suspects_keep_their_place(broker: Broker, store: Path) -> None:
    """What stands before a suspect goes first, what is behind it waits."""
    broker.update_queue(QUEUE, lock_duration=60)
    with broker.receiver(QUEUE) as receiver:
        _fill(broker, [b"first"])
        first = receiver.receive()
        _fill(broker, [b"killer", b"second"])
        assert _run(HOST, store, 2, 0) == -signal.SIGKILL
        _await(broker, "suspects_held", 1)
        _fill(broker, [b"third"])
        receiver.release(first)
        order = []
        while batch := receiver.receive(10):
            order.append([m.body for m in batch])
            receiver.complete(batch)
    assert order == [[b"first"], [b"killer"], [b"second"], [b"third"]]


def test_a_worker_that_leaves_in_good_order_is_not_a_dead_one(broker: Broker, store: Path) -> None:
    """It may leave messages locked; they run out as expired, as ever."""
    broker.update_queue(QUEUE, lock_duration=1)
    _fill(broker, [b"1", b"2"])
    leaving = "import lazaretto, sys\nwith lazaretto.connect(sys.argv[1]) as b: b.receiver('work').receive(2)"
    assert _run(leaving, store) == 0
    _until_free(broker)
    for message in broker.peek(QUEUE, 2):
        (past,) = broker.attempts(QUEUE, message.sequence_number)
        assert past.outcome is Outcome.LOCK_EXPIRED
        assert message.delivery_count == 1


def test_a_suspect_of_a_session_is_tried_alone_in_its_order(store: Path) -> None:
    with lazaretto.connect(store) as broker:
        broker.create_queue(QUEUE, QueueOptions(lock_duration=1, requires_session=True))
        bodies = [b"0", b"1", b"killer", b"3", b"4"]
        broker.sender(QUEUE).send([Message(body, session_id="s") for body in bodies])
        script = PLAIN.replace('receiver("work")', 'receiver("work", session="s")')
        assert _run(script, store, 3) == -signal.SIGKILL
        _until_free(broker)
        with broker.receiver(QUEUE, session="s") as receiver:
            order = []
            while batch := receiver.receive(10):
                order.append([m.body for m in batch])
                receiver.complete(batch)
        assert order == [[b"0"], [b"1"], [b"killer"], [b"3", b"4"]]
