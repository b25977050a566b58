"""The command line as a whole: its commands, its help, and how it ends."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from lazaretto.cli.call import JsonOption, StoreOption
from lazaretto.cli.commands import Commands
from lazaretto.cli.completion import VARIABLE, print_completions
from lazaretto.cli.exits import MEANINGS, CommandError, Exit, exit_code_of
from lazaretto.cli.output import discard_output, problem
from lazaretto.cli.wording import in_shell_words, on_one_line, option_of_others, words_beyond
from lazaretto.errors import LazarettoError
from lazaretto.tools.surroundings import take_child_signals

# Input is opened for writing and output for reading, so that their use fails as it does for a closed file:
# nothing is sent as an empty body, and what nobody was shown is not settled. Errors have nowhere else to go.
_STREAMS = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))
# The base of everything that is wrong with a command line; typer does not export it by name.
_UsageError: Any = typer.BadParameter.__mro__[1]
#: The widest that help is, in columns.
_WIDTH = 80
_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:<3d}  {meaning}" for code, meaning in MEANINGS.items())
app = typer.Typer(
    name="lazaretto",
    cls=Commands,
    help="A durable message queue that one bad message cannot stop.",
    epilog=_EPILOG,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDTH},
)


def open_missing() -> None:
    """Open those that are closed, so that no other file takes their number, here or in a child."""
    for number, (name, access, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, access)
            os.dup2(opened, number)
            if opened == number:
                os.set_inheritable(number, True)
            else:
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _version(wanted: bool) -> None:
    if wanted:
        from lazaretto import __version__

        print(f"lazaretto {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    store: StoreOption = None,
    json: JsonOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(Exit.USAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    # What the store logs while it recovers by itself is not for the person who typed a command.
    logging.getLogger("lazaretto").addHandler(logging.NullHandler())
    open_missing()
    take_child_signals()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    command = typer.main.get_command(app)
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["version"]:
        # As other programs have it.
        words[0] = "--version"
    shell = os.environ.get(VARIABLE)
    if shell:
        print_completions(command, shell, words)
        return Exit.OK
    # Where no person reads the help, it is the same whatever the terminal.
    width: dict[str, Any] = {} if sys.stdout.isatty() else {"terminal_width": _WIDTH - 2}
    try:
        code = _run(command, words, width)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return Exit.READER_GONE
    except CommandError as error:
        problem(error.code, str(error))
        return error.exit_code
    except LazarettoError as error:
        problem(error.code, in_shell_words(str(error), command, words))
        return exit_code_of(error)
    except _UsageError as error:
        here = option_of_others(error, command, words) or words_beyond(error)
        text = here or error.format_message().replace("Value error, ", "")
        problem("usage", on_one_line(text))
        return Exit.USAGE
    except OSError as error:
        problem("io_error", str(error))
        return Exit.FAILED
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            discard_output()
    return code


def _run(command: Any, given: list[str], width: dict[str, Any]) -> int:
    try:
        with command.make_context("lazaretto", given, **width) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    return Exit.OK
