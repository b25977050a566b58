"""`lazaretto worker`: lists the processes that take messages, with what they hold."""

from __future__ import annotations

from typing import Annotated

import typer

from lazaretto.cli import output
from lazaretto.cli.command import Group
from lazaretto.cli.listings import ListingOptions
from lazaretto.engine.workers.list_workers import HeldMessages, Worker

commands = Group()
workers = commands.group("worker")

_COLUMNS = ("worker", "machine", "process", "state", "seen", "messages", "holds")
#: Sequence numbers that are shown of a batch.
_SHOWN = 5


def _held(held: HeldMessages) -> str:
    numbers = ", ".join(map(str, held.sequence_numbers[:_SHOWN]))
    more = len(held.sequence_numbers) - _SHOWN
    session = "" if held.session_id is None else f" session {held.session_id}"
    waits = "" if held.started else " (not started)"
    shown = f"{numbers}{f' and {more} more' if more > 0 else ''}" or "no message"
    return f"{held.queue}{session}: {shown}{waits}"


def _number(worker: Worker) -> int | str:
    known = sum(len(held.sequence_numbers) for held in worker.holds)
    return known if worker.complete else f"{known} or more"


def _row(worker: Worker) -> tuple[object, ...]:
    return (
        worker.name,
        worker.machine,
        worker.pid,
        "alive" if worker.alive else "dead",
        output.shown_time(worker.seen),
        _number(worker),
        "; ".join(map(_held, worker.holds)),
    )


@workers.command("list")
def list_(
    call: ListingOptions,
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="QUEUE", help="Only workers that hold messages of this queue."),
    ] = None,
) -> None:
    """List the processes that take messages and what they hold.

    Up to 1,000 messages are told of a process, besides those that were handed to it as a service host.
    """
    with call.broker() as broker:
        found = broker.workers()
    if queue is not None:
        found = [worker for worker in found if any(held.queue == queue for held in worker.holds)]
    call.print_all(found, _COLUMNS, _row, "no workers", spare=("machine", "seen", "process"))
