"""Azure's unchanged clients at a queue whose dependency is away for a minute: it costs nobody anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import wait_until

from door.served import Served
from lazaretto import BreakerPolicy, Broker, Message, PoisonPolicy, QueueOptions
from lazaretto.model.breaker import BreakerStatus

_HERE = Path(__file__).parent
#: For how long the dependency is away, in seconds, and how many messages are sent meanwhile in each of them.
AWAY, RATE = 60.0, 200
DELIVERIES = 10

Words = tuple[list[str], dict[str, str]]

pytestmark = [
    pytest.mark.skipif(not os.environ.get("LAZARETTO_SOAK"), reason="it takes minutes"),
    pytest.mark.stores("sqlite", "postgres"),
]


def _python(served: Served, _down: Path, _request: pytest.FixtureRequest) -> Words:
    return [sys.executable, str(_HERE / "python_worker.py"), served.connection_string, "away"], {}


def _javascript(served: Served, _down: Path, request: pytest.FixtureRequest) -> Words:
    packages = request.getfixturevalue("packages")
    program = str(_HERE / "javascript" / "worker.js")
    return ["node", program, served.connection_string, "away", "16"], {"NODE_PATH": str(packages)}


def _dotnet(served: Served, down: Path, _request: pytest.FixtureRequest) -> Words:
    client = os.environ.get("LAZARETTO_TEST_DOTNET")
    if client is None:
        pytest.skip("LAZARETTO_TEST_DOTNET names no client for .NET")
    options = ["calls=16", "prefetch=50", f"down={down}", "seconds=3600"]
    return [client, "work", str(served.port), "away", *options], {}


@pytest.fixture
def stopped() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("client", [_python, _javascript, _dotnet])
def test_a_minute_without_the_dependency(
    served: Served,
    broker: Broker,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    stopped: threading.Event,
    client: Callable[[Served, Path, pytest.FixtureRequest], Words],
) -> None:
    breaker = BreakerPolicy(clients=True)
    broker.create_queue("away", QueueOptions(policy=PoisonPolicy.service_bus(DELIVERIES), breaker=breaker))
    down, sender = tmp_path / "down", broker.sender("away")

    def send() -> None:
        while not stopped.wait(0.1):
            sender.send([Message(b"x") for _ in range(RATE // 10)])

    words, environment = client(served, down, request)
    environment |= {"DOWN": str(down)}
    output = (tmp_path / "output").open("w")
    worker = subprocess.Popen(words, stdout=output, stderr=output, env={**os.environ, **environment})
    thread = threading.Thread(target=send)
    thread.start()
    try:
        wait_until(lambda: broker.rates("away") and broker.queue("away").counts.total < RATE)
        down.touch()
        wait_until(lambda: broker.breaker("away").status is BreakerStatus.OPEN)
        opened = time.monotonic()
        time.sleep(AWAY)
        down.unlink()
        back = time.monotonic()
        wait_until(lambda: broker.breaker("away").status is not BreakerStatus.OPEN)
        first = time.monotonic() - back
        stopped.set()
        wait_until(lambda: broker.queue("away").counts.total == 0)
        drained = time.monotonic() - back
    finally:
        stopped.set()
        thread.join()
        worker.kill()
        worker.wait()
        output.close()
    seconds = {"to the first probe that completes": first, "until the backlog is gone": drained}
    print(client.__name__, json.dumps(seconds), f"open for {back - opened:.0f} s")
    assert broker.queue("away").counts.dead_letter == 0
    # Attempts of the outage were refunded.
    assert _deliveries((tmp_path / "output").read_text()) <= {0, 1}


def _deliveries(output: str) -> set[int]:
    """Return how often messages had been delivered before, as a worker printed it."""
    told = {int(count) - 1 for count in re.findall(r'"DeliveryCount":(\d+)', output)}
    return told | {int(count) for count in re.findall(r"^x (\d+)$", output, re.MULTILINE)}
