"""`python -m bench.door`: the door for AMQP 1.0 clients, side by side with the Python API and with others.

Every figure is one of a pair that takes turns, in the same minutes on the same machine: the median of the
rounds, and of their ratios. Servers are processes of their own; so are the SDK's clients. Where the
processor of a server counts, it is read from /proc, so that the client's own does not matter.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import lazaretto
from bench.door.client import PAYLOAD, Client
from bench.machine import Machine
from lazaretto.amqp.events import MessageReceived
from lazaretto.door.conversions import message_of

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_THREADS: Final = 16
_BATCH: Final = 100


class Server(NamedTuple):
    """A process that serves, and its port."""

    process: subprocess.Popen[str]
    port: int

    def cpu(self) -> float:
        """Return the seconds of the processor that it has taken."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICKS

    def memory(self) -> int:
        """Return its resident memory, in bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE


@contextlib.contextmanager
def running(*words: str) -> Iterator[Server]:
    """Run a server that prints its port, or a line of JSON with it."""
    process = subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        yield Server(process, said if isinstance(said, int) else said["amqp_port"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()


@contextlib.contextmanager
def serving(store: Path) -> Iterator[Server]:
    """Serve a store of its own."""
    with lazaretto.connect(store) as broker:
        broker.create_queue("q")
    with running("lazaretto", "serve", "--store", str(store), "--amqp", "0", "--json") as server:
        yield server


@contextlib.contextmanager
def connected(server: Server) -> Iterator[Client]:
    client = Client(server.port)
    try:
        yield client
    finally:
        client.close()


class Pair:
    """What is measured, beside what; `higher`: whether more is better."""

    def __init__(self, title: str, names: tuple[str, str], unit: str, goal: str) -> None:
        self.title, self.names, self.unit, self.goal = title, names, unit, goal
        self.rounds: list[tuple[float, float]] = []

    def add(self, first: float, second: float) -> None:
        """Keep the figures of a round."""
        self.rounds.append((first, second))

    def row(self) -> str:
        """Return it as a row of a table."""
        if not self.rounds:
            return f"| {self.title} | not measured | | | | {self.goal} |"
        first, second = (statistics.median(one[at] for one in self.rounds) for at in (0, 1))
        ratios = sorted(one[0] / one[1] for one in self.rounds)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        told = (f"{self.names[at]} {value:,.4g} {self.unit}" for at, value in enumerate((first, second)))
        return f"| {self.title} | {' | '.join(told)} | {spread} | {self.goal} |"


# The engine and proton, each with a broker in memory.


def in_memory(count: int, module: str) -> tuple[float, float]:
    """Return the microseconds of the server's processor for a send, and for a delivery that is completed."""
    with running(module) as server, connected(server) as client:
        sender = client.sender("q")
        figures: list[float] = []
        client.send(sender, count // 10, _BATCH)
        receiver = client.receiver("q")
        client.receive(receiver, count // 10, _BATCH)
        for work, link in ((client.send, sender), (client.receive, receiver)):
            before = server.cpu()
            work(link, count, _BATCH)
            figures.append((server.cpu() - before) / count * 1e6)
        return figures[0], figures[1]


def measure_engine(rounds: int, count: int) -> list[Pair]:
    goal = "6 times less"
    sends = Pair("engine in memory, 100 sends open", ("proton", "own"), "µs of the server", goal)
    takes = Pair("engine in memory, 100 credits", ("proton", "own"), "µs of the server", goal)
    if importlib.util.find_spec("proton") is None:
        print("proton is not installed: pip install python-qpid-proton-wheel", flush=True)
        return [sends, takes]
    for _ in range(rounds):
        ours, theirs = (
            in_memory(count, module) for module in ("bench.door.memory", "bench.door.proton_memory")
        )
        sends.add(theirs[0], ours[0])
        takes.add(theirs[1], ours[1])
    return [sends, takes]


# The door and the Python API, each with a store in a file.


def threads_send(store: Path, count: int) -> float:
    """Return how many messages a second sixteen threads send through the Python API."""
    with lazaretto.connect(store) as broker:
        broker.create_queue("q")
        sender, message = broker.sender("q"), message_of(PAYLOAD)

        def send() -> None:
            for _ in range(count // _THREADS):
                sender.send(message)

        started = [threading.Thread(target=send) for _ in range(_THREADS)]
        begun = time.perf_counter()
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        return count / (time.perf_counter() - begun)


def door_sends(store: Path, count: int) -> float:
    """Return how many messages a second one connection sends with a hundred open."""
    with serving(store) as server, connected(server) as client:
        sender = client.sender("q")
        client.send(sender, _BATCH, _BATCH)
        return rate(count, lambda: client.send(sender, count, _BATCH))


def lone_sends(store: Path, count: int) -> tuple[float, float]:
    """Return the median microseconds of a send through the door, and through the Python API."""
    with serving(store) as server, connected(server) as client, lazaretto.connect(store) as broker:
        link, sender, message = client.sender("q"), broker.sender("q"), message_of(PAYLOAD)
        door, api = [], []
        for _ in range(count):
            door.append(timed(lambda: client.send(link, 1, 1)))
            api.append(timed(lambda: sender.send(message)))
        return statistics.median(door) * 1e6, statistics.median(api) * 1e6


def api_receives(store: Path, count: int) -> float:
    """Return how many messages a second the Python API receives and completes in batches of a hundred."""
    with lazaretto.connect(store) as broker:
        _fill(broker, count)
        receiver = broker.receiver("q")

        def work() -> None:
            while messages := receiver.receive(_BATCH):
                receiver.complete(messages)

        return rate(count, work)


def door_receives(store: Path, count: int) -> float:
    """Return how many messages a second a client with a hundred credits receives and completes."""
    with lazaretto.connect(store) as broker:
        _fill(broker, count)
    with serving_again(store) as server, connected(server) as client:
        receiver = client.receiver("q")
        return rate(count, lambda: client.receive(receiver, count, _BATCH))


@contextlib.contextmanager
def serving_again(store: Path) -> Iterator[Server]:
    """Serve a store that has its queue."""
    with running("lazaretto", "serve", "--store", str(store), "--amqp", "0", "--json") as server:
        yield server


def _fill(broker: lazaretto.Broker, count: int) -> None:
    broker.create_queue("q")
    sender, message = broker.sender("q"), message_of(PAYLOAD)
    for _ in range(count // 1_000):
        sender.send([message] * 1_000)


def measure_durable(rounds: int, count: int, folder: Path) -> list[Pair]:
    both = ("door", "API")
    sends = Pair("100 sends open, API with 16 threads", both, "/s", "0.6")
    lone = Pair("a lone send", both, "µs", "API + 150 µs")
    takes = Pair("100 credits, API in batches of 100", both, "/s", "0.5")
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as here:
            at = Path(here)
            sends.add(door_sends(at / "1.db", count), threads_send(at / "2.db", count))
            lone.add(*lone_sends(at / "3.db", count // 20))
            takes.add(door_receives(at / "4.db", count), api_receives(at / "5.db", count))
    return [sends, lone, takes]


# The SDK against the door, and against the broker in memory.

_SDK: Final = """
import sys, time
from azure.servicebus import ServiceBusClient, ServiceBusMessage
port, count = int(sys.argv[1]), int(sys.argv[2])
text = f"Endpoint=sb://localhost:{port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true;"
with ServiceBusClient.from_connection_string(text) as client, client.get_queue_sender("q") as sender:
    def singles(count):
        for _ in range(count):
            sender.send_messages(ServiceBusMessage(b"x" * 1024))
    def batches(count):
        for _ in range(count // 100):
            sender.send_messages([ServiceBusMessage(b"x" * 1024) for _ in range(100)])
    for work, many in ((singles, count), (batches, count * 5)):
        work(100)
        begun = time.perf_counter()
        work(many)
        print(many / (time.perf_counter() - begun))
"""


def sdk(server: Server, count: int) -> tuple[float, float]:
    """Return how many messages a second the SDK sends one by one, and in batches of a hundred."""
    words = [sys.executable, "-c", _SDK, str(server.port), str(count)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return float(said[0]), float(said[1])


def measure_sdk(rounds: int, count: int, folder: Path) -> list[Pair]:
    both = ("door", "memory")
    singles = Pair("Azure's SDK, single sends", both, "/s", "0.6")
    batches = Pair("Azure's SDK, batches of 100", both, "/s", "0.9")
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as here, serving(Path(here, "1.db")) as server:
            ours = sdk(server, count)
        with running("bench.door.memory") as server:
            theirs = sdk(server, count)
        singles.add(ours[0], theirs[0])
        batches.add(ours[1], theirs[1])
    return [singles, batches]


# What idle clients cost, and how soon one is woken.


def measure_idle(connections: int, seconds: float, folder: Path) -> str:
    """Return a row about connections that each wait for a message."""
    with tempfile.TemporaryDirectory(dir=folder) as here, serving(Path(here, "1.db")) as server:
        first = Client(server.port)
        first.receiver("q")
        before = server.memory()
        clients = [Client(server.port) for _ in range(connections)]
        for client in clients:
            link = client.receiver("q")
            link.session.grant(link, 1)
            client.tell()
        time.sleep(2.0)
        each = (server.memory() - before) / connections / 1024
        busy = server.cpu()
        time.sleep(seconds)
        share = (server.cpu() - busy) / seconds * 100
        for client in [first, *clients]:
            client.close()
    told = f"{share:.2f} % of a core | {each:.0f} KB each"
    return f"| {connections:,} idle connections | {told} | | 1 %, 60 KB |"


def measure_wake(count: int, folder: Path) -> str:
    """Return a row about how long it takes from a send by one client to the delivery to another."""
    found = []
    with (
        tempfile.TemporaryDirectory(dir=folder) as here,
        serving(Path(here, "1.db")) as server,
        connected(server) as sends,
        connected(server) as takes,
    ):
        sender, receiver = sends.sender("q"), takes.receiver("q")
        for _ in range(count):
            receiver.session.grant(receiver, 1)
            takes.tell()
            # Long enough to be waiting when it comes.
            time.sleep(0.01)
            begun = time.perf_counter()
            sends.transfer(sender)
            number = takes.until(MessageReceived).delivery_id
            found.append(time.perf_counter() - begun)
            sends.finish()
            receiver.session.settle(number, number)
    middle, worst = (sorted(found)[int(len(found) * share)] * 1e3 for share in (0.5, 0.99))
    return f"| first receive of another's message | p50 {middle:.2f} ms | p99 {worst:.2f} ms | | p50 2 ms |"


def rate(count: int, run: Callable[[], object]) -> float:
    """Return how many a second it is, when `run` does so many."""
    return count / timed(run)


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that it takes."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def main() -> None:
    """Measure all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000, help="messages of a round")
    parser.add_argument("--connections", type=int, default=1_000, help="idle connections")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which they are watched")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="folder for the stores")
    given = parser.parse_args()
    machine = Machine.here(given.folder)
    rows = [
        *(pair.row() for pair in measure_engine(given.rounds, given.count)),
        *(pair.row() for pair in measure_durable(given.rounds, given.count, given.folder)),
        *(pair.row() for pair in measure_sdk(given.rounds, given.count // 10, given.folder)),
        measure_idle(given.connections, given.seconds, given.folder),
        measure_wake(max(20, given.count // 40), given.folder),
    ]
    machine = machine.after()
    load = f"load {machine.load_before} before, {machine.load_after} after"
    print(f"{machine.date}, {machine.cores} cores, {load}")
    print("\n| what | | | ratio (least-most) | goal |\n|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
