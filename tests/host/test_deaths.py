"""The host itself is stopped and killed: nothing is lost, done twice, or charged to the innocent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE, wait_until

from lazaretto import Broker, PoisonPolicy
from lazaretto.host import Isolation
from lazaretto.host.handlers import GivenIsolation

from .serving import send

PROGRAM = Path(__file__).with_name("program.py")


class Service:
    """A host's process, and what it has begun."""

    def __init__(
        self, store: Path, isolation: GivenIsolation, *, batch: int = 50, slots: int = 1, grace: float = 30
    ) -> None:
        self.begun = store.with_name("begun")
        self.begun.touch()
        self._stopping, self._go = (store.with_name(name) for name in ("stopping", "go"))
        self._words = [
            sys.executable,
            str(PROGRAM),
            str(store),
            Isolation(isolation).value,
            str(batch),
            str(slots),
            str(grace),
        ]

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        known = {**os.environ, "BEGUN": str(self.begun), **environment}
        return subprocess.Popen(self._words, env=known, stderr=subprocess.PIPE)

    def lines(self) -> list[bytes]:
        return self.begun.read_bytes().splitlines()

    def let_go(self) -> None:
        """Let those go on whose word is `wait`."""
        self._go.touch()

    def stop(self, process: subprocess.Popen[bytes], number: int) -> int:
        """Stop it with a signal; those that wait go on once it has told its slots to stop."""
        process.send_signal(number)
        wait_until(self._stopping.exists)
        self.let_go()
        return end(process)


@pytest.fixture(autouse=True)
def _table(broker: Broker) -> None:
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE done (n INTEGER PRIMARY KEY)")
    broker.update_queue("work", policy=PoisonPolicy())


def done(broker: Broker) -> list[int]:
    with broker.transaction() as tx:
        return [n for (n,) in tx.execute("SELECT n FROM done ORDER BY n").fetchall()]


def settled(broker: Broker) -> bool:
    return broker.queue("work").counts.locked == 0


def end(process: subprocess.Popen[bytes], number: int = 0) -> int:
    """Send a signal, if one is given, and wait for the end; there must be no traceback."""
    process.send_signal(number)
    _, text = process.communicate(timeout=PATIENCE)
    assert b"Traceback" not in text, text.decode()
    return process.returncode


def test_told_to_stop_it_finishes_what_runs_and_gives_back_the_rest(
    broker: Broker, store: Path, isolation: GivenIsolation
) -> None:
    numbers = send(broker, "work", b"wait", *[b"good %d" % n for n in range(80)])
    service = Service(store, isolation)
    process = service.start()
    wait_until(lambda: len(service.lines()) == 1)
    assert service.stop(process, signal.SIGTERM) == 0
    assert done(broker) == numbers[:1]
    rest = broker.peek("work", 100)
    assert [m.sequence_number for m in rest] == numbers[1:]
    assert {(m.state.value, m.delivery_count) for m in rest} == {("active", 0)}
    assert len(service.lines()) == 1


def test_what_is_not_finished_within_the_grace_is_given_back(
    broker: Broker, store: Path, isolation: GivenIsolation
) -> None:
    numbers = send(broker, "work", b"nap 3600", b"good")
    service = Service(store, isolation, grace=0.2)
    process = service.start()
    wait_until(lambda: len(service.lines()) == 1)
    assert end(process, signal.SIGINT) == 0
    assert done(broker) == []
    rest = broker.peek("work", 9)
    assert [(m.sequence_number, m.state.value, m.delivery_count) for m in rest] == [
        (n, "active", 0) for n in numbers
    ]


def test_three_rolling_restarts_that_kill_charge_nothing(
    broker: Broker, store: Path, isolation: GivenIsolation
) -> None:
    """Killed at work three times: those at work are suspects, alone from then on, and all get done."""
    numbers = send(broker, "work", *[b"nap 0.01 %d" % n for n in range(120)])
    service = Service(store, isolation)
    for _ in range(3):
        before = len(service.lines())
        process = service.start()
        wait_until(lambda before=before: len(service.lines()) > before + 3)  # type: ignore[misc]
        assert end(process, signal.SIGKILL) == -signal.SIGKILL
        wait_until(lambda: settled(broker))
        charged = [m for m in broker.peek("work", 200) if m.delivery_count]
        # At most the one that was alone at work when its host died.
        assert len(charged) <= 3
        begun = {int(line.split()[-1]) for line in service.lines()}
        assert {m.body for m in charged} <= {b"nap 0.01 %d" % n for n in begun}
    assert end(service.start(ONCE="1")) == 0
    assert done(broker) == numbers
    assert broker.queue("work").counts.total == 0


@pytest.mark.parametrize(("at", "slots"), [({20}, 1), ({3, 20, 41}, 3)], ids=["one", "three"])
def test_killers_among_fifty_in_the_hosts_own_process(
    broker: Broker, store: Path, at: set[int], slots: int
) -> None:
    numbers = send(broker, "work", *[b"killer" if n in at else b"good %d" % n for n in range(50)])
    service = Service(store, "inline", slots=slots)
    deaths = 0
    while (code := end(service.start(ONCE="1"))) != 0:
        assert code == -signal.SIGKILL
        deaths += 1
        wait_until(lambda: settled(broker))
    assert deaths <= 8 * len(at)
    assert {d.sequence_number for d in broker.dead_letters("work")} == {numbers[n] for n in at}
    assert done(broker) == [number for n, number in enumerate(numbers) if n not in at]


def test_a_killer_in_a_sandbox_never_reaches_the_host(broker: Broker, store: Path) -> None:
    numbers = send(broker, "work", *[b"killer" if n == 20 else b"good %d" % n for n in range(50)])
    assert end(Service(store, "process").start(ONCE="1")) == 0
    (dead,) = broker.dead_letters("work")
    assert (dead.sequence_number, dead.reason) == (numbers[20], "WorkerCrashed")
    assert "SIGKILL" in (dead.error_message or "")
    assert len(done(broker)) == 49


def test_many_hosts_on_one_store_share_the_work(broker: Broker, store: Path) -> None:
    numbers = send(broker, "work", *[b"nap 0.005 %d" % n for n in range(300)])
    service = Service(store, "process", batch=10)
    hosts: list[Any] = [service.start(ONCE="1") for _ in range(3)]
    assert [end(host) for host in hosts] == [0, 0, 0]
    assert done(broker) == numbers
    assert len(service.lines()) == 300
