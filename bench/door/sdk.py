"""Azure's SDK for Python against the door, and against the broker in memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.door.pairs import Pair
from bench.door.processes import Server, in_memory, serving

_SDK: Final = """
import sys, time
from azure.servicebus import ServiceBusClient, ServiceBusMessage
port, count = int(sys.argv[1]), int(sys.argv[2])
text = f"Endpoint=sb://localhost:{port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true;"
with (
    ServiceBusClient.from_connection_string(text) as client,
    client.get_queue_sender("q") as sender,
    client.get_queue_receiver("q") as receiver,
):
    def singles(count):
        for _ in range(count):
            sender.send_messages(ServiceBusMessage(b"x" * 1024))
    def batches(count):
        for _ in range(count // 100):
            sender.send_messages([ServiceBusMessage(b"x" * 1024) for _ in range(100)])
    def receives(count):
        while count > 0:
            found = receiver.receive_messages(min(count, 100), max_wait_time=5)
            for message in found:
                receiver.complete_message(message)
            count -= len(found)
    for work, many in ((singles, count), (batches, count * 5), (receives, count)):
        work(100)
        begun = time.perf_counter()
        work(many)
        print(many / (time.perf_counter() - begun))
"""


def measure_sdk(rounds: int, count: int, folder: Path) -> list[Pair]:
    """Return how many messages a second the SDK sends, and receives and completes."""
    both = ("door", "memory")
    pairs = [
        Pair("Azure's SDK, single sends", both, "/s", "0.6"),
        Pair("Azure's SDK, batches of 100", both, "/s", "0.9"),
        Pair("Azure's SDK, receives of 100, completed one by one", both, "/s", ""),
    ]
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as here, serving(Path(here, "1.db")) as server:
            ours = _rates(server, count)
        with in_memory() as server:
            theirs = _rates(server, count)
        for pair, first, second in zip(pairs, ours, theirs, strict=True):
            pair.add(first, second)
    return pairs


def _rates(server: Server, count: int) -> list[float]:
    """Return how many messages a second go: one by one, in batches of a hundred, and out again."""
    words = [sys.executable, "-c", _SDK, str(server.port), str(count)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return [float(one) for one in said]
