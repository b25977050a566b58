"""`lazaretto triage`: the causes of a queue's dead letters, and what operators say of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from lazaretto.broker.broker import Broker
from lazaretto.cli import output
from lazaretto.cli.call import CallOptions, ChangeOptions, ListingOptions, QueueArgument
from lazaretto.cli.command import Group, argument, option
from lazaretto.cli.commands import CommandGroup
from lazaretto.cli.derived import Fields, add_change
from lazaretto.cli.exits import usage
from lazaretto.cli.output import Columns, shorten
from lazaretto.cli.parse import future
from lazaretto.commands import (
    AcknowledgeCause,
    MergeCauses,
    NoteCause,
    PurgeCause,
    RecountCauses,
    RestorePurged,
    SplitCause,
    UnmergeCauses,
)
from lazaretto.engine.outcome.causes import MOST_MARKS, Cause, Triage, marks_of
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.model.causes import MARK, TimeMark, mark_before

#: What stands for the causes in the bars, the largest first, and for all others.
MARKS, REST = "█▓▒░#=+", "·"
#: Rows of the highest bar, and columns of each hour.
_HEIGHT, _WIDE = 10, 2


def fill_bar(counts: Sequence[int], most: int, height: int = _HEIGHT) -> list[int]:
    """Return which of the counts each cell of a bar is for, from below; `most` is as high as can be.

    A bar of anything has a cell at least. Cells go to counts by largest remainder, so that no part is off by
    a cell or more.
    """
    total = sum(counts)
    if not total:
        return []
    cells = max(1, round(total * height / most))
    whole = [count * cells // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda n: (-(counts[n] * cells % total), n))
    for index in by_remainder[: cells - sum(whole)]:
        whole[index] += 1
    return [index for index, part in enumerate(whole) for _ in range(part)]


def draw_hours(hours: Sequence[Sequence[int]], now: datetime) -> list[str]:
    """Return the lines of a chart: bars of the hours up to `now`, each stacked from the series in `hours`.

    The first series have marks of their own, the others one in common. Without letters there are no lines.
    """
    own = list(hours[: len(MARKS)])
    rest = hours[len(MARKS) :]
    if rest:
        own.append([sum(parts) for parts in zip(*rest, strict=True)])
    bars = list(zip(*own, strict=True))
    most = max(map(sum, bars), default=0)
    if not most:
        return []
    filled = [fill_bar(bar, most) for bar in bars]
    marks = MARKS + REST
    margin = len(str(most))
    lines = []
    for row in reversed(range(_HEIGHT)):
        cells = "".join((marks[bar[row]] if row < len(bar) else " ") * _WIDE for bar in filled)
        scale = str(most) if row == _HEIGHT - 1 else ""
        lines.append(f"{scale:>{margin}} │{cells}".rstrip())
    lines.append(f"{0:>{margin}} └{'─' * (_WIDE * len(bars))}")
    lines.append(" " * (margin + 2) + _times(len(bars), now))
    return lines


def _times(count: int, now: datetime) -> str:
    """Return the hours below the bars, each at its first column, as many as fit."""
    every = 6
    shown = ""
    for index in range(0, count, every):
        at = now - timedelta(hours=count - 1 - index)
        shown += f"{at:%H}:00".ljust(_WIDE * every)
    return shown.rstrip()


_BARS = "▁▂▃▄▅▆▇█"
_SPARE = ("holds for", "reason", "share", "last 24 h", "difference")
#: Seconds for which a list of causes may look for differences.
_EXPLAINING = 1
#: The columns of a line below a chart, at most.
_WIDEST = 80
#: How many fingerprints of a cause are shown.
_SHOWN = 10


class _OfQueues(CommandGroup):
    """A group in which what names no command is a queue: its causes are listed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take `triage orders` for `triage list orders`."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["list", *args]
        rest: list[str] = super().parse_args(ctx, args)
        return rest


commands = Group()
causes = commands.group("triage", kind=_OfQueues)

CauseArgument = Annotated[
    int, typer.Argument(metavar="CAUSE", min=1, help="The cause's number.", show_default=False)
]
SinceOption = Annotated[datetime | None, option("A cause is new if it is younger than this.  [default: 24h]")]


