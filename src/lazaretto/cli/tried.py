"""Trying a handler on many dead letters: the options of such commands, and what they print."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lazaretto.cli import output
from lazaretto.cli.call import Call
from lazaretto.cli.exits import Exit, usage
from lazaretto.cli.parse import optional_count

if TYPE_CHECKING:
    from lazaretto.host import Handler
    from lazaretto.host.dry_run import DryRun

#: Numbers of letters that are named.
_NAMED = 5

HandlerOption = Annotated[
    str,
    typer.Option("--handler", metavar="MODULE:FUNCTION", help="Handler to try.", show_default=False),
]
SampleOption = Annotated[
    Any,
    typer.Option(
        "--sample", metavar="N", parser=optional_count,
        help="Maximum number to try, spread over all causes; none: all.",
    ),
]  # fmt: skip


def read_handler(given: str, queue: str) -> Handler:
    """Return the handler that was named. Raises CommandError, HandlerError."""
    from lazaretto.host import Handler, load_function

    if not given:
        raise usage("give --handler MODULE:FUNCTION: the handler to try")
    function = load_function(given)
    return function if isinstance(function, Handler) else Handler(queue, function)


def read_sample(given: object) -> int | None:
    """Return how many letters to try; None: all."""
    return given if isinstance(given, int) else None


def say_tried(call: Call, found: DryRun) -> None:
    """Print what would happen. Raises Exit if a letter would fail, or would not be sent."""
    call.print(found, lambda: _print(found))
    if found.failed or found.refused:
        raise typer.Exit(Exit.FAILED)


def _print(run: DryRun) -> None:
    edited = f", {run.edited} edited" if run.edited else ""
    output.line(
        f"tried {run.tried} of {output.plural(run.letters, 'dead letter')} of {run.queue}{edited}: "
        f"{run.succeeded} would succeed, {run.failed} would fail, {len(run.refused)} would not be sent"
    )
    for cause in run.causes:
        gone = "gone" if cause.is_gone else f"{cause.again} again, {cause.other} in another way"
        output.line(f"  {cause.error_type or 'no error'} ({cause.letters}): {gone}")
    for failure in run.failures:
        first = (failure.error_message or "").strip().partition("\n")[0]
        output.line(f"  would fail: {failure.count} {failure.error_type}: {first}")
    for number, why in itertools.islice(run.refused.items(), _NAMED):
        output.line(f"  would not be sent: {number} ({why})")
    for target, count in sorted(run.sends.items()):
        output.line(f"  would send {output.plural(count, 'message')} to {target}")
