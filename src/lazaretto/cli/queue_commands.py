"""`lazaretto queue`: create, list, show, update, delete, status, resume."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from typing import Annotated, Any

import typer

from lazaretto.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import (
    Call,
    JsonOption,
    QueueArgument,
    StoreOption,
    YesOption,
    confirm_deletion,
)
from lazaretto.cli.exits import usage
from lazaretto.cli.listings import print_listing, takes_listing_options
from lazaretto.cli.queue_options import changes_of, takes_queue_changes, takes_queue_options
from lazaretto.errors import EntityNotFound, LazarettoError, NotAllowed
from lazaretto.model.breaker import BreakerPolicy
from lazaretto.model.entities import Culprit, EntityPath, QueueDescription, QueueOptions, QueueStatus
from lazaretto.model.policy import UNLIMITED, Backoff, Growth, PoisonPolicy

app = typer.Typer(help="Create, list, show, update, delete, switch and resume queues.", rich_markup_mode=None)

_COLUMNS = (
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
)


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


@app.command("create")
@takes_queue_options
def create(
    context: typer.Context,
    queue: QueueArgument,
    given: dict[str, Any],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Create a queue, and the store if there is none yet.

    Durations are 30, 30s, 5m, 2h or 1d.
    """
    call = Call.of(context, store, json)
    options = QueueOptions(**changes_of(given, QueueOptions()))
    # What is wrong with the path is said before a store is made for it.
    EntityPath.parse(queue)
    with call.broker(create=True) as broker:
        created = broker.create_queue(queue, options)
    if call.json:
        output.json_object(created)
    else:
        output.line(f"created queue {created.path}")


@app.command("list")
@takes_listing_options
def list_(context: typer.Context, store: StoreOption = None, json: JsonOption = False) -> None:
    """List all queues with their counts."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        queues = broker.queues()
    print_listing(context, call, queues, _COLUMNS, _row, "no queues", shortened=None)


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


@app.command("show")
def show(
    context: typer.Context, queue: QueueArgument, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Show a queue: status, counts, options, poison policy."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.queue(queue)
    if call.json:
        output.json_object(found)
        return
    output.line(f"queue {output.safe(found.path)}")
    output.fields(_facts(found), "  ")
    if found.options.breaker is not None:
        output.line("breaker")
        output.fields(_breaker_facts(found.options.breaker), "  ")
    for title, policy in (
        ("poison policy", found.options.policy),
        ("policy for reading dead letters", found.options.dead_letter_policy),
    ):
        if policy is not None:
            output.line(f"{title}")
            output.fields(_policy_facts(policy), "  ")


def _facts(queue: QueueDescription) -> list[tuple[str, object]]:
    options = queue.options
    facts: list[tuple[str, object]] = [("status", queue.status.value)]
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


def size_facts(size: int | None, most: int | None) -> list[tuple[str, object]]:
    """Return how much an entity holds of the most it may, as fields."""
    return [("max size", "none")] if most is None else [("size", size), ("max size", most)]


def _culprit(culprit: Culprit) -> str:
    return (
        f"message {culprit.sequence_number} at {output.shown_time(culprit.time)}: {culprit.reason} "
        f"({output.plural(culprit.delivery_count, 'delivery attempt')}, {culprit.cycle} retry cycles)"
        + (f": {culprit.error}" if culprit.error else "")
    )


def _breaker_facts(breaker: BreakerPolicy) -> list[tuple[str, object]]:
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


def _policy_facts(policy: PoisonPolicy) -> list[tuple[str, object]]:
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


@app.command("update")
@takes_queue_changes
def update(
    context: typer.Context,
    queue: QueueArgument,
    given: dict[str, Any],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Change options of a queue.

    Options that are not given stay as they are; "none" takes an option away. Durations are 30, 30s,
    5m, 2h or 1d.
    """
    call = Call.of(context, store, json)
    if not given:
        raise usage("nothing to change; give at least one option, see `lazaretto queue update --help`")
    with call.broker() as broker:
        before = broker.queue(queue).options
        after = broker.update_queue(queue, **changes_of(given, before))
    if call.json:
        output.json_object(after)
        return
    names = [f.name for f in dataclasses.fields(QueueOptions)]
    changed = [name for name in names if getattr(before, name) != getattr(after.options, name)]
    what = ", ".join(changed) if changed else "nothing: it was so already"
    output.line(f"changed in queue {output.safe(after.path)}: {what}")


@app.command("delete")
def delete(
    context: typer.Context,
    queue: QueueArgument,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a queue with all its messages. Asks first."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.queue(queue)
        counts = found.counts
        dead = counts.dead_letter + counts.transfer_dead_letter
        live, lost = output.plural(counts.total - dead, "message"), output.plural(dead, "dead letter")
        confirm_deletion(f"queue {output.safe(found.path)} with {live} and {lost}", yes)
        broker.delete_queue(queue)
    if call.json:
        output.json_object({"deleted": found.path})
    else:
        output.line(f"deleted queue {output.safe(found.path)}")


@app.command("status")
def status(
    context: typer.Context,
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
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show or set whether a queue sends and receives.

    QUEUE may be a topic or a subscription, too. Without STATUS nothing is changed.
    """
    call = Call.of(context, store, json)
    with call.broker() as broker:
        if status is None:
            now = _status_of(broker, queue)
        else:
            now = broker.set_status(queue, status.value.replace("-", "_"))
    if call.json:
        output.json_object({"path": queue, "status": now})
    else:
        output.line(f"{output.safe(queue)} is {now.value}")


def _status_of(broker: Broker, path: str) -> QueueStatus:
    try:
        return broker.queue(path).status
    except (EntityNotFound, NotAllowed):
        with contextlib.suppress(LazarettoError):
            return broker.topic(path).status
        raise


@app.command("resume")
def resume(
    context: typer.Context,
    queue: QueueArgument,
    verdict: Annotated[
        Verdict | None,
        typer.Option(help="What becomes of the message that halted the queue.", show_default=False),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Resume a halted or disabled queue.

    Halted queues need --verdict. QUEUE;poison is the dead-letter subqueue.
    """
    call = Call.of(context, store, json)
    with call.broker() as broker:
        resumed = broker.resume_queue(queue, None if verdict is None else verdict.value)
    if call.json:
        output.json_object(resumed)
    else:
        output.line(f"resumed {output.safe(queue)}: {resumed.status.value}")


def add_to(program: typer.Typer) -> None:
    """Add the commands to the command line."""
    program.add_typer(app, name="queue")
