"""`lazaretto dead-letter`: list, show, groups, resubmit, purge."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from lazaretto.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, QueueArgument, StoreOption, YesOption, confirm_deletion
from lazaretto.cli.exits import CommandError, Exit, usage
from lazaretto.cli.listings import print_listing, takes_listing_options, wants_objects
from lazaretto.cli.parse import past
from lazaretto.dead_letters import Which
from lazaretto.engine.outcome.dead_letter_operations import (
    DeadLetterFilter,
    DeadLetterGroup,
    Skipped,
    check_numbers,
)
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import Attempt, DeadLetter, Message, as_message

app = typer.Typer(help="Look at dead letters, send them back, delete them.", rich_markup_mode=None)

NumbersArgument = Annotated[
    list[int] | None, typer.Argument(metavar="[NUMBER]...", help="Sequence numbers.", show_default=False)
]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Only with this reason.")]
ErrorTypeOption = Annotated[str | None, typer.Option("--error-type", help="Only with this type of error.")]
SinceOption = Annotated[
    datetime | None,
    typer.Option(
        "--since", parser=past, metavar="TIME", help="Set aside at this time (ISO 8601, or 2h ago) or later."
    ),
]
UntilOption = Annotated[
    datetime | None, typer.Option("--until", parser=past, metavar="TIME", help="Set aside before this time.")
]
TextOption = Annotated[
    str | None, typer.Option("--text", help="Only with this text in body, description or error.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Every dead letter of the queue.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show which ones it would be.")]

_COLUMNS = ("sequence", "dead-lettered", "reason", "error type", "deliveries", "message id", "error")
_GROUP_COLUMNS = ("count", "reason", "error type", "first", "last", "example")
#: What makes room for the error, in this order.
_SPARE = ("message id", "deliveries", "dead-lettered", "error type")


def chosen(numbers: Sequence[int] | None, which: DeadLetterFilter, everything: bool) -> Which:
    """Return what a changing command is about: numbers, a filter, or all; never all by accident."""
    given = bool(numbers) + (not which.is_empty) + everything
    if given > 1:
        raise usage("give sequence numbers, a filter or --all, not several of these")
    if not given:
        raise usage(
            "an empty filter means every dead letter; give numbers, a filter, or --all if all are meant"
        )
    return list(dict.fromkeys(check_numbers(numbers))) if numbers else which


def print_matching(context: typer.Context, call: Call, broker: Broker, queue: str, which: Which) -> None:
    """Print the dead letters that a changing command would be about."""
    if isinstance(which, list):
        which = DeadLetterFilter(sequence_numbers=tuple(which))
    assert isinstance(which, DeadLetterFilter)
    _print_list(context, call, broker, queue, which)


def _print_list(
    context: typer.Context,
    call: Call,
    broker: Broker,
    queue: str,
    which: DeadLetterFilter,
    limit: int | None = None,
) -> None:
    # A table shows nothing of the message itself.
    found = broker.dead_letters(queue, which, limit=limit, messages=wants_objects(context, call))
    empty = f"no dead letters in {queue}" if which.is_empty else f"no such dead letters in {queue}"
    print_listing(context, call, found, _COLUMNS, _row, empty, spare=_SPARE)


def _row(letter: DeadLetter) -> tuple[object, ...]:
    return (
        letter.sequence_number,
        output.shown_time(letter.dead_lettered),
        letter.reason,
        letter.error_type,
        letter.counters.deliveries,
        letter.message_id,
        letter.error_message or letter.description,
    )


@app.command("list")
@takes_listing_options
def list_(
    context: typer.Context,
    queue: QueueArgument,
    numbers: NumbersArgument = None,
    reason: ReasonOption = None,
    error_type: ErrorTypeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    text: TextOption = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List the dead letters that wait in a queue: all, or those that every filter lets through."""
    call = Call.of(context, store, json)
    which = DeadLetterFilter(
        reason=reason,
        error_type=error_type,
        since=since,
        until=until,
        text=text,
        sequence_numbers=tuple(numbers) if numbers else None,
    )
    with call.broker() as broker:
        _print_list(context, call, broker, queue, which, limit)


