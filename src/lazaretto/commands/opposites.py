"""What takes an operator's action back, from its entry in the audit log. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from lazaretto.commands.access_commands import GrantRole, SetFourEyes, WithdrawRole
from lazaretto.commands.command import Command
from lazaretto.commands.entity_commands import (
    AddRule,
    RemoveRule,
    SetBreaker,
    SetStatus,
    UpdateQueue,
    UpdateSubscription,
    UpdateTopic,
)
from lazaretto.commands.letter_commands import (
    AcknowledgeCause,
    CancelRepair,
    MergeCauses,
    NoteCause,
    PaceRepair,
    PauseRepair,
    Purge,
    Restore,
    ResumeRepair,
    SplitCause,
    UndoRepair,
    UnmergeCauses,
)
from lazaretto.commands.redaction_commands import RemoveRedaction, SetRedaction
from lazaretto.engine.log import AuditEntry
from lazaretto.model.entities import STATUSES, EntityPath, split_subscription
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


def _rules(path: str, detail: Detail) -> Command | None:
    of = split_subscription(EntityPath.parse(path))
    if of is None:
        return None
    topic, name = of
    match detail.get("added"), detail.get("removed"):
        case [[added], []]:
            return RemoveRule(topic=topic, subscription=name, rule=added["name"])
        case [[], [removed]]:
            return AddRule(topic=topic, subscription=name, rule=removed)
    return None


def _breaker(path: str, detail: Detail) -> Command | None:
    before = detail.get("before")
    return None if before in (None, detail["verb"]) else SetBreaker(path=path, verb=before)


def _pace(path: str, detail: Detail) -> Command | None:
    before = detail.get("before")
    return None if before is None else PaceRepair(name=detail["repair"], **before)


def _merge(path: str, detail: Detail) -> Command | None:
    # Too many fingerprints are not kept; an older version told those of all causes as a list.
    names = detail.get("fingerprints")
    if isinstance(names, dict):
        parts = {int(number): tuple(theirs) for number, theirs in names.items()}
        return UnmergeCauses(path=path, number=detail["into"], parts=parts)
    if not names or len(detail["merged"]) > 1:
        return None
    return SplitCause(path=path, number=detail["into"], fingerprints=tuple(names))


def _unmerge(path: str, detail: Detail) -> Command | None:
    return MergeCauses(path=path, numbers=(detail["cause"], *map(int, detail["parts"])))


def _split(path: str, detail: Detail) -> Command | None:
    return MergeCauses(path=path, numbers=(detail["cause"], detail["into"]))


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


def _redaction(path: str, detail: Detail) -> Command:
    given = {"queue": detail["pattern"], "field": detail["field"]}
    before = detail["before"]
    return RemoveRedaction(**given) if before is None else SetRedaction(**given, form=before)


_OPPOSITES: Final[Mapping[str, Callable[[str, Detail], Command | None]]] = {
    "update": _update,
    "status": _status,
    "note_cause": _note,
    "acknowledge_cause": _acknowledge,
    "rules": _rules,
    "breaker": _breaker,
    "merge_causes": _merge,
    "unmerge_causes": _unmerge,
    "split_cause": _split,
    "repair: pace": _pace,
    "purge": _letters(Restore),
    "restore": _letters(Purge),
    "access: grant": _granting(WithdrawRole),
    "access: withdraw": _granting(GrantRole),
    "access: four eyes": lambda path, detail: SetFourEyes(letters=detail["before"]),
    "redaction: set": _redaction,
    "redaction: remove": _redaction,
    "repair: plan": _repair(CancelRepair),
    "repair: apply": _repair(UndoRepair),
    "repair: pause": _repair(ResumeRepair),
    "repair: resume": _repair(PauseRepair),
}
