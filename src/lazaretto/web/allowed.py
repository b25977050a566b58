"""Limits of requests for commands: what is granted, and nothing that makes the server import a module."""

from __future__ import annotations

from collections.abc import Callable

from lazaretto.commands import Command, PlanRepair
from lazaretto.errors import InvalidOption
from lazaretto.model.edits.edit import Edit, EditKind
from lazaretto.model.grants import Permission


def key_of(name: str, key: str) -> str:
    """Return the idempotency key of somebody, which is nobody else's, whatever they are called."""
    return f"{len(name)}:{name}:{key}"


def require_for(command: Command, require: Callable[[Permission, str | None], None]) -> None:
    """Call `require` with all that a command needs. Raises what it raises, and InvalidOption."""
    for permission, path in command.needs():
        require(permission, path)
    if isinstance(command, PlanRepair) and command.edit is not None:
        refuse_functions(command.edit)


def refuse_functions(edit: str) -> Edit:
    """Return the edit that a text describes. Raises InvalidOption, also for the name of a function."""
    parsed = Edit.parse(edit)
    if parsed.kind is EditKind.FUNCTION:
        raise InvalidOption("expected an edit as SET … or a JSON patch; functions are for the command line")
    return parsed
