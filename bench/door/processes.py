"""The servers that are measured, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import lazaretto
from bench.door.client import Client
from bench.servers import RabbitmqServer, rabbitmq_program

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PLUGIN: Final = "rabbitmq_amqp1_0"


class Server(NamedTuple):
    """A process that serves, and its port."""

    process: subprocess.Popen[str]
    port: int

    def cpu(self) -> float:
        """Return the seconds of the processor that it has taken, to the nanosecond."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def memory(self) -> int:
        """Return its resident memory, in bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE


@contextlib.contextmanager
def running(*words: str) -> Iterator[Server]:
    """Run a server that prints its port, or a line of JSON with it."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
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
    """Serve a store, in which a queue is made if it has none."""
    with lazaretto.connect(store) as broker, contextlib.suppress(lazaretto.EntityExists):
        broker.create_queue("q")
    words = ("-m", "lazaretto", "serve", "--store", str(store), "--amqp", "0", "--json")
    with running(sys.executable, *words) as server:
        yield server


@contextlib.contextmanager
def rabbitmq(queues: Sequence[str]) -> Iterator[int | None]:
    """Run RabbitMQ with its plugin for AMQP 1.0 and quorum queues; yield its port, or None without it.

    Its files are on the disk of the folder for temporary files.
    """
    if rabbitmq_program() is None:
        yield None
        return
    home = Path(tempfile.mkdtemp(prefix="bench-"))
    # The account that it runs as must reach it.
    home.chmod(0o755)
    server = RabbitmqServer(home, plugins=(_PLUGIN,), queues=queues)
    try:
        yield server.port
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def connected(server: Server) -> Iterator[Client]:
    """Connect to a server, and hang up in the end."""
    client = Client(server.port)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def connected_to_rabbitmq(port: int) -> Iterator[Client]:
    """Connect to RabbitMQ, and hang up in the end."""
    client = Client(port, ("PLAIN", b"\0guest\0guest"), slack=10_000)
    try:
        yield client
    finally:
        client.close()
