"""`lazaretto queue`: create, list, show, update, delete, status, resume."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from typing import Annotated

import typer

from lazaretto.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import ChangeOptions, QueueArgument, limit_option
from lazaretto.cli.command import Group
from lazaretto.cli.completion import names_of_queues
from lazaretto.cli.entity_commands import Entity, Facts, Texts, add_entity, key_of, messages_of, size_facts
from lazaretto.cli.listings import ListingOptions
from lazaretto.cli.queue_options import given_options, queue_changes, queue_settings
from lazaretto.commands import CreateQueue, DeleteQueue, ResumeQueue, SetStatus, UpdateQueue
from lazaretto.errors import EntityNotFound, LazarettoError, NotAllowed
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.descriptions import Culprit, QueueDescription
from lazaretto.model.entities import QueueStatus
from lazaretto.model.policy import UNLIMITED, Backoff, Growth, PoisonPolicy
from lazaretto.model.rates import Rate

commands = Group()
queues = commands.group("queue")


class Span(enum.Enum):
    """The spans of time that rates are kept for."""

    MINUTE = "minute"
    HOUR = "hour"


class Verdict(enum.Enum):
    """What may be decided on the message that halted a queue."""

    RETRY = "retry"
    MOVE = "move"
    DROP = "drop"
    REJECT = "reject"


class Status(enum.Enum):
    """What an operator may switch a queue to."""

    ACTIVE = "active"
    DISABLED = "disabled"
    SEND_DISABLED = "send-disabled"
    RECEIVE_DISABLED = "receive-disabled"


_RATES = ("time", "sent", "received", "completed", "failed", "dead")


def _rate_row(rate: Rate) -> tuple[object, ...]:
    return (
        output.shown_time(rate.time), rate.sent, rate.received, rate.completed, rate.failed, rate.dead
    )  # fmt: skip


def _row(queue: QueueDescription) -> tuple[object, ...]:
    counts = queue.counts
    return (
        queue.path,
        queue.status.value,
        counts.active,
        counts.locked,
        counts.deferred,
        counts.scheduled,
        counts.delayed,
        counts.suspect,
        counts.dead_letter + counts.transfer_dead_letter,
        queue.expired,
        queue.dropped,
    )


def _sections(queue: QueueDescription) -> list[tuple[str, Facts]]:
    options = queue.options
    found = [("", _facts(queue))]
    if options.breaker is not None:
        found.append(("breaker", _breaker_facts(options.breaker)))
    if options.policy is not None:
        found.append(("poison policy", _policy_facts(options.policy)))
    if options.dead_letter_policy is not None:
        found.append(("policy for reading dead letters", _policy_facts(options.dead_letter_policy)))
    return found


def _facts(queue: QueueDescription) -> Facts:
    options = queue.options
    facts: Facts = [("status", queue.status.value)]
    if queue.halted_by is not None:
        facts.append(("halted by", _culprit(queue.halted_by)))
    if queue.dead_letter_halted_by is not None:
        facts.append(("dead letters halted by", _culprit(queue.dead_letter_halted_by)))
    facts += [
        (f.name.replace("_", " "), getattr(queue.counts, f.name)) for f in dataclasses.fields(queue.counts)
    ]
    facts += [
        ("expired", queue.expired),
        ("dropped", queue.dropped),
        ("created", output.shown_time(queue.created)),
        ("updated", output.shown_time(queue.updated)),
        ("lock duration", output.shown_duration(options.lock_duration)),
        ("default time to live", output.shown_duration(options.default_time_to_live)),
        ("dead-letter on expiration", _yes(options.dead_letter_on_expiration)),
        ("partitions", options.partitions),
        ("requires session", _yes(options.requires_session)),
        ("requires duplicate detection", _yes(options.requires_duplicate_detection)),
        ("duplicate detection window", output.shown_duration(options.duplicate_detection_window)),
        ("max message size", options.max_message_size),
        *size_facts(queue.size, options.max_size),
        ("forward to", options.forward_to or "none"),
        ("forward dead letters to", options.forward_dead_lettered_messages_to or "none"),
        ("auto-delete on idle", output.shown_duration(options.auto_delete_on_idle)),
        ("dead-letter on filter errors", _yes(options.dead_letter_on_filter_errors)),
        ("on poison session", options.on_poison_session.value),
        ("held sessions", queue.held_sessions),
    ]
    return facts


def _culprit(culprit: Culprit) -> str:
    return (
        f"message {culprit.sequence_number} at {output.shown_time(culprit.time)}: {culprit.reason} "
        f"({output.plural(culprit.delivery_count, 'delivery attempt')}, {culprit.cycle} retry cycles)"
        + (f": {culprit.error}" if culprit.error else "")
    )


def _breaker_facts(breaker: BreakerPolicy) -> Facts:
    return [
        ("messages", breaker.messages),
        ("share", f"{breaker.share:g}"),
        ("window", output.shown_duration(breaker.window)),
        ("probe interval", output.shown_duration(breaker.probe_interval)),
        ("longest probe interval", output.shown_duration(breaker.longest_probe_interval)),
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _number(value: int | None) -> object:
    return "none" if value is None else "unlimited" if value == UNLIMITED else value


def _policy_facts(policy: PoisonPolicy) -> Facts:
    delay = policy.retry_cycle_delay
    if isinstance(delay, Backoff):
        shown = f"{output.shown_duration(delay.initial)}, {delay.growth.value}"
        if delay.growth is not Growth.CONSTANT:
            shown += f", at most {output.shown_duration(delay.maximum)}"
        shown += f", {delay.jitter:.0%} of it at random" if delay.jitter else ""
    else:
        shown = output.shown_duration(delay)
    total = "unlimited" if policy.total_attempts >= UNLIMITED else policy.total_attempts
    return [
        ("receive retry count", _number(policy.receive_retry_count)),
        ("max retry cycles", _number(policy.max_retry_cycles)),
        ("retry cycle delay", shown),
        ("attempts in all", total),
        ("on poison", policy.on_poison.value),
        ("on invalid", policy.on_invalid.value),
        ("max worker deaths", _number(policy.max_worker_deaths)),
        ("disable after rollbacks", _number(policy.disable_after_rollbacks)),
    ]


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
        columns=(
            "queue",
            "status",
            "active",
            "locked",
            "deferred",
            "scheduled",
            "delayed",
            "suspect",
            "dead letters",
            "expired",
            "dropped",
        ),
        row=_row,
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
        Status | None,
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
            wanted = status.value.replace("-", "_")
            now = QueueStatus(call.run(broker, SetStatus(path=queue, status=wanted)))
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
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="Path of the queue.", autocompletion=names_of_queues)
    ] = None,
    span: Annotated[
        Span, typer.Option("--span", help="Minutes (of a day) or hours (of 30 days).")
    ] = Span.MINUTE,
    limit: Annotated[int, limit_option("Number of minutes or hours.")] = 60,
) -> None:
    """Show what happened to messages, by minute or hour.

    Of one queue, or of all together.

    The last one is not over yet. What other processes did in the last second or two may be missing.
    """
    with call.broker() as broker:
        found = broker.rates(queue, span=span.value, limit=limit)
    call.print_all(found, _RATES, _rate_row, "no rates")


@queues.command("resume")
def resume(
    call: ChangeOptions,
    queue: QueueArgument,
    verdict: Annotated[
        Verdict | None,
        typer.Option(help="What happens to the message that halted the queue.", show_default=False),
    ] = None,
) -> None:
    """Resume a halted or disabled queue.

    A halted queue needs --verdict. QUEUE;poison is the dead-letter subqueue.
    """
    with call.broker() as broker:
        call.run(broker, ResumeQueue(path=queue, verdict=None if verdict is None else verdict.value))
        resumed = broker.queue(queue)
    call.print(resumed, f"resumed {queue}: {resumed.status.value}")