@app.command("show")
def show(
    context: typer.Context,
    queue: QueueArgument,
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="Its sequence number.", show_default=False)],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show a dead letter: what it is, why, every attempt with its stack, and what became of it."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        letter = broker.dead_letter(queue, number)
    if call.json:
        output.json_object(letter)
        return
    output.line(f"dead letter {letter.sequence_number} of {output.safe(letter.queue)}")
    output.fields(_facts(letter), "  ")
    output.line("attempts" if letter.attempts else "no attempts")
    for attempt in letter.attempts:
        _print_attempt(attempt)
    if letter.message is not None:
        output.line(f"body ({output.plural(len(letter.message.body), 'byte')})")
        _print_block(output.body_text(letter.message.body))


def _facts(letter: DeadLetter) -> list[tuple[str, object]]:
    counters, message = letter.counters, letter.message
    facts: list[tuple[str, object]] = [
        ("reason", letter.reason),
        ("description", _first_line(letter.description)),
        ("error type", letter.error_type),
        ("error", _first_line(letter.error_message)),
        ("message id", letter.message_id),
        ("enqueued", output.shown_time(letter.enqueued)),
        ("dead-lettered", output.shown_time(letter.dead_lettered)),
        ("deliveries", counters.deliveries),
        ("failures", counters.failures),
        ("worker deaths", counters.worker_deaths),
        ("lock expiries", counters.lock_expiries),
        ("generation", letter.generation),
        ("became", letter.resolution),
        ("at", letter.resolved and output.shown_time(letter.resolved)),
        ("as message", letter.resubmitted_as),
        ("in", letter.moved_to),
    ]
    if message is not None:
        names = ("session_id", "subject", "correlation_id", "to", "reply_to", "content_type", "partition_key")
        facts += [(name.replace("_", " "), getattr(message, name)) for name in (*names, "edit_of")]
        facts += [(f"property {output.safe(name)}", value) for name, value in message.properties.items()]
    return facts


def _first_line(text: str | None) -> str | None:
    if text is None:
        return None
    first, _, rest = text.strip().partition("\n")
    return f"{first} …" if rest else first


def _print_attempt(attempt: Attempt) -> None:
    took = (
        "" if attempt.started is None else f" after {(attempt.ended - attempt.started).total_seconds():.3f} s"
    )
    by = f" by {output.safe(attempt.worker)}" if attempt.worker else ""
    output.line(f"  {attempt.number}. {output.shown_time(attempt.ended)} {attempt.outcome.value}{took}{by}")
    if attempt.error_type is not None or attempt.error_message is not None:
        _print_block(f"{attempt.error_type or 'Error'}: {attempt.error_message or ''}", "     ")
    if attempt.stack:
        _print_block(attempt.stack, "       ")


def _print_block(text: str, indent: str = "  ") -> None:
    for row in output.safe_lines(text).rstrip("\n").split("\n"):
        output.line(f"{indent}{row}".rstrip())


@app.command("groups")
@takes_listing_options
def groups(
    context: typer.Context, queue: QueueArgument, store: StoreOption = None, json: JsonOption = False
) -> None:
    """Count the dead letters that wait in a queue by reason and error type."""
    call = Call.of(context, store, json)
    with call.broker() as broker:
        found = broker.dead_letter_groups(queue)
    print_listing(
        context,
        call,
        found,
        _GROUP_COLUMNS,
        _group_row,
        f"no dead letters in {queue}",
        spare=("first", "last"),
        shortened=None,
    )


def _group_row(group: DeadLetterGroup) -> tuple[object, ...]:
    return (
        group.count,
        group.reason,
        group.error_type,
        output.shown_time(group.first),
        output.shown_time(group.last),
        group.example,
    )


