"""`lazaretto queue`: create, list, show, update, delete, status, resume."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Annotated, Literal

import typer

from lazaretto.broker.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import ChangeOptions, ListingOptions, QueueArgument, limit_option
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.completion import names_of_queues
from lazaretto.cli.derived import add_change
from lazaretto.cli.entity_commands import Entity, Texts, add_entity, key_of, messages_of
from lazaretto.cli.output import Columns, Facts
from lazaretto.cli.queue_options import (
    given_options,
    option_facts,
    option_sections,
    queue_changes,
    queue_settings,
)
from lazaretto.commands import CreateQueue, DeleteMessages, DeleteQueue, ResumeQueue, SetStatus, UpdateQueue
from lazaretto.errors import EntityNotFound, LazarettoError, NotAllowed
from lazaretto.model.descriptions import Culprit, QueueDescription
from lazaretto.model.entities import QueueStatus

commands = Group()
queues = commands.group("queue")


_COLUMNS: Columns = {
    "queue": "path",
    "status": "status",
    **{
        name: f"counts.{name}" for name in ("active", "locked", "deferred", "scheduled", "delayed", "suspect")
    },
    "dead letters": lambda queue: queue.counts.dead_letter + queue.counts.transfer_dead_letter,
    "expired": "expired",
    "dropped": "dropped",
}
_RATES: Columns = {name: name for name in ("time", "sent", "received", "completed", "failed", "dead")}


def _sections(queue: QueueDescription) -> list[tuple[str, Facts]]:
    return [("", _facts(queue)), *option_sections(queue.options)]


def _facts(queue: QueueDescription) -> Facts:
    facts: Facts = [("status", queue.status)]
    if queue.halted_by is not None:
        facts.append(("halted by", _culprit(queue.halted_by)))
    if queue.dead_letter_halted_by is not None:
        facts.append(("dead letters halted by", _culprit(queue.dead_letter_halted_by)))
    facts += [
        (f.name.replace("_", " "), getattr(queue.counts, f.name)) for f in dataclasses.fields(queue.counts)
    ]
    return [
        *facts,
        ("expired", queue.expired),
        ("dropped", queue.dropped),
        ("held sessions", queue.held_sessions),
        ("created", queue.created),
        ("updated", queue.updated),
        ("size", queue.size),
        *option_facts(queue.options),
    ]


def _culprit(culprit: Culprit) -> str:
    return (
        f"message {culprit.sequence_number} at {output.shown_time(culprit.time)}: {culprit.reason} "
        f"({output.plural(culprit.delivery_count, 'delivery attempt')}, {culprit.cycle} retry cycles)"
        + (f": {culprit.error}" if culprit.error else "")
    )


add_entity(
    queues,
    Entity(
        noun="queue",
        texts=Texts(
            create="Create a queue, and the store if there is none.",
            list="List all queues with their counts.",
            show="Show a queue: status, counts, options, poison policy.",
            delete="Delete a queue with all its messages.",
        ),
        key=key_of(queue=QueueArgument),
        settings=queue_settings,
        changes=queue_changes,
        columns=_COLUMNS,
        path=lambda found: found.path,
        options=lambda found: found.options,
        sections=_sections,
        losses=lambda found: messages_of(found.counts),
        find=Broker.queue,
        find_all=Broker.queues,
        create=lambda key, given: CreateQueue(path=key[0], options=given_options(given)),
        update=lambda key, changes: UpdateQueue(path=key[0], changes=changes),
        delete=lambda key: DeleteQueue(path=key[0]),
    ),
)


@queues.command("status")
def status(
    call: ChangeOptions,
    queue: QueueArgument,
    status: Annotated[
        Literal["active", "disabled", "send-disabled", "receive-disabled"] | None,
        typer.Argument(
            metavar="[STATUS]",
            help="New status: active, disabled, send-disabled or receive-disabled.",
            show_default=False,
            case_sensitive=False,
        ),
    ] = None,
) -> None:
    """Show or set whether a queue sends and receives.

    QUEUE can also be a topic or a subscription. Without STATUS, nothing changes.
    """
    with call.broker() as broker:
        if status is None:
            now = _status_of(broker, queue)
        else:
            word = status.replace("-", "_")
            now = QueueStatus(call.run(broker, SetStatus(path=queue, status=word)))
    call.print({"path": queue, "status": now}, f"{queue} is {now.value}")


def _status_of(broker: Broker, path: str) -> QueueStatus:
    try:
        return broker.queue(path).status
    except (EntityNotFound, NotAllowed):
        with contextlib.suppress(LazarettoError):
            return broker.topic(path).status
        raise


@queues.command("rates")
def rates(
    call: ListingOptions,
    queue: Annotated[str | None, argument("Path of the queue.", "QUEUE", complete=names_of_queues)] = None,
    span: Annotated[
        Literal["minute", "hour"], option("Minutes (of a day) or hours (of 30 days).")
    ] = "minute",
    limit: Annotated[int, limit_option("Number of minutes or hours.")] = 60,
) -> None:
    """Show what happened to messages, by minute or hour.

    Of one queue, or of all together.

    The last one is not over yet. What other processes did in the last second or two may be missing.
    """
    with call.broker() as broker:
        series = broker.rates(queue, span=span, limit=limit)
    call.print_all(series, _RATES, "no rates")


add_change(
    queues,
    "resume",
    ResumeQueue,
    lambda fields, resumed: f"resumed {fields['path']}: {resumed.status.value}",
    text="Resume a halted or disabled queue.\n\n"
    "A halted queue needs --verdict. QUEUE;poison is the dead-letter subqueue.",
    parameters={
        "verdict": Annotated[
            Literal["retry", "move", "drop", "reject"] | None,
            option("What happens to the message that halted the queue."),
        ]
    },
    result=lambda broker, fields, answer: broker.queue(fields["path"]),
)
add_change(
    queues,
    "delete-messages",
    DeleteMessages,
    "deleted {answer} messages of {path}",
    text="Delete the first active messages of a queue.\n\n"
    "Messages that are locked, deferred or scheduled stay. It asks first, unless --yes is given.",
)
