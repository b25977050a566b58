"""Which dead letters a command is about: sequence numbers, a filter, or all."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import typer

from lazaretto.broker.broker import Broker
from lazaretto.broker.dead_letters import Which
from lazaretto.cli import output
from lazaretto.cli.call import Call, Change, Listing, limit_option
from lazaretto.cli.command import Options, argument, option
from lazaretto.cli.completion import names_of_destinations
from lazaretto.cli.exits import CommandError, Exit, usage
from lazaretto.cli.output import Columns
from lazaretto.cli.parse import number
from lazaretto.commands import Command
from lazaretto.engine.command import OfLetters, check_numbers
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter, Skipped
from lazaretto.model.records.plain import plain

T = TypeVar("T")

_COLUMNS: Columns = {
    "sequence": "sequence_number",
    "dead-lettered": "dead_lettered",
    "reason": "reason",
    "error type": "error_type",
    "deliveries": "counters.deliveries",
    "message id": "message_id",
    "error": lambda letter: letter.error_message or letter.description,
}
#: What makes room for the error, in this order.
_SPARE = ("message id", "deliveries", "dead-lettered", "error type")


MostOption = Annotated[int | None, limit_option("Maximum number of letters to send.")]
DestinationOption = Annotated[
    str | None, option("Send them to this queue instead.", "QUEUE", complete=names_of_destinations)
]
NumbersOption = Annotated[list[int] | None, argument("Sequence numbers.", "[NUMBER]...", parser=number(1))]
_SINCE = "Only dead-lettered at this time (ISO 8601, or 2h ago) or later."
_FILTERS: dict[str, Any] = {
    "numbers": NumbersOption,
    "reason": Annotated[str | None, option("Only with this reason.")],
    "error_type": Annotated[str | None, option("Only with this type of error.", "TYPE")],
    "since": Annotated[datetime | None, option(_SINCE)],
    "until": Annotated[datetime | None, option("Only dead-lettered before this time.")],
    "cause": Annotated[int | None, option("Only of this cause.", "N", parser=number(1))],
    "text": Annotated[str | None, option("Only with this text in body, description or error.")],
    "message_id": Annotated[str | None, option("Only with this message id.", "ID")],
    "where": Annotated[
        str | None, option("Only messages that match this condition: body.dest = 'BQN'.", "SQL")
    ],
}
_OPTIONS = {name: (annotation, None) for name, annotation in _FILTERS.items()}
AllOption = Annotated[bool, option("All dead letters of the queue.", "", "--all")]


def _filter(context: typer.Context, options: dict[str, Any]) -> DeadLetterFilter:
    numbers = options.pop("numbers")
    return DeadLetterFilter(**options, sequence_numbers=tuple(numbers) if numbers else None)


class Selection(NamedTuple):
    """What a changing command is about, as it was given."""

    numbers: list[int]
    filter: DeadLetterFilter
    everything: bool

    def chosen(self) -> Which:
        """Return numbers, or a filter; never all by accident. Raises CommandError."""
        ways = bool(self.numbers) + (not self.filter.is_empty) + self.everything
        if ways > 1:
            raise usage("give only one of sequence numbers, a filter and --all")
        if not ways:
            raise usage("an empty filter matches every dead letter; give numbers, a filter, or --all")
        return list(dict.fromkeys(check_numbers(self.numbers))) if self.numbers else self.filter


def _selection(context: typer.Context, options: dict[str, Any]) -> Selection:
    everything, numbers = options.pop("everything"), options.pop("numbers")
    return Selection(numbers or [], DeadLetterFilter(**options), everything)


FilterOptions = Annotated[DeadLetterFilter, Options(_OPTIONS, _filter)]
SelectionOptions = Annotated[Selection, Options({**_OPTIONS, "everything": (AllOption, False)}, _selection)]
DryRunOption = Annotated[bool, option("Only show the selected dead letters.")]


def print_selection(call: Call, broker: Broker, queue: str, which: Which) -> None:
    """Print the dead letters that a changing command would be about."""
    if isinstance(which, list):
        which = DeadLetterFilter(sequence_numbers=tuple(which))
    assert isinstance(which, DeadLetterFilter)
    print_letters(Listing(call.store, call.json), broker, queue, which)


def print_letters(
    listing: Listing,
    broker: Broker,
    queue: str,
    which: DeadLetterFilter,
    limit: int | None = None,
    order: str = "number",
) -> None:
    """Print the dead letters of a queue that a filter lets through."""
    empty = f"no dead letters in {queue}" if which.is_empty else f"no matching dead letters in {queue}"
    with output.progress(f"searching {queue}", "%") if which.scans else nullcontext() as advance:
        # A table shows nothing of the message itself.
        letters = broker.dead_letters(
            queue,
            which,
            limit=limit,
            messages=listing.wants_objects,
            order=order,
            on_progress=advance and (lambda part: advance(round(part * 100), 100)),
        )
        listing.print_all(letters, _COLUMNS, empty, spare=_SPARE)


def refuse_skipped(done: str, skipped: Sequence[Skipped], any_done: bool) -> None:
    """Raise CommandError that names the dead letters which were left where they are."""
    if skipped:
        named = ", ".join(f"{s.sequence_number} ({s.why})" for s in itertools.islice(skipped, 10))
        more = f" and {len(skipped) - 10} more" if len(skipped) > 10 else ""
        missing = not any_done and all(s.why == "not found" for s in skipped)
        raise left_error(done, f"{named}{more}", missing)


def left_error(done: str, named: str, missing: bool) -> CommandError:
    """Return the error that names what was left where it is."""
    return CommandError(f"not_{done}", f"not {done}: {named}", Exit.NOT_FOUND if missing else Exit.FAILED)


def filter_record(which: Which) -> dict[str, Any]:
    """Return the filter of a selection as a command has it."""
    if isinstance(which, DeadLetterFilter):
        record: dict[str, Any] = plain(which.as_detail())
        return record
    return {"sequence_numbers": check_numbers(which)}


def run_letters(
    call: Change,
    broker: Broker,
    which: Which | None,
    verb: Callable[[], T],
    command: Callable[[tuple[int, ...]], Command],
    kind: type[T],
) -> T:
    """Change dead letters by a verb of the broker; under an idempotency key, by commands in parts."""
    return verb() if call.idempotency_key is None else run_in_parts(call, broker, which, command, kind)


def run_in_parts(
    call: Change,
    broker: Broker,
    which: Which | None,
    command: Callable[[tuple[int, ...]], Command],
    kind: type[T],
) -> T:
    """Run a command on dead letters by their numbers, each part under a key of its own; return all answers.

    Raises CommandError for a filter: what it selects would not be the same when it is asked again.
    """
    if not isinstance(which, list) or not which:
        raise usage("--idempotency-key needs sequence numbers; for a filter, use `lazaretto repair plan`")
    parts = [tuple(which[start : start + OfLetters.most]) for start in range(0, len(which), OfLetters.most)]
    answers = [call.run(broker, command(part), number) for number, part in enumerate(parts)]
    return msgspec.convert(functools.reduce(_joined, answers), kind, strict=False)


def _joined(one: Any, other: Any) -> Any:
    """Return two answers as one: numbers added, lists behind each other, objects by their fields."""
    if isinstance(one, dict):
        return one | {name: _joined(one[name], part) if name in one else part for name, part in other.items()}
    return one if isinstance(one, str) else one + other
