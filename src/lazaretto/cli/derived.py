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

from lazaretto.cli import output
from lazaretto.cli.call import ChangeOptions, QueueArgument, YesOption, confirm
from lazaretto.cli.command import Group, Options, argument, option
from lazaretto.engine.command import Command, hints_of

if TYPE_CHECKING:
    from lazaretto.broker.broker import Broker

Fields = Mapping[str, Any]

#: What the command line calls the value of a field, by its type.
_CALLED: dict[type[Any], str] = {str: "TEXT", int: "N", float: "N", bool: "", datetime: "TIME"}

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
    parameters: Mapping[str, Any] | None = None,
    result: Callable[[Broker, Fields, Any], Any] | None = None,
) -> None:
    """Add a command that makes a change, with an argument or an option for each field.

    `done`: what was done; fields stand in it by name, and `answer`. Or it is a function of the fields and the
    result, which prints that itself if it returns None. `text`: its help, by default what the change says of
    itself. `asks`: the question before it, in which fields stand by name; what nothing takes back always has
    one. `parameters`: annotations of fields that people give otherwise. `result`: what stands for the answer.
    """
    help_ = text or _help_of(kind)
    asks = asks or (f"{help_.splitlines()[0][:-1]}?" if kind.final else "")
    taken = {**({"yes": (YesOption, False)} if asks else {}), **parameters_of(kind, parameters or {})}

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


def parameters_of(kind: type[msgspec.Struct], others: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return an argument for each field that is needed, and an option for each other one."""
    types, texts = typing.get_type_hints(kind), hints_of(kind)
    others = {"path": QueueArgument, **others}
    parameters: dict[str, tuple[Any, Any]] = {}
    for field in msgspec.structs.fields(kind):
        text = texts.get(field.name) or f"The {field.name.replace('_', ' ')}"
        help_ = f"{text[:1].upper()}{text[1:]}."
        read, metavar = _read(types[field.name])
        if field.name in others:
            parameters[field.name] = (others[field.name], ... if field.required else field.default)
        elif field.required:
            parameters[field.name] = (Annotated[read, argument(help_, field.name.upper())], ...)
        else:
            parameters[field.name] = (Annotated[read | None, option(help_, metavar)], None)
    return parameters


def _read(kind: Any) -> tuple[Any, str]:
    """Return how a field's type is read, and what that is called."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        part, metavar = _read(parts[0])
        return list.__class_getitem__(part), metavar
    read = next(part for part in parts or (kind,) if part in _CALLED)
    return read, _CALLED[read]
