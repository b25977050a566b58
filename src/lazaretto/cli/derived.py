"""Commands of the command line that follow from the fields of a change."""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lazaretto.cli import output
from lazaretto.cli.call import ChangeOptions, QueueArgument, YesOption, confirm
from lazaretto.cli.command import Group, Options
from lazaretto.cli.parse import past
from lazaretto.engine.command import Command, hints_of

if TYPE_CHECKING:
    from lazaretto.broker.broker import Broker

Fields = Mapping[str, Any]
#: How the command line takes a field: an annotation and a default.
Parameter = tuple[Any, Any]

#: How the command line reads what a field of a type is given, and what it calls that.
_TYPES: dict[type[Any], tuple[type[Any], str, dict[str, Any]]] = {
    str: (str, "TEXT", {}),
    int: (int, "N", {}),
    float: (float, "N", {}),
    bool: (bool, "", {}),
    datetime: (datetime, "TIME", {"parser": past}),
}


#: What a change says of fields, answers and errors, which a program shows otherwise.
_BESIDE_HELP = re.compile(r"\s*(`\w+`: |The answer is |Raises ).*?\.(?=\s|$)", re.DOTALL)


def add_change(
    group: Group,
    name: str,
    kind: type[Command],
    done: str | Callable[[Fields, Any], str | None],
    *,
    text: str = "",
    asks: str = "",
    parameters: Mapping[str, Parameter] | None = None,
    result: Callable[[Broker, Fields, Any], Any] | None = None,
) -> None:
    """Add a command that makes a change, with an argument or an option for each field.

    `done`: what was done; fields stand in it by name, and `answer`. Or it is a function of the fields and the
    result, which prints that itself if it returns None. `text`: its help, by default what the change says of
    itself. `asks`: the question before it, in which fields stand by name; what nothing takes back always has
    one. `parameters`: fields that people give otherwise. `result`: what stands for the answer.
    """
    help_ = text or _help_of(kind)
    asks = asks or (f"{help_.splitlines()[0][:-1]}?" if kind.final else "")
    taken = {**({"yes": (YesOption, False)} if asks else {}), **_parameters(kind, parameters or {})}

    @group.command(name, help_, fields=Options(taken, lambda context, fields: fields))
    def change(call: ChangeOptions, fields: dict[str, Any]) -> None:
        yes = fields.pop("yes", True)
        plain = {field: _plain(value) for field, value in fields.items() if value is not None}
        command = kind(**plain)
        shown = {field: getattr(command, field) for field in kind.__struct_fields__}
        if not yes:
            confirm(f"{group.program.info.name} {name}", "changed", asks.format(**shown), yes)
        with call.broker() as broker:
            answer = call.run(broker, command)
            outcome = answer
            if result is not None and (call.json or not isinstance(done, str)):
                outcome = result(broker, shown, answer)
        if isinstance(done, str):
            call.print(outcome, done.format(**shown, answer=answer))
        else:
            call.print(outcome, lambda: _say(done(shown, outcome)))


def _say(text: str | None) -> None:
    if text is not None:
        output.line(text)


def _plain(value: Any) -> Any:
    """Return a value as a field of a change has it."""
    if isinstance(value, enum.Enum):
        return value.value
    return tuple(value) if isinstance(value, list) else value


def _help_of(kind: type[Command]) -> str:
    """Return what a change says of itself, without its fields, which stand beside their options."""
    return _BESIDE_HELP.sub("", inspect.getdoc(kind) or "").strip()


def _parameters(kind: type[Command], others: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Return an argument for each field that a change needs, and an option for each other one."""
    types, texts = typing.get_type_hints(kind), hints_of(kind)
    parameters: dict[str, Parameter] = {}
    for field in msgspec.structs.fields(kind):
        if field.name in others:
            parameters[field.name] = others[field.name]
            continue
        if field.name == "path":
            parameters[field.name] = (QueueArgument, ...)
            continue
        text = texts.get(field.name) or f"The {field.name.replace('_', ' ')}"
        help_ = f"{text[:1].upper()}{text[1:]}."
        read, metavar, how = _read(types[field.name])
        if field.required:
            argument = typer.Argument(metavar=field.name.upper(), help=help_, show_default=False, **how)
            parameters[field.name] = (Annotated[read, argument], ...)
        else:
            flag = f"--{field.name.replace('_', '-')}"
            option = typer.Option(flag, metavar=metavar or None, help=help_, show_default=False, **how)
            parameters[field.name] = (Annotated[read | None, option], None)
    return parameters


def _read(kind: Any) -> tuple[Any, str, dict[str, Any]]:
    """Return how a field's type is read, what that is called, and what reads it."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        part, metavar, how = _read(parts[0])
        return list.__class_getitem__(part), metavar, how
    return _TYPES[next(part for part in parts or (kind,) if part in _TYPES)]
