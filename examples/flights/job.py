"""The job, whoever does the work: send, process, look at what was set aside, repair, send back."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from rich.console import Console

from examples.flights.data import FLIGHTS, Flight, read_airports, read_flights
from examples.flights.progress import Step
from examples.flights.repair import NAMES, cause_of_ours, missing_airports
from examples.flights.report import show, show_causes
from lazaretto import (
    Broker,
    DeadLetterFilter,
    EntityNotFound,
    Explanation,
    Message,
    PoisonPolicy,
    QueueOptions,
    Sender,
)
from lazaretto.store.addresses import is_served, without_password

QUEUE = "flights"
STORE = "flights.db"
BATCH = 1_000

# What is wrong with a flight is wrong a second later too. One retry still tells a bad flight from a
# moment's trouble; more would only repeat the answer.
POLICY = PoisonPolicy(receive_retry_count=1)

#: Sends some flights to where they are processed from.
Send = Callable[[Sequence[Flight]], None]

_encode = msgspec.json.Encoder().encode
#: In a folder that this job may empty.
_MARK = ".flights"


class Work(Protocol):
    """What processes the flights that are waiting, and keeps the results."""

    def process(self, airports: Mapping[str, str], total: int, step: Step) -> None:
        """Process `total` flights, and tell the step how far it is."""

    def processed(self) -> int:
        """Return how many flights are in the results."""

    def triage(self) -> list[Explanation]:
        """Return why flights failed."""


def run(
    console: Console,
    broker: Broker,
    work: Work,
    limit: int | None,
    send: Send | None = None,
    batch: int = BATCH,
) -> bool:
    """Send flights to an empty queue and do all the rest; return whether each is accounted for.

    `send`: sends some flights to where they come from instead. `batch`: how many at once.
    """
    # Thousands of flights fail on purpose, and the tables below say why.
    logging.getLogger("lazaretto.messages").setLevel(logging.CRITICAL)
    airports = read_airports()
    with broker.sender(QUEUE) as sender:
        sent = _send(console, send or functools.partial(_send_messages, sender), limit, batch)
    with Step(console, "Processing", sent) as step:
        work.process(airports, sent, step)
    whole = show(console, "The first time through", broker, QUEUE, work.processed(), sent)

    causes = work.triage()
    show_causes(console, causes)

    ours = cause_of_ours(causes)
    for code, flights in missing_airports(broker, QUEUE, ours).most_common():
        name = NAMES.get(code)
        console.print(f"Missing airport {code}, {flights:,} flights: {name or 'not known to us either'}")
        if name is not None:
            airports[code] = name
    returned = _repair(console, broker, ours)
    with Step(console, "Processing again", returned) as step:
        work.process(airports, returned, step)
    return whole & show(console, "After the repair", broker, QUEUE, work.processed(), sent)


def create_queue(broker: Broker) -> None:
    """Make the queue of flights."""
    with contextlib.suppress(EntityNotFound):
        # A server's, which an earlier run has left.
        broker.delete_queue(QUEUE)
    # On the day of a snowstorm hundreds of flights in a row never departed: that is no outage of ours,
    # which a breaker would have to take it for.
    broker.create_queue(QUEUE, QueueOptions(policy=POLICY, breaker=None), exist_ok=True)


def _send(console: Console, send: Send, limit: int | None, batch: int) -> int:
    expected = FLIGHTS if limit is None else min(limit, FLIGHTS)
    sent = 0
    with Step(console, "Sending", expected) as step:
        for flights in _batches(read_flights(limit), batch):
            send(flights)
            sent += len(flights)
            step.reach(sent)
    return sent


def _send_messages(sender: Sender, flights: Sequence[Flight]) -> None:
    sender.send([Message(_encode(flight), message_id=flight.key) for flight in flights])


def _repair(console: Console, broker: Broker, cause: DeadLetterFilter) -> int:
    repair = broker.plan_repair(QUEUE, cause)
    letters = repair.status().letters
    which = cause.where or f"error type {cause.error_type}"
    console.print(f"Repair {repair.name}: {letters:,} dead letters: {which}", soft_wrap=True, markup=False)
    with Step(console, "Sending back", letters) as step:
        repair.apply(in_flight=None)
        sent = repair.run().counts.sent
        step.reach(sent)
    return sent


def _batches(flights: Iterable[Flight], size: int) -> Iterator[list[Flight]]:
    source = iter(flights)
    while batch := list(itertools.islice(source, size)):
        yield batch


def start_clean(folder: Path) -> Path:
    """Empty a folder that an earlier run has filled, and no other; return its whole path."""
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / _MARK).exists())):
        raise SystemExit(
            f"expected a new folder or one that an earlier run has made, got {shown(folder)}: "
            "name another, this one would be emptied"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / _MARK).touch()
    return folder


def say_where(console: Console, store: str | Path, others: str) -> None:
    """Print where everything is, and how to look at it."""
    command = Path(sys.executable).with_name("lazaretto")
    name = shown(command) if command.exists() else command.name
    where = without_password(str(store)) if is_served(store) else shown(Path(store))
    prefix = shlex.join([name, "--store", where])
    console.print(f"The queue is in {where}, {others}.", soft_wrap=True)
    console.print("To look around:")
    for rest in (f"dead-letters groups {QUEUE}", f"dead-letters list {QUEUE}", f"queue show {QUEUE}"):
        console.print(f"  {prefix} {rest}", soft_wrap=True)


def shown(path: Path) -> str:
    """Return a path as one types it from here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def options(program: str, description: str | None, folder: Path) -> argparse.ArgumentParser:
    """Return what reads the command line; `folder` is where everything goes by default."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--limit", type=_limit, metavar="N", help="only the first N flights")
    parser.add_argument(
        "--folder", type=Path, default=folder, help=f"where everything goes; default: {shown(folder)}"
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help=f"where the queue is: postgresql://…; default: {STORE} in the folder",
    )
    return parser


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of flights from 1, got {text!r}")
    return int(text)
