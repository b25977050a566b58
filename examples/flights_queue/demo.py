"""The console to look at: flights that fail, a service host at work, and `lazaretto serve` beside it."""

from __future__ import annotations

import argparse
import itertools
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

import lazaretto
from examples.flights import job
from examples.flights.data import Flight, read_airlines, read_airports, read_flights
from examples.flights.rules import FlightRules
from examples.flights_queue.__main__ import FlightHandler
from examples.flights_queue.results import Results
from lazaretto import Broker, Message
from lazaretto.host import Handler, ServiceHost

FOLDER = Path(__file__).parent / "work-demo"
#: Flights that are sent at once, and how many come each second afterwards.
FIRST, EACH_SECOND = 20_000, 20


def send(broker: Broker, flights: Iterator[Flight], count: int) -> int:
    """Send so many flights, or those that are left; return how many these were."""
    encode = msgspec.json.Encoder().encode
    chosen = [Message(encode(flight), message_id=flight.key) for flight in itertools.islice(flights, count)]
    if chosen:
        broker.sender(job.QUEUE).send(chosen)
    return len(chosen)


def keep_sending(broker: Broker, flights: Iterator[Flight], ended: threading.Event) -> None:
    """Send flights each second until there are none, or until it ends."""
    while not ended.wait(1) and send(broker, flights, EACH_SECOND):
        pass


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or Control-C."""
    parser = argparse.ArgumentParser("examples.flights_queue.demo", description=__doc__)
    parser.add_argument("--port", type=int, default=8080, help="port of the console (default: 8080)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder for the store")
    options = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    # Thousands of flights fail on purpose.
    logging.getLogger("lazaretto.messages").setLevel(logging.CRITICAL)
    folder = job.start_clean(options.folder)
    store = folder / job.STORE
    flights = read_flights()
    with Results(folder / "results.db") as results, lazaretto.connect(store) as broker:
        job.create_queue(broker)
        send(broker, flights, FIRST)
        handler = FlightHandler(FlightRules(read_airports(), read_airlines()), results)
        host = ServiceHost(broker, Handler(job.QUEUE, handler, batch_size=100))
        sender = threading.Thread(target=keep_sending, args=(broker, flights, ended))
        sender.start()
        serve = [sys.executable, "-m", "lazaretto", "serve", "--store", str(store), "--http"]
        server = subprocess.Popen([*serve, str(options.port)])
        try:
            host.run(until=lambda: ended.is_set() or server.poll() is not None)
        finally:
            ended.set()
            sender.join()
            server.terminate()
            server.wait()
    return server.returncode


if __name__ == "__main__":
    sys.exit(main())
