"""`lazaretto dead-letter`: list, show, groups, export, resubmit, purge, restore, delete, move, republish."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from lazaretto.cli import output
from lazaretto.cli.call import (
    CallOptions,
    ChangeOptions,
    LimitOption,
    ListingOptions,
    QueueArgument,
    YesOption,
    ask_count,
    confirm,
)
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.completion import names_of_destinations, names_of_topics
from lazaretto.cli.dead_letter_selection import (
    DestinationOption,
    DryRunOption,
    FilterOptions,
    MostOption,
    NumbersOption,
    SelectionOptions,
    left_error,
    print_letters,
    print_selection,
    refuse_skipped,
    run_in_parts,
    run_letters,
)
from lazaretto.cli.dead_letter_text import export_letters, facts_of, print_attempt, print_block
from lazaretto.cli.edit_option import (
    EDITOR,
    EditOption,
    HandlerOption,
    SampleOption,
    edit_in_editor,
    preview,
    read_body,
    read_edit,
    read_handler,
    read_sample,
    say_tried,
    with_body,
)
from lazaretto.cli.exits import usage
from lazaretto.cli.output import Columns
from lazaretto.cli.parse import number
from lazaretto.cli.repair_commands import RateOption, repair_at_once
from lazaretto.commands import DeletePurged, MoveDeadLetters, Purge, Republish, Restore, Resubmit
from lazaretto.engine.outcome.rerouting import MoveReport, RepublishReport
from lazaretto.engine.outcome.send_back import ResubmitReport
from lazaretto.engine.outcome.set_aside import RestoreReport
from lazaretto.model.entities import EntityPath

commands = Group()
letters = commands.group("dead-letter")

_GROUP_COLUMNS: Columns = {
    "count": "count", "reason": "reason", "error type": "error_type", "first": "first", "last": "last",
    "example": "example",
}  # fmt: skip


@letters.command("list")
def list_(
    call: ListingOptions,
    queue: QueueArgument,
    which: FilterOptions,
    limit: LimitOption = None,
    order: Annotated[str, option("Sort by number or time; -number or -time reverses the order.")] = "number",
) -> None:
    """List the dead letters of a queue.

    With filters, it lists those that meet all of them.
    """
    with call.broker() as broker:
        print_letters(call, broker, queue, which, limit, order)


@letters.command("show")
def show(
    call: CallOptions,
    queue: QueueArgument,
    sequence: Annotated[int, argument("Sequence number.", "NUMBER", parser=number(1))],
) -> None:
    """Show a dead letter with every attempt and its stack."""
    with call.broker() as broker:
        letter = broker.dead_letter(queue, sequence)

    def facts() -> None:
        output.line(f"dead letter {letter.sequence_number} of {letter.queue}")
        output.fields(facts_of(letter), "  ")
        output.line("attempts" if letter.attempts else "no attempts")
        for attempt in letter.attempts:
            print_attempt(attempt)
        if letter.message is not None:
            output.line(f"body ({output.plural(len(letter.message.body), 'byte')})")
            print_block(output.body_text(letter.message.body))

    call.print(letter, facts)


@letters.command("groups")
def groups(call: ListingOptions, queue: QueueArgument) -> None:
    """Count the dead letters of a queue by reason and error type."""
    with call.broker() as broker:
        listed = broker.dead_letter_groups(queue)
    empty = f"no dead letters in {queue}"
    call.print_all(listed, _GROUP_COLUMNS, empty, spare=("first", "last"), shortened=None)


@letters.command("export")
def export(
    call: CallOptions,
    queue: QueueArgument,
    which: FilterOptions,
    format_: Annotated[Literal["jsonl", "csv"], option("Lines of JSON, or CSV without bodies.")] = "jsonl",
    file: Annotated[
        Path | None, option("Write to this new file.  [default: standard output]", "", "--output")
    ] = None,
) -> None:
    """Write dead letters as messages to send again, or as CSV.

    `lazaretto send --jsonl` reads the lines back. They stay dead letters. With filters, it writes those that
    meet all of them. In CSV, a ' goes before what a spreadsheet would take for a formula.
    """
    with call.broker() as broker:
        written = export_letters(broker, queue, which, format_, file)
    if file is not None:
        record = {"queue": queue, "file": str(file), "exported": written}
        call.print(record, f"exported {output.plural(written, 'dead letter')} of {queue} to {file}")


@letters.command("resubmit")
def resubmit(
    call: ChangeOptions,
    queue: QueueArgument,
    selection: SelectionOptions,
    edit_body: Annotated[
        Path | None, option("Send one dead letter with this body instead; - is standard input.")
    ] = None,
    limit: MostOption = None,
    to: DestinationOption = None,
    edit: EditOption = None,
    rate: RateOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Send dead letters back to the queue they came from.

    Those that cannot be sent back stay where they are and are named; the exit code is then 1, or 3 if
    none of the numbers is a dead letter. --limit, --to, --edit EDIT and --rate make it a repair, which
    `lazaretto repair` shows and takes back; --edit without a value opens one letter in $EDITOR. With --edit,
    it shows the first differences and asks, unless --yes is given; --dry-run only shows them.
    """
    which = selection.chosen()
    if edit is not None and edit_body is not None:
        raise usage("give --edit or --edit-body, not both")
    if edit == EDITOR and not (isinstance(which, list) and len(which) == 1):
        raise usage("--edit without a value is for one dead letter, by its number")
    made = None if edit in (None, EDITOR) else read_edit(edit)
    if (made is not None and not dry_run) or (limit, to, rate) != (None, None, None):
        if edit_body is not None or dry_run or edit == EDITOR:
            raise usage(
                "--limit, --to and --rate cannot be combined with --edit-body, --dry-run or a bare --edit"
            )
        text = None if made is None else made.text
        repair_at_once(call, queue, selection, limit=limit, to=to, edit=text, rate=rate, yes=yes)
        return
    if call.idempotency_key is not None and (edit_body is not None or edit == EDITOR):
        raise usage("--idempotency-key cannot be combined with --edit-body or a bare --edit")
    if edit_body is not None and not (isinstance(which, list) and len(which) == 1):
        raise usage("--edit-body is for one dead letter, by its number")
    body = None if edit_body is None else read_body(edit_body)
    with call.broker() as broker:
        if edit == EDITOR:
            assert isinstance(which, list)
            body = edit_in_editor(broker.dead_letter(queue, which[0]))
        instead = None if body is None else functools.partial(with_body, body=body)
        show = made or instead
        if edit is not None and show is not None:
            preview(call, broker, queue, which, show, dry_run=dry_run, yes=yes)
        elif dry_run:
            print_selection(call, broker, queue, which)
        if dry_run:
            return
        with output.progress(f"resubmitting to {queue}", "dead letters") as advance:
            report = run_letters(
                call, broker, which,
                lambda: broker.resubmit(queue, which, edit=instead, actor=call.actor, on_chunk=advance),
                lambda part: Resubmit(path=queue, sequence_numbers=part),
                ResubmitReport,
            )  # fmt: skip
    call.print(report, _moved("resubmitted", report.resubmitted, EntityPath.parse(queue).queue))
    refuse_skipped("resubmitted", report.skipped, bool(report.resubmitted))


