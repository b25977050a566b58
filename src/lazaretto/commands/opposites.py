"""Commands that undo an operator's action, from its entry in the audit log. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

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
    RestorePurged,
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

#: Later actions that are looked at for one that took an action back.
LATER: Final = 1_000


def opposite_of(entry: AuditEntry) -> Command | None:
    """Return the command that takes an action back; None if there is none, or the entry tells too little.

    Whether it still can is found out when it is run; `opposites` leaves out what certainly cannot.
    """
    make = _OPPOSITES.get(entry.action)
    return None if make is None else make(entry.queue, entry.detail)


def opposites(entries: Sequence[AuditEntry], later: Sequence[AuditEntry]) -> list[Command | None]:
    """Return what takes each of some actions back, newest first; None for what was taken back or overtaken.

    `later`: the newest LATER actions since the first entry's time. If they are more, nothing is offered: what
    came between is not known.
    """
    if len(later) >= LATER and later[-1].position > entries[0].position:
        return [None] * len(entries)
    known = {entry.position: entry for entry in (*later, *entries)}
    touched: list[_Touch] = []
    found: dict[int, Command | None] = {}
    for position in sorted(known, reverse=True):
        entry = known[position]
        mine = _touches(entry)
        overtaken = any(one.meets(other) for one in mine for other in touched)
        found[position] = None if overtaken else opposite_of(entry)
        touched += mine
    return [found[entry.position] for entry in entries]


def entry_records(entries: Sequence[AuditEntry], later: Sequence[AuditEntry]) -> list[dict[str, Any]]:
    """Return entries of the audit log as JSON has them, each with the command that takes the action back."""
    records: list[dict[str, Any]] = []
    for entry, opposite in zip(entries, opposites(entries, later), strict=True):
        name = None if opposite is None else opposite.command_name
        told = None if opposite is None else {"command": name, **msgspec.to_builtins(opposite)}
        records.append({**plain(entry), "opposite": told})
    return records


class _Touch(NamedTuple):
    """The object of an action: a place, from the whole to its part; and which messages, all for none."""

    place: tuple[object, ...]
    runs: tuple[tuple[int, int], ...] = ()

    def meets(self, other: _Touch) -> bool:
        """Return whether either changed what the other did, or a whole that it is a part of."""
        parts = min(len(self.place), len(other.place))
        if self.place[:parts] != other.place[:parts]:
            return False
        if not self.runs or not other.runs:
            return True
        return any(a <= d and c <= b for a, b in self.runs for c, d in other.runs)


def _touches(entry: AuditEntry) -> list[_Touch]:
    """Return what an action changed, so far as something takes such a change back."""
    detail, path = entry.detail, entry.queue
    match entry.action.partition(": "):
        case ["repair", _, _]:
            return [_Touch(("repair", detail.get("repair")))]
        case ["access", _, "grant" | "withdraw"]:
            return [_Touch(("role", detail["person"], detail["role"], detail["pattern"]))]
        case ["access", _, "remove"]:
            return [_Touch(("role", detail["person"]))]
        case ["access", _, "four eyes"]:
            return [_Touch(("four eyes",))]
        case ["redaction", _, _]:
            return [_Touch(("redaction", detail["pattern"], detail["field"]))]
        case ["update", _, _]:
            before = detail.get("before") or {}
            return [_Touch((path, "option", name)) for name in before]
        case ["status" | "resume", _, _]:
            return [_Touch((path, "status"))]
        case ["breaker", _, _]:
            return [_Touch((path, "breaker"))]
        case ["note_cause" | "acknowledge_cause" as action, _, _]:
            return [_Touch((path, action, detail["cause"]))]
        case ["merge_causes" | "unmerge_causes" | "split_cause", _, _]:
            return [_Touch((path, "causes"))]
        case ["rules", _, _]:
            names = {rule["name"] for part in ("added", "removed") for rule in detail.get(part) or ()}
            return [_Touch((path, "rule", name)) for name in names]
        case ["purge" | "restore" | "delete_purged" | "resubmit" | "move" | "republish", _, _]:
            return [_Touch((path, "letters"), _runs(detail))]
        case ["create" | "delete", _, _]:
            return [_Touch((path,))]
    return []


def _runs(detail: Detail) -> tuple[tuple[int, int], ...]:
    """Return which letters an entry is about, as runs of numbers; () if it does not tell."""
    given = (str(run).partition("-") for run in detail.get("sequence_numbers") or ())
    return tuple((int(first), int(last or first)) for first, _, last in given)


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
        if "at" in detail:
            return RestorePurged(path=path, at=datetime.fromisoformat(detail["at"]))
        runs, count = detail.get("sequence_numbers"), detail.get("count", 0)
        if not runs or count > make.most:
            return None
        numbers = (number for first, last in _runs(detail) for number in range(first, last + 1))
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
