"""What takes an operator's action back, from its entry in the audit log. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from lazaretto.commands.access_commands import GrantRole, SetFourEyes, WithdrawRole
from lazaretto.commands.command import Command
from lazaretto.commands.entity_commands import SetStatus, UpdateQueue, UpdateSubscription, UpdateTopic
from lazaretto.commands.letter_commands import (
    AcknowledgeCause,
    CancelRepair,
    NoteCause,
    PauseRepair,
    Purge,
    Restore,
    ResumeRepair,
    UndoRepair,
)
from lazaretto.engine.log import AuditEntry
from lazaretto.model.entities import STATUSES
from lazaretto.records.plain import plain

Detail = Mapping[str, Any]


def opposite_of(entry: AuditEntry) -> Command | None:
    """Return the command that takes an action back; None if there is none, or the entry tells too little.

    Whether it still can is found out when it is run.
    """
    make = _OPPOSITES.get(entry.action)
    return None if make is None else make(entry.queue, entry.detail)


def entry_record(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry of the audit log as JSON has it, with the command that takes the action back."""
    opposite = opposite_of(entry)
    told = None if opposite is None else {"command": opposite.command_name, **msgspec.to_builtins(opposite)}
    found: dict[str, Any] = plain(entry)
    return found | {"opposite": told}


def _update(path: str, detail: Detail) -> Command | None:
    before = detail.get("before")
    if before is None:
        return None
    if detail.get("kind") == "topic":
        return UpdateTopic(path=path, changes=before)
    if detail.get("kind") == "subscription":
        topic, _, name = path.rsplit("/", 2)
        return UpdateSubscription(topic=topic, subscription=name, changes=before)
    return UpdateQueue(path=path, changes=before)


def _status(path: str, detail: Detail) -> Command | None:
    before = detail.get("before")
    return SetStatus(path=path, status=str(before)) if before in STATUSES else None


def _note(path: str, detail: Detail) -> Command | None:
    return NoteCause(path=path, number=detail["cause"], note=detail["before"]) if "before" in detail else None


def _acknowledge(path: str, detail: Detail) -> Command | None:
    if "before" not in detail:
        return None
    until = msgspec.convert(detail["before"], datetime | None)
    return AcknowledgeCause(path=path, number=detail["cause"], until=until)


def _letters(make: type[Purge | Restore]) -> Callable[[str, Detail], Command | None]:
    def made(path: str, detail: Detail) -> Command | None:
        runs, count = detail.get("sequence_numbers"), detail.get("count", 0)
        if not runs or count > make.most:
            return None
        numbers: list[int] = []
        for run in runs:
            first, _, last = str(run).partition("-")
            numbers += range(int(first), int(last or first) + 1)
        return make(path=path, sequence_numbers=tuple(numbers))

    return made


def _repair(make: type[CancelRepair | UndoRepair | ResumeRepair | PauseRepair]) -> Any:
    return lambda path, detail: make(name=detail["repair"])


def _granting(make: type[GrantRole | WithdrawRole]) -> Callable[[str, Detail], Command | None]:
    return lambda path, detail: make(person=detail["person"], role=detail["role"], queue=detail["pattern"])


_OPPOSITES: Final[Mapping[str, Callable[[str, Detail], Command | None]]] = {
    "update": _update,
    "status": _status,
    "note_cause": _note,
    "acknowledge_cause": _acknowledge,
    "purge": _letters(Restore),
    "restore": _letters(Purge),
    "access: grant": _granting(WithdrawRole),
    "access: withdraw": _granting(GrantRole),
    "access: four eyes": lambda path, detail: SetFourEyes(letters=detail["before"]),
    "repair: plan": _repair(CancelRepair),
    "repair: apply": _repair(UndoRepair),
    "repair: pause": _repair(ResumeRepair),
    "repair: resume": _repair(PauseRepair),
}
