"""`lazaretto repair`: sends frozen sets of dead letters back, watches them, and takes them back."""

from __future__ import annotations

from typing import Annotated, Any

from lazaretto.broker.broker import Broker
from lazaretto.broker.repairs import Repair
from lazaretto.cli import output
from lazaretto.cli.call import (
    Call,
    CallOptions,
    Change,
    ChangeOptions,
    LimitOption,
    ListingOptions,
    QueueArgument,
    confirm,
    require_person,
)
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.dead_letter_selection import (
    DestinationOption,
    MostOption,
    Selection,
    SelectionOptions,
    filter_record,
)
from lazaretto.cli.dead_letter_text import causes_of, print_preview, print_repair
from lazaretto.cli.derived import Fields, add_change
from lazaretto.cli.edit_option import (
    HandlerOption,
    SampleOption,
    read_edit,
    read_handler,
    read_sample,
    say_tried,
)
from lazaretto.cli.exits import CommandError
from lazaretto.cli.output import Columns
from lazaretto.cli.parse import Nothing, duration, number, optional_count
from lazaretto.commands import (
    ApplyRepair,
    CanaryRepair,
    CancelRepair,
    ExcludeLetters,
    PaceRepair,
    PauseRepair,
    PlanRepair,
    ResumeRepair,
    UndoRepair,
)
from lazaretto.model.records.plain import plain
from lazaretto.model.repairs import ORDERS, Phase, RepairStatus
from lazaretto.tools.signals import Ending

commands = Group()
repairs = commands.group("repair")

NameArgument = Annotated[str, argument("The repair's name.", "REPAIR")]
DetachOption = Annotated[bool, option("Return at once; a host or `lazaretto repair run` does the work.")]
InFlightOption = Annotated[
    Any,
    option(
        "Maximum number of letters sent but not yet processed; none: no limit, no ramp.",
        "N",
        parser=optional_count,
    ),
]
RateOption = Annotated[Any, option("Maximum letters per second; none: no limit.", "N", parser=optional_count)]
EditOption = Annotated[
    str | None,
    option("What to change: a JSON patch, SET body.region = 'eu', module:function, or @FILE with one."),
]

_COUNTS = ("sent", "processed", "failed", "skipped", "undone")
_COLUMNS: Columns = {
    "repair": "name", "queue": "queue", "phase": "phase", "letters": "letters",
    **{name: f"counts.{name}" for name in _COUNTS}, "by": "actor",
}  # fmt: skip
_LETTER_COLUMNS: Columns = {
    "sequence": "sequence_number", "outcome": "outcome", "sent as": "sent_as", "queue": "queue", "why": "why"
}  # fmt: skip
Directed = CanaryRepair | ApplyRepair | ResumeRepair | UndoRepair
#: What --yes is for.
_EDITED = "sending edited dead letters"


@repairs.command("plan")
def plan(
    call: ChangeOptions,
    queue: QueueArgument,
    selection: SelectionOptions,
    name: Annotated[str | None, option("A name for the repair.")] = None,
    to: DestinationOption = None,
    edit: EditOption = None,
    limit: MostOption = None,
    order: Annotated[str | None, option(f"Order: {' or '.join(ORDERS)}.")] = None,
    canary: Annotated[int, option("Number of letters in the canary.", "K", parser=number(0))] = 10,
    canary_failures: Annotated[
        int, option("Number of canary letters that may fail again.", "N", parser=number(0))
    ] = 0,
    canary_wait: Annotated[Any, option("Time to wait for the canary.", "TIME", parser=duration)] = "10m",
    look: Annotated[int, option("Number of letters to preview.", "N", "--look-at", parser=number(1))] = 1000,
    in_flight: InFlightOption = "1000",
    rate: RateOption = None,
) -> None:
    """Freeze a set of dead letters to be sent back later."""
    which = selection.chosen()
    change = None if edit is None else read_edit(edit)
    with call.broker() as broker:
        command = PlanRepair(
            path=queue, filter=filter_record(which), everything=selection.everything, name=name, limit=limit,
            to=to, edit=None if change is None else change.text, order=order, canary=canary,
            canary_failures=canary_failures, canary_wait=canary_wait, in_flight=_limit(in_flight),
            rate=_limit(rate),
        )  # fmt: skip
        made = broker.repair(call.run(broker, command)["name"])
        status, preview_ = made.status(), made.preview(letters=look)
        causes = causes_of(broker, status)

    def show_plan() -> None:
        print_preview(preview_)
        print_repair(status, causes)

    call.print({**plain(status), "preview": plain(preview_)}, show_plan)


def _limit(value: Any) -> Any:
    """Return a limit as the broker takes it."""
    return None if isinstance(value, Nothing) else value


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
        tried = try_repair(broker, name, made, sample=read_sample(sample))
    say_tried(call, tried)


@repairs.command("canary")
def canary(call: ChangeOptions, name: NameArgument, detach: DetachOption = False) -> None:
    """Send the first few letters, and wait for their outcome.

    The exit code is 1 if they fail again, or are not processed in time.
    """
    _direct(call, CanaryRepair(name=name), detach)


@repairs.command("apply")
def apply(
    call: ChangeOptions,
    name: NameArgument,
    in_flight: InFlightOption = None,
    rate: RateOption = None,
    detach: DetachOption = False,
) -> None:
    """Send all letters that are left.

    It sends more and more at once while they are processed, and stops if too many fail again; the exit code
    is 1 then. Control-C ends the command, not the repair.
    """
    _direct(call, ApplyRepair(name=name, limits=_limits(in_flight, rate)), detach)


