"""The door beside the Python API on stores in files, and beside RabbitMQ with its plugin for AMQP 1.0."""

from __future__ import annotations

import statistics
import tempfile
import threading
from pathlib import Path
from typing import Final

import lazaretto
from bench.door.client import PAYLOAD
from bench.door.pairs import Pair, rate, timed
from bench.door.processes import connected, connected_to_rabbitmq, rabbitmq, serving
from lazaretto.servicebus.conversions import message_of

_THREADS: Final = 16
_BATCH: Final = 100
#: Where the plugin of RabbitMQ has existing queues.
_QUEUES: Final = "/amq/queue/"


def measure_durable(rounds: int, count: int, folder: Path) -> list[Pair]:
    """Return the door's rates and times beside the API's and RabbitMQ's."""
    api, rabbit = ("door", "API"), ("door", "RabbitMQ")
    sends = Pair("100 sends open, API with 16 threads", api, "/s", "0.6")
    lone = Pair("a lone send", api, "µs", "API + 150 µs")
    takes = Pair("100 credits, API in batches of 100", api, "/s", "0.5")
    others = [
        Pair("100 sends open", rabbit, "/s", "4"),
        Pair("a lone send, one after the other", rabbit, "/s", ""),
        Pair("100 credits", rabbit, "/s", "2"),
    ]
    queues = [f"q{at}" for at in range(rounds)]
    with rabbitmq(queues) as port:
        if port is None:
            print("RabbitMQ is not installed: apt-get install rabbitmq-server", flush=True)
        for queue in queues:
            with tempfile.TemporaryDirectory(dir=folder) as here:
                at = Path(here)
                sent = door_sends(at / "1.db", count)
                sends.add(sent, threads_send(at / "2.db", count))
                through, direct = lone_sends(at / "3.db", count // 20)
                lone.add(through, direct)
                taken = door_receives(at / "4.db", count)
                takes.add(taken, api_receives(at / "5.db", count))
            if port is not None:
                theirs = _of_rabbitmq(port, queue, count)
                for other, ours, figure in zip(others, (sent, 1e6 / through, taken), theirs, strict=True):
                    other.add(ours, figure)
    return [sends, lone, takes, *others]


def threads_send(store: Path, count: int) -> float:
    """Return how many messages a second sixteen threads send through the Python API."""
    with lazaretto.connect(store) as broker:
        broker.create_queue("q")
        sender, message = broker.sender("q"), message_of(PAYLOAD)

        def send() -> None:
            for _ in range(count // _THREADS):
                sender.send(message)

        def run() -> None:
            started = [threading.Thread(target=send) for _ in range(_THREADS)]
            for thread in started:
                thread.start()
            for thread in started:
                thread.join()

        return rate(count, run)


def door_sends(store: Path, count: int) -> float:
    """Return how many messages a second one connection sends with a hundred open."""
    with serving(store) as server, connected(server) as client:
        sender = client.sender("q")
        client.send(sender, _BATCH, _BATCH)
        return rate(count, lambda: client.send(sender, count, _BATCH))


def lone_sends(store: Path, count: int) -> tuple[float, float]:
    """Return the median microseconds of a send through the door, and through the Python API, in turns."""
    with serving(store) as server, connected(server) as client:
        link, message = client.sender("q"), message_of(PAYLOAD)
        # A store of its own: two processes that write one file take turns.
        with lazaretto.connect(store.with_suffix(".api.db")) as broker:
            broker.create_queue("q")
            sender = broker.sender("q")
            door, api = [], []
            for _ in range(count):
                door.append(timed(lambda: client.send(link, 1, 1)))
                api.append(timed(lambda: sender.send(message)))
        return statistics.median(door) * 1e6, statistics.median(api) * 1e6


def api_receives(store: Path, count: int) -> float:
    """Return how many messages a second the Python API receives and completes in batches of a hundred."""
    _fill(store, count)
    with lazaretto.connect(store) as broker:
        receiver = broker.receiver("q")

        def work() -> None:
            while messages := receiver.receive(_BATCH):
                receiver.complete(messages)

        return rate(count, work)


def door_receives(store: Path, count: int) -> float:
    """Return how many messages a second a client with a hundred credits receives and completes."""
    _fill(store, count)
    with serving(store) as server, connected(server) as client:
        receiver = client.receiver("q")
        return rate(count, lambda: client.receive(receiver, count, _BATCH))


def _fill(store: Path, count: int) -> None:
    with lazaretto.connect(store) as broker:
        broker.create_queue("q")
        sender, message = broker.sender("q"), message_of(PAYLOAD)
        for _ in range(count // 1_000):
            sender.send([message] * 1_000)


def _of_rabbitmq(port: int, queue: str, count: int) -> tuple[float, float, float]:
    """Return how many messages a second RabbitMQ takes with a hundred open, and one by one, and gives."""
    with connected_to_rabbitmq(port) as client:
        sender = client.sender(_QUEUES + queue)
        client.send(sender, _BATCH, _BATCH)
        many = rate(count, lambda: client.send(sender, count, _BATCH))
        single = rate(count // 20, lambda: client.send(sender, count // 20, 1))
        receiver = client.receiver(_QUEUES + queue)
        return many, single, rate(count, lambda: client.receive(receiver, count, _BATCH))
