"""Unchanged clients in an outage, and beside a message that kills its process: neither costs the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient
from patience import PATIENCE, wait_until

from door.served import Served
from lazaretto import BreakerPolicy, Broker, Message, PoisonPolicy, QueueOptions
from lazaretto.model.breaker import BreakerStatus

_HERE = Path(__file__).parent
_SOAK = bool(os.environ.get("LAZARETTO_SOAK"))
#: Seconds after which what a killed client worked on can be handed out again. On a busy machine .NET takes
#: three to begin with what it has prefetched. Locks that run out in them count: their connection lives.
LOCK = 10.0 if _SOAK else 1.0
COUNT = 50
DEATHS = 3
#: Dead letters in the end: the killer.
DEAD = 1

Worker = Callable[..., "subprocess.CompletedProcess[str]"]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **environment}
    )


def python(served: Served, session: str | None) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(_HERE / "python_worker.py"), served.connection_string, "killed"]
    return run(*words, *([] if session is None else [session]))


@pytest.fixture(params=["python", "javascript", "dotnet"])
def worker(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> Worker:
    """Return what runs a worker on one of Azure's clients until it ends, or dies."""
    if request.param == "python":
        return python
    if request.param == "dotnet":
        return _dotnet(broker, tmp_path / "output")
    packages: Path = request.getfixturevalue("packages")
    program = str(_HERE / "javascript" / "worker.js")

    def javascript(served: Served, session: str | None) -> subprocess.CompletedProcess[str]:
        words = ["node", program, served.connection_string, "killed", "4", session or ""]
        return run(*words, NODE_PATH=str(packages))

    return javascript


def _dotnet(broker: Broker, output: Path) -> Worker:
    """Return what runs .NET's processor until it dies, or has nothing more to do."""
    client = os.environ.get("LAZARETTO_TEST_DOTNET")
    if not client or not _SOAK:
        pytest.skip("it takes a minute, and LAZARETTO_TEST_DOTNET must name a client for .NET")

    def run_dotnet(served: Served, session: str | None) -> subprocess.CompletedProcess[str]:
        options = ["calls=4", "prefetch=50", "seconds=3600", *(["sessions=1"] if session else [])]
        words = [client, "work", str(served.port), "killed", *options]
        with output.open("w") as file, subprocess.Popen(words, stdout=file, stderr=file) as process:
            wait_until(lambda: process.poll() is not None or broker.queue("killed").counts.total == DEAD)
            ended = process.poll()
            process.kill()
        said = [json.loads(line) for line in output.read_text().splitlines() if line.startswith('{"at"')]
        came = [one["more"] for one in said if one["what"] == "came"]
        lines = [f"{one['body']} {one['DeliveryCount'] - 1}" for one in came]
        return subprocess.CompletedProcess(words, ended or 0, "\n".join(lines))

    return run_dotnet


class Backlog:
    """A queue with one killer among its messages."""

    def __init__(self, broker: Broker, session: str | None) -> None:
        self._broker = broker
        options = QueueOptions(
            lock_duration=LOCK,
            policy=PoisonPolicy.service_bus(DEATHS),
            requires_session=session is not None,
            blame_clients=True,
        )
        broker.create_queue("killed", options)
        bodies = ["exit" if n == COUNT // 4 else f"good-{n}" for n in range(COUNT)]
        broker.sender("killed").send([Message(body.encode(), session_id=session) for body in bodies])
        self._session = session

    def end(self) -> None:
        """Have the worker end once all else is done."""
        self._broker.sender("killed").send(Message(b"end", session_id=self._session))

    @property
    def standing(self) -> tuple[int, int]:
        """How many messages are in the queue, and how many dead letters."""
        counts = self._broker.queue("killed").counts
        return counts.total - counts.dead_letter, counts.dead_letter


@pytest.mark.parametrize("session", [None, "s"])
def test_a_killer_costs_only_itself(
    served: Served, broker: Broker, worker: Worker, session: str | None
) -> None:
    backlog = Backlog(broker, session)
    lines: list[str] = []
    for _ in range(COUNT):
        if backlog.standing[1]:
            backlog.end()
        done = worker(served, session)
        lines += done.stdout.splitlines()
        if done.returncode == 0:
            break
        # Its lock must run out before it is blamed, and be handed out again, or set aside.
        wait_until(lambda: broker.queue("killed").counts.locked == 0)
    assert backlog.standing == (0, 1)
    assert [letter.reason for letter in broker.dead_letters("killed")] == ["WorkerCrashed"]
    handed = [line.split() for line in lines if line.startswith("good")]
    assert {body for body, _ in handed} == {f"good-{n}" for n in range(COUNT) if n != COUNT // 4}
    assert {count for _, count in handed} == {"0"}


@pytest.fixture
def stopped() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_an_outage_costs_nothing(served: Served, broker: Broker, stopped: threading.Event) -> None:
    breaker = BreakerPolicy(messages=5, probe_interval=0.2, longest_probe_interval=0.5, clients=True)
    broker.create_queue("down", QueueOptions(policy=PoisonPolicy.service_bus(2), breaker=breaker))
    broker.sender("down").send([Message(b"x") for _ in range(COUNT)])
    down, counts = threading.Event(), set[int]()
    down.set()

    def work() -> None:
        with ServiceBusClient.from_connection_string(served.connection_string) as client:
            receiver = client.get_queue_receiver("down", prefetch_count=20)
            while not stopped.is_set():
                for message in receiver.receive_messages(max_wait_time=1):
                    counts.add(message.delivery_count or 0)
                    settle = receiver.abandon_message if down.is_set() else receiver.complete_message
                    settle(message)
            receiver.close()

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: broker.breaker("down").status is BreakerStatus.OPEN)
    assert [trouble.kind for trouble in broker.status().queues[0].troubles] == ["breaker_open"]
    # A few probes fail.
    position = broker.last_event()
    wait_until(lambda: sum(m.attempt for m in broker.peek("down", COUNT)) > COUNT)
    assert (broker.breaker("down").status, broker.queue("down").counts.dead_letter) == (BreakerStatus.OPEN, 0)
    down.clear()
    broker.events(position, kind="breaker_closed", max_wait=PATIENCE)
    wait_until(lambda: broker.queue("down").counts.total == 0)
    stopped.set()
    thread.join()
    assert counts <= {0, 1}
