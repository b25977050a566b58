"""Every change that people can ask for is a command: each program of it takes an actor and a key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lazaretto.cli
from lazaretto.cli import commands as cli
from lazaretto.commands import COMMANDS
from lazaretto.web.openapi import document

#: What only looks, or is a program's work on messages and processes, which is no operator's change.
_OTHERS = """
send peek show receive run serve try events audit status metrics doctor completion
queue list, queue show, queue rates, topic list, topic show, subscription list, subscription show,
rule list, rule test, triage list, triage show, breaker show, session list, session show, worker list,
dead-letter list, dead-letter show, dead-letter groups, dead-letter export, dead-letter try,
repair list, repair show, repair letters, repair try, repair run,
dialog list, dialog show, dialog timeline, dialog definitions, dialog run, claim list, emulator export-config,
spark pack, spark prepare, spark run, command list, redaction list,
access person list, access session list, access token list,
store check, store copy, store migrate
"""
#: Routes of a program's work on messages.
_MESSAGES = "/messages"
_READ_BY_POST = {"/rules/test"}


def _programs(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, set[str]]]:
    """Yield each program of a command with its options."""
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(path), {option for parameter in command.params for option in parameter.opts}
    else:
        for name, one in below.items():
            yield from _programs(one, (*path, name))


def test_each_program_that_changes_something_takes_an_actor_and_a_key() -> None:
    first, *lines = _OTHERS.strip().partition("\n")[::2]
    others = {
        *first.split(),
        *(name.strip() for line in lines for name in line.replace("\n", " ").split(",")),
    }
    programs = dict(program for name in cli.COMMANDS for program in _programs(cli.load(name), (name,)))
    keyed = {name for name, options in programs.items() if {"--actor", "--idempotency-key"} <= options}
    assert others - set(programs) == set()
    assert set(programs) - others == keyed


def test_each_command_has_a_program() -> None:
    sources = [file.read_text() for file in Path(lazaretto.cli.__file__).parent.glob("*.py")]
    # Imported, and used. One call of `queue create` creates one queue; `send` sends as a program does.
    used = {
        kind.__name__
        for kind in COMMANDS.values()
        if any(len(re.findall(rf"\b{kind.__name__}\b", source)) > 1 for source in sources)
    }
    assert {kind.__name__ for kind in COMMANDS.values()} - used == {"CreateQueues", "SendMessage"}


def test_each_route_that_changes_something_takes_a_key() -> None:
    """PUT, PATCH and DELETE mean the same when they are asked again; POST needs a key for it."""
    without = {
        path
        for path, methods in document("")["paths"].items()
        for method, route in methods.items()
        if method == "post"
        and "Idempotency-Key" not in {parameter["name"] for parameter in route.get("parameters", ())}
    }
    assert {path for path in without if not path.startswith(_MESSAGES)} == _READ_BY_POST
