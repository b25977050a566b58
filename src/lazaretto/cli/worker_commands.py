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

_COLUMNS = ("process", "machine", "state", "takes", "messages", "holds", "seen", "worker")
#: Sequence numbers that are shown of a batch.
_SHOWN = 5


def _held(messages: HeldMessages) -> str:
    numbers = ", ".join(map(str, messages.sequence_numbers[:_SHOWN]))
    more = len(messages.sequence_numbers) - _SHOWN
    session = "" if messages.session_id is None else f" session {messages.session_id}"
    waits = "" if messages.started else " (not started)"
    shown = f"{numbers}{f' and {more} more' if more > 0 else ''}" or "no message"
    return f"{messages.queue}{session}: {shown}{waits}"


def _number(worker: Worker) -> int | str:
    count = sum(len(messages.sequence_numbers) for messages in worker.holds)
    return count if worker.complete else f"{count} or more"


def _queues(worker: Worker) -> set[str]:
    return {one.queue for one in worker.takers} | {messages.queue for messages in worker.holds}


def _takes(worker: Worker) -> str:
    """Return who takes messages in a process, each with its queues."""
    by_queue: dict[str, list[str]] = {}
    for one in worker.takers:
        by_queue.setdefault(f"{one.kind} {one.name}", []).append(one.queue)
    return "; ".join(f"{', '.join(queues)} ({who})" for who, queues in by_queue.items())


def _row(worker: Worker) -> tuple[object, ...]:
    return (
        worker.pid,
        worker.host_name,
        "alive" if worker.alive else "dead",
        _takes(worker),
        _number(worker),
        "; ".join(map(_held, worker.holds)),
        output.shown_time(worker.seen),
        worker.name,
    )


@workers.command("list")
def list_(
    call: ListingOptions,
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="QUEUE", help="Only workers that take or hold messages of it."),
    ] = None,
) -> None:
    """List who takes messages, from which queues, and holds what.

    A server is among them while clients take messages through it: these are named. Up to 1,000 messages are
    told of a process, besides those that were handed to it as a service host.
    """
    with call.broker() as broker:
        found = broker.workers()
    if queue is not None:
        found = [one for one in found if queue in _queues(one)]
    call.print_all(found, _COLUMNS, _row, "no workers", spare=("worker", "seen", "machine"))
