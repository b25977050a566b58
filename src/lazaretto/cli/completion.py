"""Completion in a shell: what its script asks the command for, and the names that a store has."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from importlib import resources
from typing import Annotated, Any, Literal

from lazaretto.cli.command import Group, argument

#: A shell's script sets it to the shell's name, and gives as arguments what was typed.
VARIABLE = "_LAZARETTO_COMPLETE"

commands = Group()


def print_completions(command: Any, shell: str, arguments: Sequence[str]) -> None:
    """Print what the last word that was typed could become, one a line.

    For bash they are quoted, and begin where the word begins that it replaces. For other shells a line
    has a kind, the value, and its help; the kind is "plain", else the shell knows better: "file", "dir".
    """
    from typer import completion

    from lazaretto.cli.output import safe

    words = _words(arguments[0])[1:] if shell == "bash" else list(arguments)
    *before, incomplete = words or [""]
    # A shell may leave the quotes on the word that is not finished.
    incomplete = incomplete.lstrip("'\"")
    parts: Any = completion
    parts.completion_init()
    completer = parts.shell_completion.get_completion_class("bash")(command, {}, "lazaretto", VARIABLE)
    for item in completer.get_completions(before, incomplete):
        if shell != "bash":
            print(item.type, safe(item.value), safe(item.help or ""), sep="\t")
        elif item.type == "plain":
            print(_for_bash(item.value, incomplete, arguments[0], arguments[1]))


def _words(line: str) -> list[str]:
    """Return the words of a line that may end within quotes; behind a space the last one is empty."""
    words: list[str] = []
    typed = shlex.shlex(line, posix=True, punctuation_chars=False)
    typed.whitespace_split, typed.commenters = True, ""
    try:
        words.extend(typed)
    except ValueError:
        words.append(typed.token)
    return [*words, ""] if line[-1:].isspace() else words


def _for_bash(value: str, incomplete: str, line: str, replaced: str) -> str:
    """Return what bash puts in place of `replaced`, the part of the word behind the last : or =."""
    if incomplete.startswith("-") and not value.startswith("-"):
        incomplete = incomplete.partition("=")[2]
    begin = len(incomplete) - len(replaced) if incomplete.endswith(replaced) else 0
    within_quotes = line[: len(line) - len(replaced)].endswith(("'", '"'))
    return value[begin:] if within_quotes else shlex.quote(value[begin:])


def names_of_queues(ctx: Any, incomplete: str) -> list[str]:
    """Return the paths of queues and subscriptions."""
    return _paths(ctx, "queue", "subscription")


def names_of_topics(ctx: Any, incomplete: str) -> list[str]:
    """Return the paths of topics."""
    return _paths(ctx, "topic")


def names_of_destinations(ctx: Any, incomplete: str) -> list[str]:
    """Return the paths of queues and topics."""
    return _paths(ctx, "queue", "topic")


def names_of_subscriptions(ctx: Any, incomplete: str) -> list[str]:
    """Return the names of the subscriptions of the topic that was given."""
    begin = f"{ctx.params.get('topic')}/subscriptions/".lower()
    paths = _paths(ctx, "subscription")
    return [path[len(begin) :] for path in paths if path.lower().startswith(begin)]


def _paths(ctx: Any, *kinds: str) -> list[str]:
    """Return the paths at which entities of some kinds stand; none if they cannot be read at once."""
    address = ctx.params.get("store") or ctx.find_root().params.get("store")
    url = address or os.environ.get("LAZARETTO_STORE")
    if not url:
        return []
    try:
        from lazaretto.store.names import read_names

        return [path for kind, path in read_names(url) if kind in kinds]
    except Exception:
        # Whoever is typing a command wants to go on typing.
        return []


@commands.command("completion")
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], argument("Your shell.")],
) -> None:
    """Print a script that completes commands in a shell.

    \b
    bash: add eval "$(lazaretto completion bash)" to ~/.bashrc.
    zsh: add eval "$(lazaretto completion zsh)" to ~/.zshrc, below compinit.
    fish: add lazaretto completion fish | source to ~/.config/fish/config.fish.
    """
    print(resources.files("lazaretto.cli").joinpath(f"completion.{shell}").read_text("utf-8"), end="")
