"""`lazaretto repair`: sends frozen sets of dead letters back, watches them, and takes them back."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lazaretto.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import Call, CallOptions, QueueArgument
from lazaretto.cli.command import Group
from lazaretto.cli.completion import names_of_destinations
from lazaretto.cli.dead_letter_selection import Selection, SelectionOptions
from lazaretto.cli.edit_option import read_edit
from lazaretto.cli.exits import CommandError
from lazaretto.cli.listings import LimitOption, ListingOptions
from lazaretto.cli.parse import Nothing, duration, number, optional_count
from lazaretto.cli.tried import HandlerOption, SampleOption, read_handler, read_sample, say_tried
from lazaretto.errors import EntityNotFound
from lazaretto.model.repair_phases import Phase
from lazaretto.model.repairs import ORDERS, RepairedLetter, RepairPreview, RepairStatus
from lazaretto.records.plain import plain
from lazaretto.repairs import Repair
from lazaretto.tools.signals import Ending

commands = Group()
repairs = commands.group("repair")

NameArgument = Annotated[str, typer.Argument(metavar="REPAIR", help="The repair's name.", show_default=False)]
DetachOption = Annotated[
    bool, typer.Option("--detach", help="Return at once; a host or `lazaretto repair run` does the work.")
]
InFlightOption = Annotated[
    Any,
    typer.Option(
        "--in-flight", metavar="N", parser=optional_count,
        help="Maximum number of letters sent but not yet processed; none: no limit, no ramp.",
    ),
]  # fmt: skip
RateOption = Annotated[
    Any,
    typer.Option(
        "--rate", metavar="N", parser=optional_count, help="Maximum letters per second; none: no limit."
    ),
]
EditOption = Annotated[
    str | None,
    typer.Option(
        "--edit", metavar="EDIT",
        help="What to change: a JSON patch, SET body.region = 'eu', module:function, or @FILE with one.",
    ),
]  # fmt: skip

_COLUMNS = ("repair", "queue", "phase", "letters", "sent", "processed", "failed", "skipped", "undone", "by")
_LETTER_COLUMNS = ("sequence", "outcome", "sent as", "queue", "why")
#: What a person does next, by the phase.
_NEXT = {
    Phase.PLANNED: ("canary", "apply"),
    Phase.PASSED: ("apply",),
    Phase.FAILED: ("undo",),
    Phase.INCONCLUSIVE: ("canary", "undo"),
    Phase.CANARY: ("show",),
    Phase.APPLYING: ("show", "pause"),
    Phase.PAUSED: ("resume", "undo"),
    Phase.STOPPED: ("undo", "resume"),
    Phase.DONE: ("show", "undo"),
    Phase.CANCELLED: ("undo",),
    Phase.UNDOING: ("show",),
    Phase.UNDONE: (),
}


@repairs.command("plan")
def plan(
    call: CallOptions,
    queue: QueueArgument,
    selection: SelectionOptions,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="A name for the repair.")] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="QUEUE",
            help="Send them to this queue instead.",
            autocompletion=names_of_destinations,
        ),
    ] = None,
    edit: EditOption = None,
    limit: LimitOption = None,
    order: Annotated[
        str | None,
        typer.Option("--order", metavar="ORDER", help=f"Order: {' or '.join(ORDERS)}."),
    ] = None,
    canary: Annotated[
        int, typer.Option("--canary", metavar="K", parser=number(0), help="Number of letters in the canary.")
    ] = 10,
    canary_failures: Annotated[
        int,
        typer.Option(
            "--canary-failures",
            metavar="N",
            parser=number(0),
            help="Number of canary letters that may fail again.",
        ),
    ] = 0,
    canary_wait: Annotated[
        Any,
        typer.Option("--canary-wait", metavar="TIME", parser=duration, help="Time to wait for the canary."),
    ] = "10m",
    look: Annotated[
        int, typer.Option("--look-at", metavar="N", parser=number(1), help="Number of letters to preview.")
    ] = 1000,
    in_flight: InFlightOption = "1000",
    rate: RateOption = None,
) -> None:
    """Freeze a set of dead letters to be sent back later."""
    which = selection.chosen()
    change = None if edit is None else read_edit(edit)
    with call.broker() as broker:
        made = broker.plan_repair(
            queue, which, everything=selection.everything, name=name, limit=limit, to=to, edit=change,
            order=order, canary=canary, canary_failures=canary_failures, canary_wait=canary_wait,
            in_flight=_limit(in_flight), rate=_limit(rate),
        )  # fmt: skip
        status, found = made.status(), made.preview(letters=look)
        causes = _causes(broker, status)

    def show_plan() -> None:
        _print_preview(found)
        _print(status, causes)

    call.print({**plain(status), "preview": plain(found)}, show_plan)


def _print_preview(found: RepairPreview) -> None:
    """Print what would become of the letters."""
    of = "" if found.looked_at == found.letters else f" (of {found.looked_at} looked at)"
    output.line(f"what would happen now{of}")
    edits = found.changed + found.unchanged and (found.changed or found.examples)
    output.fields(
        [
            ("stops at once", found.stops),
            ("sent to", found.to),
            ("bytes", output.shown_bytes(found.bytes)),
            ("sessions", found.sessions or None),
            ("return to their places", found.held_places or None),
            ("have a recently sent ID", found.duplicates or None),
            ("changed", found.changed if edits else None),
            ("left as they are", found.unchanged if edits else None),
            *((f"skipped, {why}", number_) for why, number_ in found.skipped.items()),
        ],
        "  ",
    )
    for example in found.examples:
        output.line(f"  message {example.sequence_number}")
        for line in example.difference:
            output.line(f"    {line}")


def _limit(given: Any) -> Any:
    """Return a limit as the broker takes it."""
    return None if isinstance(given, Nothing) else given


@repairs.command("try")
def try_(
    call: CallOptions, name: NameArgument, handler: HandlerOption = "", sample: SampleOption = "200"
) -> None:
    """Try a handler on what is left to send, in a sandbox.

    It gets the letters as the edit leaves them. Nothing is settled and nothing is sent: the command says what
    would happen, and whether the old causes are gone. The exit code is 1 if a letter would fail, or would
    not be sent.
    """
    from lazaretto.host.dry_run import try_repair

    with call.broker() as broker:
        made = read_handler(handler, broker.repair(name).status().queue)
        found = try_repair(broker, name, made, sample=read_sample(sample))
    say_tried(call, found)


@repairs.command("canary")
def canary(call: CallOptions, name: NameArgument, detach: DetachOption = False) -> None:
    """Send the first few letters, and wait for their outcome.

    The exit code is 1 if they fail again, or are not processed in time.
    """
    with call.broker() as broker:
        repair = broker.repair(name)
        repair.canary()
        _go_on(call, broker, repair, detach)


@repairs.command("apply")
def apply(
    call: CallOptions,
    name: NameArgument,
    in_flight: InFlightOption = None,
    rate: RateOption = None,
    detach: DetachOption = False,
) -> None:
    """Send all letters that are left.

    It sends more and more at once while they are processed, and stops if too many fail again; the exit code
    is 1 then. Control-C ends the command, not the repair.
    """
    with call.broker() as broker:
        repair = broker.repair(name)
        repair.apply(**_limits(in_flight, rate))
        _go_on(call, broker, repair, detach)


def _limits(in_flight: Any, rate: Any) -> dict[str, Any]:
    given = {"in_flight": in_flight, "rate": rate}
    return {name: _limit(value) for name, value in given.items() if value is not None}


@repairs.command("pace")
def pace(
    call: CallOptions, name: NameArgument, in_flight: InFlightOption = None, rate: RateOption = None
) -> None:
    """Change how fast a repair goes, also while it runs."""
    with call.broker() as broker:
        repair = broker.repair(name)
        now = repair.status()
        repair.set_pace(**{"in_flight": now.in_flight, "rate": now.rate, **_limits(in_flight, rate)})
        status = repair.status()
    call.print(status, lambda: _print(status, {}))


@repairs.command("pause")
def pause(call: CallOptions, name: NameArgument) -> None:
    """Send no more until `resume`."""
    _direct(call, name, "pause")


@repairs.command("resume")
def resume(call: CallOptions, name: NameArgument, detach: DetachOption = False) -> None:
    """Go on where the repair was paused or stopped."""
    with call.broker() as broker:
        repair = broker.repair(name)
        repair.resume()
        _go_on(call, broker, repair, detach)


@repairs.command("cancel")
def cancel(call: CallOptions, name: NameArgument) -> None:
    """Never send what is left."""
    _direct(call, name, "cancel")


@repairs.command("undo")
def undo(call: CallOptions, name: NameArgument, detach: DetachOption = False) -> None:
    """Take back what nobody was handed yet, newest first.

    What was handed out stays as it is: `lazaretto repair letters` lists it.
    """
    with call.broker() as broker:
        repair = broker.repair(name)
        repair.undo()
        _go_on(call, broker, repair, detach)


@repairs.command("show")
def show(call: CallOptions, name: NameArgument) -> None:
    """Show what a repair does and what became of its letters."""
    with call.broker() as broker:
        status = broker.repair(name).status()
        causes = _causes(broker, status)
    call.print(status, lambda: _print(status, causes))


@repairs.command("letters")
def letters(
    call: ListingOptions,
    name: NameArgument,
    skipped: Annotated[
        bool, typer.Option("--skipped", help="Only letters that were not sent, with the reason.")
    ] = False,
) -> None:
    """List what became of each letter that was dealt with."""

    def row(letter: RepairedLetter) -> tuple[object, ...]:
        return (letter.sequence_number, letter.outcome, letter.sent_as, letter.queue, letter.why)

    with call.broker() as broker:
        found = broker.repair(name).letters(skipped=skipped)
        call.print_all(found, _LETTER_COLUMNS, row, "no letters yet", spare=("queue",), shortened="why")


@repairs.command("list")
def list_(
    call: ListingOptions,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="Only repairs of this queue.")
    ] = None,
    limit: LimitOption = None,
) -> None:
    """List repairs, the newest first."""

    def row(status: RepairStatus) -> tuple[object, ...]:
        counts = status.counts
        return (
            status.name, status.queue, status.phase.value, status.letters, counts.sent, counts.processed,
            counts.failed, counts.skipped, counts.undone, status.actor,
        )  # fmt: skip

    with call.broker() as broker:
        found = broker.repairs(queue, limit=100 if limit is None else limit)
    call.print_all(found, _COLUMNS, row, "no repairs", spare=("by", "undone", "skipped"))


@repairs.command("run")
def run(
    call: CallOptions,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[REPAIR]", help="Run only this repair, until it ends.", show_default=False),
    ] = None,
) -> None:
    """Run repairs until told to end, or one until it is over.

    Service hosts run them, too. Each repair is run by one process at a time; if that is killed, another one
    goes on.
    """
    ending = Ending()
    with call.broker() as broker, ending.on_signals():
        if name is None:
            broker.run_repairs(until=lambda: ending.asked)
            return
        status = _run(broker.repair(name), ending)
        causes = _causes(broker, status)
    call.print(status, lambda: _print(status, causes))


def repair_at_once(
    call: Call,
    queue: str,
    selection: Selection,
    *,
    limit: int | None,
    to: str | None,
    edit: str | None,
    rate: Any,
) -> None:
    """Plan a repair without a canary, and apply it until nothing is left to send."""
    with call.broker() as broker:
        repair = broker.plan_repair(
            queue, selection.chosen(), everything=selection.everything, limit=limit, to=to, edit=edit,
            canary=0, in_flight=None, rate=_limit(rate),
        )  # fmt: skip
        repair.apply()
        _go_on(call, broker, repair, detach=False)


# -- shared --------------------------------------------------------------------------------------


def _direct(call: Call, name: str, verb: str) -> None:
    with call.broker() as broker:
        repair = broker.repair(name)
        getattr(repair, verb)()
        status = repair.status()
    call.print(status, lambda: _print(status, {}))


def _go_on(call: Call, broker: Broker, repair: Repair, detach: bool) -> None:
    """Run a repair, unless it is to be left to others, and print how it stands then."""
    if detach:
        status = repair.status()
    else:
        ending = Ending()
        with ending.on_signals():
            status = _run(repair, ending)
    causes = _causes(broker, status)
    call.print(status, lambda: _print(status, causes))
    if status.phase in (Phase.FAILED, Phase.INCONCLUSIVE, Phase.STOPPED):
        raise CommandError(
            f"repair_{status.phase.value}", f"{status.name} is {status.phase.value}: {status.why}"
        )


def _run(repair: Repair, ending: Ending) -> RepairStatus:
    with output.progress(f"repair {repair.name}", "letters") as advance:

        def look() -> bool:
            advance(*repair.progress())
            return ending.asked

        status = repair.run(until=look)
        advance(*repair.progress())
    if ending.asked:
        output.notice(f"a repair runner continues it: lazaretto repair run {repair.name}")
    return status


def _causes(broker: Broker, status: RepairStatus) -> dict[str, int]:
    """Return the causes of fingerprints, as far as they are known."""
    if not status.fingerprints:
        return {}
    try:
        found = broker.triage(f"{status.queue}/{status.subqueue}", over=True)
    except EntityNotFound:
        return {}
    return {alike.fingerprint: cause.number for cause in found.causes for alike in cause.fingerprints}


def _print(status: RepairStatus, causes: dict[str, int]) -> None:
    counts = status.counts
    by_cause: dict[int, int] = {}
    for fingerprint, letters_ in status.fingerprints.items():
        if fingerprint in causes:
            by_cause[causes[fingerprint]] = by_cause.get(causes[fingerprint], 0) + letters_
    largest = sorted(by_cause.items(), key=lambda pair: -pair[1])
    numbers = f", numbers {status.first} to {status.last}" if status.letters else ""
    output.line(f"repair {status.name} of {status.queue}: {status.phase.value}")
    window = "no limit" if status.in_flight is None else f"{status.window} of at most {status.in_flight}"
    which = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in status.which.items())
    output.fields(
        [
            ("why", status.why),
            ("letters", f"{status.letters}{numbers}"),
            ("which", which or "all"),
            ("frozen", output.shown_time(status.frozen_at)),
            ("causes", ", ".join(f"{cause}: {letters_}" for cause, letters_ in largest)),
            ("sessions", status.sessions),
            ("to", status.to or status.queue),
            ("edit", status.edit),
            ("order", status.order),
            ("canary", status.canary or "none"),
            ("in flight", window),
            ("rate", None if status.rate is None else f"{status.rate:g} a second"),
            ("digest", status.digest),
            ("planned by", status.actor),
            ("run by", status.runner),
        ],
        "  ",
    )
    output.line("letters")
    output.fields(
        [
            ("not sent yet", counts.left),
            ("waiting", counts.waiting),
            ("processed", counts.processed),
            ("failed again", counts.failed),
            ("skipped", counts.skipped),
            ("taken back", counts.undone),
        ],
        "  ",
    )
    if status.estimate is not None:
        output.line(f"done in about {output.shown_duration(status.estimate)}")
    for verb in _NEXT[status.phase]:
        output.line(f"next: lazaretto repair {verb} {status.name}")
