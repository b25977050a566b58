"""`--edit` and `--handler` of commands: an edit as text, a file or an editor; handlers tried on letters."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lazaretto.broker.editing import Editor
from lazaretto.cli import output
from lazaretto.cli.call import Call, confirm
from lazaretto.cli.command import BARE, option
from lazaretto.cli.exits import CommandError, Exit, usage
from lazaretto.cli.parse import optional_count
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.errors import LazarettoError
from lazaretto.model.edits.difference import differences
from lazaretto.model.edits.edit import Edit
from lazaretto.model.messages import DeadLetter, Message, as_message

if TYPE_CHECKING:
    from lazaretto.broker.broker import Broker
    from lazaretto.broker.dead_letters import Which
    from lazaretto.host import Handler
    from lazaretto.host.dry_run import DryRun


#: What `--edit` without a value means: the user's editor.
EDITOR = BARE["--edit"]
#: Returns what an edit makes of a letter: a message, None if it is left as it is, or why it is refused.
Show = Callable[[DeadLetter], Message | str | None]
#: Letters whose differences are shown.
_SHOWN = 5
#: What --yes is for.
_SENDING = "sending an edited dead letter"

EditOption = Annotated[
    str | None,
    option(
        "Change them: an action (SET body.x = 1; REMOVE y), a JSON merge patch, a JSON Patch, "
        "module:function, or @FILE with one of these. Without EDIT: one letter's body in $EDITOR."
    ),
]

#: Numbers of letters that are named.
_NAMED = 5

HandlerOption = Annotated[str, option("Handler to try.", "MODULE:FUNCTION")]
SampleOption = Annotated[
    Any, option("Maximum number to try, spread over all causes; none: all.", "N", parser=optional_count)
]


def read_edit(text: str) -> Edit:
    """Return the edit that was given, as text or as @FILE. Raises CommandError."""
    if not text.startswith("@"):
        return Edit.parse(text)
    try:
        return Edit.parse(Path(text[1:]).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"--edit {text} cannot be read: {error}") from None


def edit_in_editor(letter: DeadLetter) -> bytes:
    """Open the body of a letter in the user's editor; return the new one. Raises CommandError."""
    if letter.message is None:
        raise CommandError("not_found", f"dead letter {letter.sequence_number} is gone", Exit.NOT_FOUND)
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ("vi" if sys.stdin.isatty() else "")
    command = shlex.split(named)
    if not command:
        raise usage("--edit without a value opens an editor: set EDITOR, or give the edit")
    body = letter.message.body
    with tempfile.TemporaryDirectory(prefix="lazaretto-") as folder:
        file = Path(folder) / f"{letter.sequence_number}.json"
        file.touch(mode=0o600)
        file.write_bytes(body)
        try:
            ended = subprocess.run([*command, str(file)], check=False)  # noqa: S603 - the user's own
        except OSError as error:
            raise usage(f"the editor {command[0]} cannot be started: {error.strerror}") from None
        if ended.returncode != 0:
            raise CommandError("cancelled", "nothing was resubmitted: the editor ended with an error")
        edited = file.read_bytes()
    # Most editors end the last line: that is no change of the body.
    if edited.endswith(b"\n") and not body.endswith(b"\n"):
        edited = edited.removesuffix(b"\n")
    if edited == body:
        raise CommandError("cancelled", "nothing was resubmitted: the body is unchanged")
    return edited


def preview(
    call: Call,
    broker: Broker,
    queue: str,
    which: Which,
    edit: Edit | Show,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Show what an edit makes of the first letters, and ask whether to send them unless `yes`."""
    if not dry_run and (yes or call.json):
        confirm(_SENDING, "resubmitted", "Send it?", yes)
        return
    chosen = (
        which if isinstance(which, DeadLetterFilter) else DeadLetterFilter(sequence_numbers=_numbers(which))
    )
    letters = list(itertools.islice(broker.dead_letters(queue, chosen), _SHOWN))
    with contextlib.ExitStack() as opened:
        show = opened.enter_context(Editor(edit)).show if isinstance(edit, Edit) else edit
        shown = [(letter, *_told(letter, show)) for letter in letters]
    if call.json:
        output.json_array(
            [
                {"sequence_number": letter.sequence_number, "refused": why, "differences": lines}
                for letter, lines, why in shown
            ]
        )
        return
    for letter, lines, why in shown:
        output.line(f"dead letter {letter.sequence_number} of {letter.queue}")
        for line in lines or [why or "unchanged"]:
            output.line(f"  {line}")
    if not dry_run:
        confirm(_SENDING, "resubmitted", "Send it?", yes)


def _numbers(which: Which) -> tuple[int, ...]:
    assert isinstance(which, list)
    return tuple(which)


def _told(letter: DeadLetter, edit: Show) -> tuple[list[str], str | None]:
    """Return the differences that an edit makes, and why it refuses a letter."""
    assert letter.message is not None
    try:
        edited = edit(letter)
    except LazarettoError as error:
        return [], str(error)
    if isinstance(edited, str):
        return [], edited
    return ([] if edited is None else differences(as_message(letter.message), edited)), None


def read_body(file: Path) -> bytes:
    """Return the body that --edit-body names. Raises CommandError."""
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise usage(f"--edit-body {file} cannot be read: {error.strerror}") from None


def with_body(letter: DeadLetter, body: bytes) -> Message:
    """Return a dead letter as a message with another body; the broker gives it a new id."""
    old = letter.message
    assert old is not None
    return msgspec.structs.replace(as_message(old), body=body, message_id=None, scheduled_enqueue_time=None)


def read_handler(text: str, queue: str) -> Handler:
    """Return the handler that was named. Raises CommandError, HandlerError."""
    from lazaretto.host import Handler, load_function

    if not text:
        raise usage("give --handler MODULE:FUNCTION: the handler to try")
    function = load_function(text)
    return function if isinstance(function, Handler) else Handler(queue, function)


def read_sample(value: object) -> int | None:
    """Return how many letters to try; None: all."""
    return value if isinstance(value, int) else None


def say_tried(call: Call, run: DryRun) -> None:
    """Print what would happen. Raises Exit if a letter would fail, or would not be sent."""
    call.print(run, lambda: _print(run))
    if run.failed or run.refused:
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
