"""The command line as a whole: its commands, its help, how it ends, and errors in the words of the shell."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from lazaretto.cli.call import JsonOption, StoreOption
from lazaretto.cli.commands import ALIASES, Commands
from lazaretto.cli.completion import VARIABLE, print_completions
from lazaretto.cli.exits import MEANINGS, CommandError, Exit, exit_code_of
from lazaretto.cli.output import discard_output, problem
from lazaretto.errors import LazarettoError
from lazaretto.model.other_names import written_here
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

#: What errors advise in Python, and what a shell has for it.
_ADVICE = {
    "with exist_ok=True it is": "with --exist-ok it is",
    "broker.topic(…) describes it": "`lazaretto topic show` describes it",
    "with session=… (a session's id, or NEXT_SESSION)": "with --session ID or --next-session",
    "without session=…": "without --session and --next-session",
    "broker.set_status(path, …) switches a queue": "`lazaretto queue status` switches a queue",
    "see broker.run(commands.GrantRole(…))": "see `lazaretto access grant`",
    "broker.events()": "`lazaretto events`",
    "annotations={'metadata': …}": "annotations of QueueOptions, in Python",
    "Message(scheduled_enqueue_time=…) for each message": "`lazaretto send --at` for each message",
    "scheduled_enqueue_time=…": "--at",
    "retry_cycle_delay=Backoff(…)": "retry_cycle_growth=…",
}

#: The classes of options that commands take, but those of queues.
_OWNERS = {"topic": "TopicOptions", "send": "Message"}


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


def _version(asks: bool) -> None:
    if asks:
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


def _run(command: Any, words: list[str], width: dict[str, Any]) -> int:
    try:
        with command.make_context("lazaretto", words, **width) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    return Exit.OK


def in_shell_words(text: str, command: Any, words: Sequence[str]) -> str:
    """Return an error's text with the options of the command that was given, where Python's names stand.

    `queue create --lock-duration 0s` is told of `--lock-duration`, not of `lock_duration`.
    """
    for python, shell in _ADVICE.items():
        text = text.replace(python, shell)
    for name, option in sorted(_options(command, words).items(), key=lambda pair: -len(pair[0])):
        text = re.sub(rf"\b{name}='?([\w.-]+)'?", rf"{option} \1", text)
        text = re.sub(rf"(?<![\w'\"/.-]){name}(?![\w'\"/])", option, text)
    return text


def option_of_others(error: Any, command: Any, words: Sequence[str]) -> str | None:
    """Return what to type instead of an option that other systems have, None if the error is another."""
    name = str(getattr(error, "option_name", "")).lstrip("-")
    first = words[0] if words else ""
    owner = _OWNERS.get(ALIASES.get(first, first), "QueueOptions")
    here = written_here(owner, name, {name: _value_of(name, words)}) if name else None
    if here is None:
        return None
    text = in_shell_words(re.sub(r"policy=PoisonPolicy\((.*)\)", r"\1", here), command, words)
    text = re.sub(r"(--[a-z-]+)=…", r"\1", text)
    return f"no such option: --{name}: here that is {text}"


def words_beyond(error: Any) -> str | None:
    """Return what a command takes if it was given more words than that, None if the error is another."""
    text = error.format_message()
    if "unexpected extra argument" not in text or error.ctx is None:
        return None
    takes = " ".join(error.ctx.command.collect_usage_pieces(error.ctx)[1:])
    return f"{text}; `{error.ctx.command_path}` takes {takes}: what has blanks stands in quotes"


def _value_of(name: str, arguments: Sequence[str]) -> object:
    """Return the value that an option was given, None if there is none."""
    words = iter(arguments)
    for word in words:
        if word.partition("=")[0].lstrip("-") != name:
            continue
        value = word.partition("=")[2] if "=" in word else next(words, "")
        # What begins so is the next option.
        return None if not value or value.startswith("-") else int(value) if value.isdecimal() else value
    return None


def on_one_line(text: str) -> str:
    """Return a text whose lines, and what indents them, are joined by spaces."""
    return re.sub(r"\s*\n\s*", " ", text)


def _options(command: Any, words: Sequence[str]) -> dict[str, str]:
    """Return the options of the command that arguments name, by Python's names that are no plain words."""
    options: dict[str, str] = {}
    for word in ("", *words):
        if word:
            inner = getattr(command, "commands", {}).get(ALIASES.get(word, word))
            if inner is None:
                continue
            command = inner
        for parameter in command.params:
            long = [option for option in parameter.opts if option.startswith("--")]
            if "_" in (parameter.name or "") and long:
                options[parameter.name] = long[0]
    return options