@app.command("resubmit")
def resubmit(
    context: typer.Context,
    queue: QueueArgument,
    numbers: NumbersArgument = None,
    reason: ReasonOption = None,
    error_type: ErrorTypeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    text: TextOption = None,
    everything: AllOption = False,
    edit_body: Annotated[
        Path | None,
        typer.Option(
            "--edit-body",
            metavar="FILE",
            help="Send one dead letter with this body instead; - is standard input.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Send dead letters back to the queue they came from: by number, by filter, or all.

    Those that cannot be sent back stay where they are and are named; the exit code is then 1
    (3 if none of the numbers is a dead letter).
    """
    call = Call.of(context, store, json)
    given = DeadLetterFilter(reason=reason, error_type=error_type, since=since, until=until, text=text)
    which = chosen(numbers, given, everything)
    if edit_body is not None and not (isinstance(which, list) and len(which) == 1):
        raise usage("--edit-body is for one dead letter, by its number")
    body = None if edit_body is None else _read(edit_body)
    with call.broker() as broker:
        if dry_run:
            print_matching(context, call, broker, queue, which)
            return
        edit = None if body is None else lambda letter: _edited(letter, body)
        with output.progress(f"resubmitting to {queue}", "dead letters") as advance:
            report = broker.resubmit(queue, which, edit=edit, on_chunk=advance)
    if call.json:
        output.json_object(report)
    else:
        sent = list(report.resubmitted.items())
        how = f": {sent[0][0]} as {sent[0][1]}" if len(sent) == 1 else ""
        where = output.safe(EntityPath.parse(queue).queue)
        output.line(f"resubmitted {output.plural(len(sent), 'dead letter')} to {where}{how}")
    refuse_skipped("resubmitted", report.skipped, bool(report.resubmitted))


def refuse_skipped(done: str, skipped: Sequence[Skipped], any_done: bool) -> None:
    """Raise CommandError that names the dead letters which were left where they are."""
    if skipped:
        named = ", ".join(f"{s.sequence_number} ({s.why})" for s in itertools.islice(skipped, 10))
        more = f" and {len(skipped) - 10} more" if len(skipped) > 10 else ""
        missing = not any_done and all(s.why == "not found" for s in skipped)
        raise _left(done, f"{named}{more}", missing)


def _left(done: str, named: str, missing: bool) -> CommandError:
    return CommandError(f"not_{done}", f"not {done}: {named}", Exit.NOT_FOUND if missing else Exit.FAILED)


def _read(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise usage(f"--edit-body {file} cannot be read: {error.strerror}") from None


def _edited(letter: DeadLetter, body: bytes) -> Message:
    """Return a dead letter as a message with another body; the broker gives it a new id."""
    old = letter.message
    assert old is not None
    return msgspec.structs.replace(as_message(old), body=body, message_id=None, scheduled_enqueue_time=None)


@app.command("delete")
@app.command("purge", hidden=True)
def delete(
    context: typer.Context,
    queue: QueueArgument,
    numbers: NumbersArgument = None,
    reason: ReasonOption = None,
    error_type: ErrorTypeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    text: TextOption = None,
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete dead letters for good: by number, filter, or all.

    --all asks first, unless --yes is given. Numbers that are no waiting dead letter, or are locked,
    are named; the exit code is then 1 (3 if that is all of them).
    """
    call = Call.of(context, store, json)
    given = DeadLetterFilter(reason=reason, error_type=error_type, since=since, until=until, text=text)
    which = chosen(numbers, given, everything)
    with call.broker() as broker:
        if dry_run:
            print_matching(context, call, broker, queue, which)
            return
        if everything:
            dead = sum(group.count for group in broker.dead_letter_groups(queue))
            letters = output.plural(dead, "dead letter")
            confirm_deletion(f"all {letters} of {output.safe(queue)}", yes)
        with output.progress(f"deleting dead letters of {queue}"):
            deleted = broker.purge(queue, which, everything=everything)
    if call.json:
        output.json_object({"queue": queue, "deleted": deleted})
    else:
        output.line(f"deleted {output.plural(len(deleted), 'dead letter')} of {output.safe(queue)}")
    if isinstance(which, list) and len(deleted) < len(which):
        left = [number for number in which if number not in set(deleted)]
        raise _left(
            "deleted", f"{', '.join(map(str, left))} (no waiting dead letter, or locked)", not deleted
        )


def add_to(program: typer.Typer) -> None:
    """Add the commands to the command line."""
    from lazaretto.cli import rerouting_commands as rerouting

    rerouting.add_to(app)
    program.add_typer(app, name="dead-letter")
