"""What clients that wait cost the door, and how soon one is woken."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.door.client import Client
from bench.door.processes import connected, serving
from lazaretto.servicebus.amqp.events import MessageReceived


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