def _limits(in_flight: Any, rate: Any) -> dict[str, Any]:
    limits = {"in_flight": in_flight, "rate": rate}
    return {name: _limit(value) for name, value in limits.items() if value is not None}


@repairs.command("pace")
def pace(
    call: ChangeOptions, name: NameArgument, in_flight: InFlightOption = None, rate: RateOption = None
) -> None:
    """Change how fast a repair goes, also while it runs."""
    with call.broker() as broker:
        call.run(broker, PaceRepair(name=name, **_limits(in_flight, rate)))
        status = broker.repair(name).status()
    call.print(status, lambda: print_repair(status, {}))


def _status(broker: Broker, fields: Fields, answer: Any) -> RepairStatus:
    return broker.repair(fields["name"]).status()


def _print_status(fields: Fields, status: RepairStatus) -> None:
    print_repair(status, {})


add_change(
    repairs,
    "pause",
    PauseRepair,
    _print_status,
    parameters={"name": NameArgument},
    result=_status,
)
add_change(
    repairs,
    "exclude",
    ExcludeLetters,
    _print_status,
    parameters={
        "name": NameArgument,
        "sequence_numbers": Annotated[
            list[int], argument("Sequence numbers.", "NUMBER...", parser=number(1))
        ],
    },
    result=_status,
)
add_change(
    repairs,
    "cancel",
    CancelRepair,
    _print_status,
    parameters={"name": NameArgument},
    result=_status,
)


@repairs.command("resume")
def resume(call: ChangeOptions, name: NameArgument, detach: DetachOption = False) -> None:
    """Go on where the repair was paused or stopped."""
    _direct(call, ResumeRepair(name=name), detach)


@repairs.command("undo")
def undo(call: ChangeOptions, name: NameArgument, detach: DetachOption = False) -> None:
    """Take back what nobody was handed yet, newest first.

    What was handed out stays as it is: `lazaretto repair letters` lists it.
    """
    _direct(call, UndoRepair(name=name), detach)


@repairs.command("show")
def show(call: CallOptions, name: NameArgument) -> None:
    """Show what a repair does and what became of its letters."""
    with call.broker() as broker:
        status = broker.repair(name).status()
        causes = causes_of(broker, status)
    call.print(status, lambda: print_repair(status, causes))


@repairs.command("letters")
def letters(
    call: ListingOptions,
    name: NameArgument,
    skipped: Annotated[bool, option("Only letters that were not sent, with the reason.")] = False,
) -> None:
    """List what became of each letter that was dealt with."""
    with call.broker() as broker:
        rows = broker.repair(name).letters(skipped=skipped)
        call.print_all(rows, _LETTER_COLUMNS, "no letters yet", spare=("queue",), shortened="why")


@repairs.command("list")
def list_(
    call: ListingOptions,
    queue: Annotated[str | None, option("Only repairs of this queue.")] = None,
    limit: LimitOption = None,
) -> None:
    """List repairs, the newest first."""
    with call.broker() as broker:
        records = broker.repairs(queue, limit=100 if limit is None else limit)
    call.print_all(records, _COLUMNS, "no repairs", spare=("by", "undone", "skipped"))


@repairs.command("run")
def run(
    call: CallOptions,
    name: Annotated[str | None, argument("Run only this repair, until it ends.", "[REPAIR]")] = None,
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
        causes = causes_of(broker, status)
    call.print(status, lambda: print_repair(status, causes))


def repair_at_once(
    call: Change,
    queue: str,
    selection: Selection,
    *,
    limit: int | None,
    to: str | None,
    edit: str | None,
    rate: Any,
    yes: bool,
) -> None:
    """Plan a repair without a canary, and apply it until nothing is left to send.

    If it edits, show the first differences and ask, unless `yes`: what is shown is the frozen set, and that
    is sent.
    """
    asks = edit is not None and not yes
    if asks:
        require_person(_EDITED)
    with call.broker() as broker:
        command = PlanRepair(
            path=queue, filter=filter_record(selection.chosen()), everything=selection.everything,
            limit=limit, to=to, edit=edit, canary=0, in_flight=None, rate=_limit(rate),
        )  # fmt: skip
        repair = broker.repair(call.run(broker, command)["name"])
        if asks:
            _confirm(call, repair)
        call.run(broker, ApplyRepair(name=repair.name), part=1)
        _go_on(call, broker, repair, detach=False)


def _confirm(call: Call, repair: Repair) -> None:
    """Show what a planned repair would do, and ask; cancel it if it is not to be done."""
    try:
        preview_ = repair.preview()
        if not call.json:
            print_preview(preview_)
        confirm(_EDITED, "resubmitted", f"Send {output.plural(preview_.letters, 'dead letter')}?", yes=False)
    except BaseException:
        repair.cancel()
        raise


# -- shared --------------------------------------------------------------------------------------


def _direct(call: Change, command: Directed, detach: bool) -> None:
    """Run a command on a repair, and go on with the repair."""
    with call.broker() as broker:
        repair = broker.repair(command.name)
        call.run(broker, command)
        _go_on(call, broker, repair, detach)


def _go_on(call: Call, broker: Broker, repair: Repair, detach: bool) -> None:
    """Run a repair, unless it is to be left to others, and print how it stands then."""
    if detach:
        status = repair.status()
    else:
        ending = Ending()
        with ending.on_signals():
            status = _run(repair, ending)
    causes = causes_of(broker, status)
    call.print(status, lambda: print_repair(status, causes))
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