def sparkline(counts: Sequence[int]) -> str:
    """Return numbers as a line of bars; the highest is as high as can be, and none is a point."""
    most = max(counts, default=0)
    if not most:
        return "·" * len(counts)
    return "".join("·" if not n else _BARS[(n * len(_BARS) - 1) // most] for n in counts)


def _difference(cause: Cause) -> str | None:
    difference = cause.difference
    return None if difference is None else difference.filter or "no difference found"


def _holds_for(cause: Cause) -> str | None:
    difference = cause.difference
    if difference is None or difference.filter is None:
        return None
    share = (
        "all" if difference.letters == difference.counted else f"{difference.letters} of {difference.counted}"
    )
    return f"{share}; {difference.good} of {difference.compared} good"


def _state(cause: Cause, now: datetime) -> str:
    until = cause.acknowledged_until
    return f"{cause.state.value}, known" if until is not None and until > now else cause.state.value


@causes.command("list")
def list_(
    call: ListingOptions,
    queue: QueueArgument,
    since: SinceOption = None,
    over: Annotated[bool, option("Also causes without open letters.")] = False,
    chart: Annotated[bool, option("Draw the letters of the last 24 hours, stacked by cause.")] = False,
) -> None:
    """List the causes of dead letters, the largest first.

    `lazaretto triage QUEUE` does the same. It looks for differences for a second at most; `triage show` takes
    the time that a cause needs. --chart looks for no differences.
    """
    if chart and (call.wants_objects or call.csv or call.columns):
        raise usage("--chart cannot be combined with --json, --jsonl, --csv or --columns")
    with call.broker() as broker:
        triage = broker.triage(queue, since=since, over=over, explain_for=0 if chart else _EXPLAINING)
    if chart:
        _print_chart(queue, triage)
        return

    columns: Columns = {
        "cause": "number",
        "letters": "letters",
        "share": lambda cause: f"{100 * cause.letters / triage.letters:.0f} %" if triage.letters else "",
        "last 24 h": lambda cause: sparkline(cause.hours),
        "state": lambda cause: _state(cause, triage.time),
        "reason": "reason",
        "error type": "error_type",
        "text": "template",
        "difference": _difference,
        "holds for": _holds_for,
    }
    call.print_all(triage.causes, columns, f"no dead letters in {queue}", spare=_SPARE, shortened="text")
    if triage.left:
        numbers = ", ".join(map(str, triage.left[:_SHOWN])) + (", …" if len(triage.left) > _SHOWN else "")
        output.notice(f"not explained yet: {numbers}; see lazaretto triage show {queue} CAUSE")


def _print_chart(queue: str, triage: Triage) -> None:
    came = sorted((c for c in triage.causes if any(c.hours)), key=lambda c: (-sum(c.hours), c.number))
    if not came:
        output.line(f"no dead letters came to {queue} in the last 24 hours")
        return
    for drawn in draw_hours([cause.hours for cause in came], triage.time):
        output.line(drawn)
    output.line()
    for mark, cause in zip(MARKS, came, strict=False):
        what = cause.error_type or cause.reason or ""
        text = f"{mark} {sum(cause.hours):>9,}  cause {cause.number}  {what}: {cause.template or ''}"
        output.line(shorten(output.safe(text), _WIDEST))
    rest = came[len(MARKS) :]
    if rest:
        letters = sum(sum(cause.hours) for cause in rest)
        output.line(f"{REST} {letters:>9,}  {output.plural(len(rest), 'more cause')}")


@causes.command("show")
def show(call: CallOptions, queue: QueueArgument, number: CauseArgument, since: SinceOption = None) -> None:
    """Show a cause with its site, texts, times and difference."""
    with call.broker() as broker:
        cause = broker.cause(queue, number, since=since)
        if cause.to_explain:
            broker.explain(queue, DeadLetterFilter(cause=number))
            cause = broker.cause(queue, number, since=since)
        marks = marks_of(broker.audit(action=MARK, limit=MOST_MARKS))
    call.print(cause, lambda: _print_cause(queue, cause, mark_before(marks, cause.first)))


def _print_cause(queue: str, cause: Cause, mark: TimeMark | None) -> None:
    output.line(f"cause {cause.number} of {queue}")
    sites = (cause.site or "").splitlines()
    difference = cause.difference
    example = None if cause.example is None else f"lazaretto dead-letter show {queue} {cause.example}"
    output.fields(
        [
            ("state", cause.state),
            ("letters", f"{cause.letters} of {cause.total}"),
            ("reason", cause.reason),
            ("error type", cause.error_type),
            ("text", cause.template),
            ("site", sites[0] if sites else None),
            ("below", sites[1] if len(sites) > 1 else None),
            ("first", cause.first),
            ("first seen after", mark and f"{mark.text}, marked {output.shown_time(mark.time)}"),
            ("last", cause.last),
            ("last 24 h", sparkline(cause.hours)),
            ("difference", _difference(cause)),
            ("holds for", _holds_for(cause)),
            ("also", "; ".join(difference.also) if difference else None),
            ("compared", f"with {difference.compared} {difference.compared_with}" if difference else None),
            ("note", cause.note),
            ("known until", cause.acknowledged_until),
            ("split from", cause.split_from),
            ("example", example),
        ],
        "  ",
    )
    output.line("fingerprints")
    for alike in cause.fingerprints[:_SHOWN]:
        output.line(f"  {alike.fingerprint}  {alike.letters}  {(alike.shape or '')[:80]}")
    if len(cause.fingerprints) > _SHOWN:
        output.line(f"  and {len(cause.fingerprints) - _SHOWN} more")


def _cause_of_answer(broker: Broker, fields: Fields, answer: int) -> Cause:
    return broker.cause(fields["path"], answer)


add_change(
    causes,
    "merge",
    MergeCauses,
    "merged into cause {answer} of {path}",
    parameters={
        "numbers": Annotated[
            list[int], typer.Argument(metavar="CAUSE CAUSE...", help="Causes to merge.", min=1)
        ]
    },
    result=_cause_of_answer,
)


@causes.command("unmerge")
def unmerge(
    call: ChangeOptions,
    queue: QueueArgument,
    number: CauseArgument,
    parts: Annotated[
        list[str],
        argument("What each cause had, as the audit log tells of the merge.", "CAUSE=FINGERPRINT,..."),
    ],
) -> None:
    """Part causes that were merged again."""
    with call.broker() as broker:
        apart = UnmergeCauses(path=queue, number=number, parts=dict(map(_part, parts)))
        call.run(broker, apart)
        cause = broker.cause(queue, number)
    numbers = ", ".join(map(str, sorted(apart.parts)))
    call.print(cause, f"parted {numbers} from cause {number} of {queue}")


def _part(text: str) -> tuple[int, tuple[str, ...]]:
    number, _, fingerprints = text.partition("=")
    if not number.isdecimal() or not fingerprints:
        raise usage(f"expected CAUSE=FINGERPRINT,FINGERPRINT, such as 3=0123456789abcdef, got {text!r}")
    return int(number), tuple(fingerprints.split(","))


add_change(
    causes,
    "split",
    SplitCause,
    "made cause {answer} of {path}",
    parameters={
        "number": CauseArgument,
        "fingerprints": Annotated[
            list[str], argument("Fingerprints, as `triage show` prints them.", "FINGERPRINT...")
        ],
    },
    result=_cause_of_answer,
)


@causes.command("note")
def note(
    call: ChangeOptions,
    queue: QueueArgument,
    number: CauseArgument,
    text: Annotated[str | None, argument("The note.")] = None,
    remove: Annotated[bool, option("Remove the note.")] = False,
) -> None:
    """Keep a note with a cause."""
    if (text is None) is not remove:
        raise usage("give a text, or --remove")
    with call.broker() as broker:
        call.run(broker, NoteCause(path=queue, number=number, note=text))
        cause = broker.cause(queue, number)
    did = "removed the note of" if text is None else "noted"
    call.print(cause, f"{did} cause {number} of {queue}")


@causes.command("acknowledge")
def acknowledge(
    call: ChangeOptions,
    queue: QueueArgument,
    number: CauseArgument,
    until: Annotated[
        datetime | None, option("Known until this time (ISO 8601, or 8h from now).", parser=future)
    ] = None,
    remove: Annotated[bool, option("Withdraw it.")] = False,
) -> None:
    """Say until when a cause is known."""
    if (until is None) is not remove:
        raise usage("give --until, or --remove")
    with call.broker() as broker:
        call.run(broker, AcknowledgeCause(path=queue, number=number, until=until))
        cause = broker.cause(queue, number)
    how = "no longer known" if until is None else f"known until {output.shown_time(until)}"
    call.print(cause, f"cause {number} of {queue} is {how}")


add_change(
    causes,
    "purge",
    PurgeCause,
    "set {answer[letters]} dead letters of cause {number} of {path} aside; {answer[remaining]} remain",
    text="Set the dead letters of a cause aside for 7 days.\n\n"
    "It takes up to 10,000; run it again while some remain. `lazaretto triage restore` takes it back.",
)
add_change(
    causes,
    "restore",
    RestorePurged,
    "restored {answer[letters]} dead letters of {path}; {answer[remaining]} remain set aside",
    text="Bring back dead letters that were set aside.\n\n"
    "It takes up to 10,000; run it again while some remain.",
)


def _recounted(broker: Broker, fields: Fields, answer: None) -> list[dict[str, int]]:
    causes_now = broker.triage(fields["path"]).causes
    return [{"number": cause.number, "letters": cause.letters} for cause in causes_now]


add_change(
    causes,
    "recount",
    RecountCauses,
    lambda fields, counts: (
        f"counted the letters of {output.plural(len(counts), 'cause')} of {fields['path']}"
    ),
    result=_recounted,
)
