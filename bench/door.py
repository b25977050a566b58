"""`python -m bench.door`: the door for AMQP 1.0 clients, beside the Python API and beside RabbitMQ's plugin.

A client with a hundred sends open, and one with a hundred credits, which receives and completes. The API
sends with 16 threads, and receives in batches of a hundred. Servers are processes of their own.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import lazaretto
from bench.amqp_client import PAYLOAD, AmqpClient
from bench.figures import Figure
from bench.processor import spend
from bench.rounds import options, private, run
from bench.servers import RabbitmqServer, rabbitmq_program, serving
from lazaretto.servicebus.conversions import message_of

_THREADS: Final = 16
_BATCH: Final = 100
_PLUGIN: Final = "rabbitmq_amqp1_0"
#: Where the plugin has existing queues.
_QUEUES: Final = "/amq/queue/"
_SENDS, _TAKES = "100 sends open", "receive and complete, 100 credits"


def _rates(client: AmqpClient, queue: str, system: str, count: int) -> Iterator[Figure]:
    """Send messages and receive them again, and hang up."""
    with contextlib.closing(client):
        sender = client.sender(queue)
        client.send(sender, _BATCH, _BATCH)
        sends = spend(lambda: client.send(sender, count, _BATCH)).seconds
        receiver = client.receiver(queue)
        takes = spend(lambda: client.receive(receiver, count, _BATCH)).seconds
    yield Figure(_SENDS, system, count / sends, "/s")
    yield Figure(_TAKES, system, count / takes, "/s")


def by_door(store: Path, count: int) -> Iterator[Figure]:
    """Measure the door on a store."""
    with lazaretto.connect(store) as broker:
        broker.create_queue("q")
    with serving(store, "amqp") as server:
        yield from _rates(AmqpClient(server.port), "q", "door", count)


def by_api(store: Path, count: int) -> Iterator[Figure]:
    """Measure the Python API on a store."""
    with lazaretto.connect(store) as broker:
        broker.create_queue("q")
        sender, receiver, message = broker.sender("q"), broker.receiver("q"), message_of(PAYLOAD)

        def send() -> None:
            for _ in range(count // _THREADS):
                sender.send(message)

        def send_together() -> None:
            threads = [threading.Thread(target=send) for _ in range(_THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        def take() -> None:
            while messages := receiver.receive(_BATCH):
                receiver.complete(messages)

        yield Figure(_SENDS, "API", count / spend(send_together).seconds, "/s")
        yield Figure(_TAKES, "API", count / spend(take).seconds, "/s")


def by_rabbitmq(port: int, queue: str, count: int) -> Iterator[Figure]:
    """Measure RabbitMQ with its plugin for AMQP 1.0."""
    client = AmqpClient(port, ("PLAIN", b"\0guest\0guest"), slack=10_000)
    yield from _rates(client, _QUEUES + queue, "RabbitMQ", count)


@contextlib.contextmanager
def rabbitmq(rounds: int) -> Iterator[int | None]:
    """Run RabbitMQ with a quorum queue for each round; yield its port, or None without it."""
    if rabbitmq_program() is None:
        print("RabbitMQ is not installed: apt-get install rabbitmq-server", file=sys.stderr)
        yield None
        return
    # The account that it runs as must reach its folder.
    with private(Path(tempfile.gettempdir())) as home:
        server = RabbitmqServer(home, (_PLUGIN,), [f"q{number}" for number in range(1, rounds + 1)])
        try:
            yield server.port
        finally:
            server.stop()


def main() -> int:
    """Measure all, and print a table."""
    parser = options("bench.door", __doc__, 5)
    parser.add_argument("--count", type=int, default=20_000, help="messages of a round")
    given = parser.parse_args()
    count = min(given.count, 2_000) if given.quick else given.count
    with rabbitmq(given.rounds or given.usual_rounds) as port:

        def measure(folder: Path, number: int) -> Iterator[Figure]:
            with private(folder) as home:
                yield from by_door(home / "door.db", count)
                yield from by_api(home / "api.db", count)
            if port is not None:
                yield from by_rabbitmq(port, f"q{number}", count)

        return run(given, measure)


if __name__ == "__main__":
    raise SystemExit(main())
