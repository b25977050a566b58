"""Errors in the words of the shell: options instead of Python's parameters, on one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lazaretto.cli.commands import ALIASES
from lazaretto.model.other_names import written_here

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


def option_of_others(error: Any, command: Any, given: Sequence[str]) -> str | None:
    """Return what to type instead of an option that other systems have, None if the error is another."""
    name = str(getattr(error, "option_name", "")).lstrip("-")
    first = given[0] if given else ""
    owner = _OWNERS.get(ALIASES.get(first, first), "QueueOptions")
    here = written_here(owner, name, {name: _value_of(name, given)}) if name else None
    if here is None:
        return None
    text = in_shell_words(re.sub(r"policy=PoisonPolicy\((.*)\)", r"\1", here), command, given)
    text = re.sub(r"(--[a-z-]+)=…", r"\1", text)
    return f"no such option: --{name}: here that is {text}"


def words_beyond(error: Any) -> str | None:
    """Return what a command takes if it was given more words than that, None if the error is another."""
    text = error.format_message()
    if "unexpected extra argument" not in text or error.ctx is None:
        return None
    takes = " ".join(error.ctx.command.collect_usage_pieces(error.ctx)[1:])
    return f"{text}; `{error.ctx.command_path}` takes {takes}: what has blanks stands in quotes"


def _value_of(name: str, given: Sequence[str]) -> object:
    """Return the value that an option was given, None if there is none."""
    words = iter(given)
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
