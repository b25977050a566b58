"""Sends every flight through a queue, sets the bad ones aside, repairs a cause, sends those back."""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from rich.console import Console

import lazaretto
from examples.flights.data import FLIGHTS, Flight, read_airlines, read_airports, read_flights
from examples.flights.handler import FlightHandler
from examples.flights.progress import Step
from examples.flights.repair import NAMES, UNKNOWN, missing_airports
from examples.flights.report import show
from examples.flights.results import Results
from lazaretto import Broker, Message, PoisonPolicy, QueueOptions
from lazaretto.host import Handler, ServiceHost

QUEUE = "flights"
BATCH = 1000
STORE = Path(__file__).parent / "work" / "flights.db"

# What is wrong with a flight is wrong a second later too. One retry still tells a bad flight from a
# moment's trouble, a results table that is locked for instance; more would only repeat the answer.
POLICY = PoisonPolicy(receive_retry_count=1)
# On the day of a snowstorm hundreds of flights in a row never departed: that is no outage of ours, which
# a breaker would have to take it for.


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return 0 if every flight is accounted for."""
    options = _options().parse_args(arguments)
    console = Console(highlight=False)
    results_path = _start_clean(options.store)
    with (
        Results(results_path) as results,
        lazaretto.connect(options.store) as broker,
    ):
        # Made first, because a store without results beside it is taken for somebody else's.
        results.count()
        broker.create_queue(QUEUE, QueueOptions(policy=POLICY, breaker=None))
        airports = read_airports()
        handler = FlightHandler(airports, read_airlines(), results)

        sent = _send(console, broker, options.limit)
        _process(console, broker, handler, "Processing", sent)
        whole = show(console, "The first time through", broker, QUEUE, results, sent)

        for code, flights in missing_airports(broker, QUEUE).most_common():
            name = NAMES.get(code)
            console.print(f"Missing airport {code}, {flights:,} flights: {name or 'not known to us either'}")
            if name is not None:
                airports[code] = name
        returned = _resubmit(console, broker)
        _process(console, broker, handler, "Processing again", returned)
        whole &= show(console, "After the repair", broker, QUEUE, results, sent)
    _say_where(console, options.store, results_path)
    return 0 if whole else 1


def _send(console: Console, broker: Broker, limit: int | None) -> int:
    expected = FLIGHTS if limit is None else min(limit, FLIGHTS)
    encode = msgspec.json.Encoder().encode
    sent = 0
    with Step(console, "Sending", expected) as step, broker.sender(QUEUE) as sender:
        for flights in _batches(read_flights(limit)):
            sender.send([Message(encode(flight), message_id=flight.key) for flight in flights])
            sent += len(flights)
            step.reach(sent)
    return sent


def _process(console: Console, broker: Broker, handler: FlightHandler, name: str, total: int) -> None:
    host = ServiceHost(broker, Handler(QUEUE, handler, batch_size=BATCH))
    with Step(console, name, total) as step:

        def all_done() -> bool:
            (report,) = host.reports()
            step.reach(report.completed + report.dead)
            return report.completed + report.dead >= total

        host.run(until=all_done)


def _resubmit(console: Console, broker: Broker) -> int:
    waiting = sum(1 for _ in broker.dead_letters(QUEUE, UNKNOWN))
    with Step(console, "Resubmitting", waiting) as step:
        report = broker.resubmit(QUEUE, UNKNOWN, on_chunk=lambda done, _total: step.reach(done))
    return len(report.resubmitted)


def _batches(flights: Iterable[Flight]) -> Iterator[list[Flight]]:
    source = iter(flights)
    while batch := list(itertools.islice(source, BATCH)):
        yield batch


def _start_clean(store: Path) -> Path:
    """Remove what an earlier run left, and nothing else; return where the results go."""
    results = store.with_name(f"{store.stem}-results.db")
    if store.exists() and not results.exists():
        raise SystemExit(
            f"expected a new file or the store of an earlier run, got {_shown(store)}, which has no "
            f"{results.name} beside it; name another file, this one would be deleted"
        )
    for path in (store, results):
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    store.parent.mkdir(parents=True, exist_ok=True)
    return results


def _say_where(console: Console, store: Path, results: Path) -> None:
    command = Path(sys.executable).with_name("lazaretto")
    name = _shown(command) if command.exists() else command.name
    prefix = shlex.join([name, "--store", _shown(store)])
    console.print(f"The queue is in {_shown(store)}, the results are in {_shown(results)}.", soft_wrap=True)
    console.print("To look around:")
    for rest in (f"dead-letters groups {QUEUE}", f"dead-letters list {QUEUE}", f"queue show {QUEUE}"):
        console.print(f"  {prefix} {rest}", soft_wrap=True)


def _shown(path: Path) -> str:
    """Return a path as one types it from here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of flights from 1, got {text!r}")
    return int(text)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--limit", type=_limit, metavar="N", help="only the first N flights")
    parser.add_argument("--store", type=Path, default=STORE, metavar="FILE", help=f"default: {_shown(STORE)}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
