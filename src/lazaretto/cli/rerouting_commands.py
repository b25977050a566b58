"""`lazaretto dead-letter move` and `republish`: to another queue, or to a topic anew."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call, JsonOption, QueueArgument, StoreOption, YesOption
from lazaretto.cli.dead_letter_commands import (
    AllOption,
    DryRunOption,
    ErrorTypeOption,
    NumbersArgument,
    ReasonOption,
    SinceOption,
    TextOption,
    UntilOption,
    chosen,
    print_matching,
    refuse_skipped,
)
from lazaretto.cli.exits import CommandError, usage
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.rerouting import RepublishReport


def move(
    context: typer.Context,
    queue: QueueArgument,
    numbers: NumbersArgument = None,
    to: Annotated[
        str, typer.Option("--to", metavar="QUEUE", help="The queue that they go to.", show_default=False)
    ] = "",
    reason: ReasonOption = None,
    error_type: ErrorTypeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    text: TextOption = None,
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Move dead letters to another queue, where they are new messages: by number, by filter, or all.

    Those that it cannot take stay where they are and are named; the exit code is then 1 (3 if none of
    the numbers is a dead letter).
    """
    call = Call.of(context, store, json)
    given = DeadLetterFilter(reason=reason, error_type=error_type, since=since, until=until, text=text)
    which = chosen(numbers, given, everything)
    if not to:
        raise usage("give --to QUEUE: where the dead letters are to go")
    with call.broker() as broker:
        if dry_run:
            print_matching(context, call, broker, queue, which)
            return
        with output.progress(f"moving to {to}", "dead letters") as advance:
            report = broker.move_dead_letters(queue, which, to, on_chunk=advance)
    if call.json:
        output.json_object(report)
    else:
        moved = list(report.moved.items())
        how = f": {moved[0][0]} as {moved[0][1]}" if len(moved) == 1 and moved[0][1] is not None else ""
        output.line(f"moved {output.plural(len(moved), 'dead letter')} to {output.safe(to)}{how}")
    refuse_skipped("moved", report.skipped, bool(report.moved))


def republish(
    context: typer.Context,
    queue: QueueArgument,
    numbers: NumbersArgument = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="By default the one of their subscription."),
    ] = None,
    reason: ReasonOption = None,
    error_type: ErrorTypeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    text: TextOption = None,
    everything: AllOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would go where.")] = False,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Publish dead letters to a topic anew: all subscriptions whose rules match get them again.

    First it counts how many messages go to how many subscriptions, and asks, unless --yes. What no
    subscription wants stays where it is and is named; the exit code is then 1 (3 if none of the numbers
    is a dead letter). `resubmit` sends dead letters back to their one subscription instead.
    """
    call = Call.of(context, store, json)
    given = DeadLetterFilter(reason=reason, error_type=error_type, since=since, until=until, text=text)
    which = chosen(numbers, given, everything)
    with call.broker() as broker:
        report = broker.count_republished(queue, which, topic=topic)
        if not call.json:
            _print_count(report)
        if not dry_run:
            if report.published:
                _confirm(f"Publish {output.plural(len(report.published), 'dead letter')} anew?", yes)
            # Those that were counted, and no other ones that came meanwhile.
            with output.progress(f"republishing to {report.topic}", "dead letters") as advance:
                counted = [*report.published, *(s.sequence_number for s in report.skipped)]
                report = broker.republish(queue, counted, topic=topic, on_chunk=advance)
            if not call.json:
                output.line(f"republished {output.plural(len(report.published), 'dead letter')}")
    if call.json:
        output.json_object(report)
    refuse_skipped("republished", report.skipped, bool(report.published))


def _print_count(report: RepublishReport) -> None:
    letters, copies = len(report.published), output.plural(report.copies, "message")
    where = output.plural(len(report.subscriptions), "subscription")
    topic = output.safe(report.topic)
    output.line(f"{output.plural(letters, 'dead letter')} to {topic}: {copies} in {where}")
    for path, count in sorted(report.subscriptions.items()):
        output.line(f"  {count} to {output.safe(path)}")


def _confirm(question: str, yes: bool) -> None:
    """Ask before something is done that cannot be undone, unless `yes`."""
    if yes:
        return
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise usage("publishing to all matching subscriptions needs --yes")
    if not typer.confirm(question, err=True):
        raise CommandError("cancelled", "nothing was republished")


def add_to(app: typer.Typer) -> None:
    """Add the commands to those on dead letters."""
    app.command("move")(move)
    app.command("republish")(republish)
