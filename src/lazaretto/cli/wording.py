"""Errors in the words of the shell: options instead of Python's parameters, on one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lazaretto.cli.commands import ALIASES

#: What errors advise in Python, and what a shell has for it.
_ADVICE = {
    "with exist_ok=True it is": "with --exist-ok it is",
    "broker.topic(…) describes it": "`lazaretto topic show` describes it",
    "with session=… (a session's id, or NEXT_SESSION)": "with --session ID or --next-session",
    "without session=…": "without --session and --next-session",
}


def in_shell_words(text: str, command: Any, given: Sequence[str]) -> str:
    """Return an error's text with the options of the command that was given, where Python's names stand.

    `queue create --lock-duration 0s` is told of `--lock-duration`, not of `lock_duration`.
    """
    for python, shell in _ADVICE.items():
        text = text.replace(python, shell)
    for name, option in sorted(_options(command, given).items(), key=lambda pair: -len(pair[0])):
        text = re.sub(rf"\b{name}='?([\w.-]+)'?", rf"{option} \1", text)
        text = re.sub(rf"(?<![\w'\"/.-]){name}(?![\w'\"/])", option, text)
    return text


def on_one_line(text: str) -> str:
    """Return a text whose lines, and what indents them, are joined by spaces."""
    return re.sub(r"\s*\n\s*", " ", text)


def _options(command: Any, given: Sequence[str]) -> dict[str, str]:
    """Return the options of the command that arguments name, by Python's names that are no plain words."""
    found: dict[str, str] = {}
    for word in ("", *given):
        if word:
            inner = getattr(command, "commands", {}).get(ALIASES.get(word, word))
            if inner is None:
                continue
            command = inner
        for parameter in command.params:
            long = [option for option in parameter.opts if option.startswith("--")]
            if "_" in (parameter.name or "") and long:
                found[parameter.name] = long[0]
    return found
