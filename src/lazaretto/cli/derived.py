"""Commands of the command line that follow from the fields of a change."""

from __future__ import annotations

import typing
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from lazaretto.cli.call import ChangeOptions, QueueArgument, YesOption, confirm
from lazaretto.cli.command import Group, Options
from lazaretto.cli.parse import past
from lazaretto.engine.command import Command, hints_of

#: How the command line reads what a field of a type is given, and what it calls that.
_TYPES: dict[type[Any], tuple[type[Any], str, dict[str, Any]]] = {
    str: (str, "TEXT", {}),
    int: (int, "N", {}),
    float: (float, "N", {}),
    bool: (bool, "", {}),
    datetime: (datetime, "TIME", {"parser": past}),
}


def add_change(group: Group, name: str, kind: type[Command], text: str, done: str) -> None:
    """Add a command that makes a change of a queue, with an argument or an option for each field.

    `text`: its help. `done`: what was done; fields stand in it by name, and `answer`. It asks before what
    nothing takes back.
    """

    @group.command(name, text, fields=Options(_parameters(kind), lambda context, fields: fields))
    def change(call: ChangeOptions, fields: dict[str, Any]) -> None:
        yes = fields.pop("yes", True)
        command = kind(**{field: value for field, value in fields.items() if value is not None})
        if not yes:
            confirm(f"{group.program.info.name} {name}", "changed", f"{text.splitlines()[0][:-1]}?", yes)
        with call.broker() as broker:
            answer = call.run(broker, command)
        call.print(answer, done.format(**fields, answer=answer))


def _parameters(kind: type[Command]) -> dict[str, tuple[Any, Any]]:
    """Return an argument for each field that a change needs, and an option for each other one."""
    types, texts = typing.get_type_hints(kind), hints_of(kind)
    parameters: dict[str, tuple[Any, Any]] = {"yes": (YesOption, False)} if kind.final else {}
    for field in msgspec.structs.fields(kind):
        if field.name == "path":
            parameters[field.name] = (QueueArgument, ...)
            continue
        alternatives = typing.get_args(types[field.name]) or (types[field.name],)
        read, metavar, how = _TYPES[next(part for part in alternatives if part in _TYPES)]
        text = texts.get(field.name) or f"The {field.name.replace('_', ' ')}"
        help_ = f"{text[:1].upper()}{text[1:]}."
        if field.required:
            argument = typer.Argument(metavar=field.name.upper(), help=help_, show_default=False, **how)
            parameters[field.name] = (Annotated[read, argument], ...)
        else:
            flag = f"--{field.name.replace('_', '-')}"
            option = typer.Option(flag, metavar=metavar or None, help=help_, show_default=False, **how)
            parameters[field.name] = (Annotated[read | None, option], None)
    return parameters