def _moved(done: str, numbers: Mapping[int, int | None], where: str) -> str:
    """Return what became of dead letters, each by its number and its new one."""
    first = next(iter(numbers.items()), None) if len(numbers) == 1 else None
    how = f": {first[0]} as {first[1]}" if first is not None and first[1] is not None else ""
    return f"{done} {output.plural(len(numbers), 'dead letter')} to {where}{how}"


@letters.command("try")
def try_(
    call: CallOptions,
    queue: QueueArgument,
    selection: SelectionOptions,
    handler: HandlerOption = "",
    edit: EditOption = None,
    sample: SampleOption = "200",
) -> None:
    """Try a handler on dead letters, in a sandbox.

    With --edit it gets them as the edit leaves them. Nothing is settled and nothing is sent: the command says
    what would happen. The exit code is 1 if a letter would fail, or would not be sent.
    """
    from lazaretto.host.dry_run import dry_run

    which = selection.chosen()
    made = read_handler(handler, queue)
    change = None if edit is None else read_edit(edit)
    with call.broker() as broker:
        tried = dry_run(broker, queue, which, made, edit=change, sample=read_sample(sample))
    say_tried(call, tried)


@letters.command("purge")
def purge(
    call: ChangeOptions,
    queue: QueueArgument,
    selection: SelectionOptions,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Set dead letters aside, and delete them after 7 days.

    Until then `lazaretto dead-letter restore` brings them back. --all asks first, unless --yes is given.
    Numbers of locked or missing dead letters are named; the exit code is then 1, or 3 if none was purged.
    """
    which = selection.chosen()
    with call.broker() as broker:
        if dry_run:
            print_selection(call, broker, queue, which)
            return
        if selection.everything:
            dead = sum(group.count for group in broker.dead_letter_groups(queue))
            what = f"all {output.plural(dead, 'dead letter')} of {queue}"
            confirm(f"purging {what}", "purged", f"Purge {what}?", yes)
        with output.progress(f"purging dead letters of {queue}"):
            purged = run_letters(
                call, broker, which,
                lambda: broker.purge(queue, which, everything=selection.everything, actor=call.actor),
                lambda part: Purge(path=queue, sequence_numbers=part),
                list[int],
            )  # fmt: skip
    call.print(
        {"queue": queue, "purged": purged},
        f"purged {output.plural(len(purged), 'dead letter')} of {queue}, kept for 7 days",
    )
    if isinstance(which, list) and len(purged) < len(which):
        kept = ", ".join(str(number) for number in which if number not in set(purged))
        raise left_error("purged", f"{kept} (not a dead letter, or locked)", not purged)


@letters.command("restore")
def restore(call: ChangeOptions, queue: QueueArgument, selection: NumbersOption = None) -> None:
    """Bring purged dead letters back as they were.

    Without numbers, it brings back all that were purged in the last 7 days. Numbers of those that cannot be
    restored are named; the exit code is then 1, or 3 if none was restored.
    """
    with call.broker() as broker:
        report = run_letters(
            call, broker, selection,
            lambda: broker.restore(queue, selection or None, actor=call.actor),
            lambda part: Restore(path=queue, sequence_numbers=part),
            RestoreReport,
        )  # fmt: skip
    call.print(report, f"restored {output.plural(len(report.restored), 'dead letter')} of {queue}")
    refuse_skipped("restored", report.skipped, bool(report.restored))


@letters.command("delete")
def delete(
    call: ChangeOptions,
    queue: QueueArgument,
    count: Annotated[int | None, option("Their number; skips the question.", "N", parser=number(0))] = None,
) -> None:
    """Delete all purged dead letters of a queue for good, now.

    It asks for their number, which has to be typed; --count gives it instead.
    """
    with call.broker() as broker:
        if count is None:
            purged = len(broker.purged(queue))
            doing = f"deleting {output.plural(purged, 'purged dead letter')} of {queue} for good"
            count = ask_count(doing) if purged else 0
        deleted = call.run(broker, DeletePurged(path=queue, count=count))
    call.print(
        {"queue": queue, "deleted": deleted},
        f"deleted {output.plural(deleted, 'purged dead letter')} of {queue} for good",
    )


@letters.command("move")
def move(
    call: ChangeOptions,
    queue: QueueArgument,
    selection: SelectionOptions,
    to: Annotated[
        str, option("Destination: a queue or a topic.", "QUEUE", complete=names_of_destinations)
    ] = "",
    dry_run: DryRunOption = False,
) -> None:
    """Move dead letters to another queue, as new messages.

    Those that it cannot take stay where they are and are named; the exit code is then 1, or 3 if none of
    the numbers is a dead letter.
    """
    which = selection.chosen()
    if not to:
        raise usage("give --to QUEUE: the destination of the dead letters")
    with call.broker() as broker:
        if dry_run:
            print_selection(call, broker, queue, which)
            return
        with output.progress(f"moving to {to}", "dead letters") as advance:
            report = run_letters(
                call, broker, which,
                lambda: broker.move_dead_letters(queue, which, to, actor=call.actor, on_chunk=advance),
                lambda part: MoveDeadLetters(path=queue, sequence_numbers=part, to=to),
                MoveReport,
            )  # fmt: skip
    call.print(report, _moved("moved", report.moved, to))
    refuse_skipped("moved", report.skipped, bool(report.moved))


@letters.command("republish")
def republish(
    call: ChangeOptions,
    queue: QueueArgument,
    selection: SelectionOptions,
    topic: Annotated[
        str | None,
        option("Destination topic.  [default: their subscription's topic]", complete=names_of_topics),
    ] = None,
    dry_run: Annotated[bool, option("Only count the copies for each subscription.")] = False,
    yes: YesOption = False,
) -> None:
    """Publish dead letters to a topic again.

    All subscriptions whose rules match get them. It counts the copies first and asks, unless --yes is
    given. Those that no subscription wants stay where they are and are named; the exit code is then 1,
    or 3 if none of the numbers is a dead letter. To send dead letters back to their one subscription,
    use `lazaretto dead-letter resubmit`.
    """
    which = selection.chosen()
    with call.broker() as broker:
        if call.idempotency_key is not None and not dry_run:
            if not yes:
                raise usage("--idempotency-key needs --yes: what was republished before is not counted again")
            command = functools.partial(Republish, path=queue, topic=topic)
            report = run_in_parts(
                call, broker, which, lambda part: command(sequence_numbers=part), RepublishReport
            )
            call.print(report, f"republished {output.plural(len(report.published), 'dead letter')}")
            refuse_skipped("republished", report.skipped, bool(report.published))
            return
        report = broker.count_republished(queue, which, topic=topic)
        if not call.json:
            _print_count(report)
        if not dry_run:
            count = output.plural(len(report.published), "dead letter")
            if report.published:
                confirm(
                    "publishing to all matching subscriptions", "republished", f"Publish {count} again?", yes
                )
            # Those that were counted, and no other ones that came meanwhile.
            with output.progress(f"republishing to {report.topic}", "dead letters") as advance:
                counted = [*report.published, *(s.sequence_number for s in report.skipped)]
                report = broker.republish(queue, counted, topic=topic, actor=call.actor, on_chunk=advance)
    if call.json:
        output.json_object(report)
    elif not dry_run:
        output.line(f"republished {output.plural(len(report.published), 'dead letter')}")
    refuse_skipped("republished", report.skipped, bool(report.published))


def _print_count(report: RepublishReport) -> None:
    count, copies = len(report.published), output.plural(report.copies, "message")
    where = output.plural(len(report.subscriptions), "subscription")
    output.line(f"{output.plural(count, 'dead letter')} to {report.topic}: {copies} in {where}")
    for path, number_ in sorted(report.subscriptions.items()):
        output.line(f"  {number_} to {path}")
