"""Commands that undo an operator's action, from its entry in the audit log. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lazaretto.engine.command import BY_ACTION, Command, Touch
from lazaretto.engine.log import AuditEntry
from lazaretto.engine.repairs.operators import OfRepair
from lazaretto.model.records.plain import plain

#: Later actions that are looked at for one that took an action back.
LATER: Final = 1_000


def opposite_of(entry: AuditEntry) -> Command | None:
    """Return the command that takes an action back; None if there is none, or the entry tells too little.

    Whether it still can is found out when it is run; `opposites` leaves out what certainly cannot.
    """
    made = (kind.opposite(entry.queue, entry.detail) for kind in BY_ACTION.get(entry.action, ()))
    return next((command for command in made if command is not None), None)


def opposites(entries: Sequence[AuditEntry], later: Sequence[AuditEntry]) -> list[Command | None]:
    """Return what takes each of some actions back, newest first; None for what was taken back or overtaken.

    `later`: the newest LATER actions since the first entry's time. If they are more, nothing is offered: what
    came between is not known.
    """
    if len(later) >= LATER and later[-1].position > entries[0].position:
        return [None] * len(entries)
    by_position = {entry.position: entry for entry in (*later, *entries)}
    # Only what begins with the same part can meet.
    touched: dict[object, list[Touch]] = defaultdict(list)
    answers: dict[int, Command | None] = {}
    for position in sorted(by_position, reverse=True):
        entry = by_position[position]
        mine = _touches(entry)
        overtaken = any(one.meets(other) for one in mine for other in touched[one.place[0]])
        answers[position] = None if overtaken else opposite_of(entry)
        for one in mine:
            touched[one.place[0]].append(one)
    return [answers[entry.position] for entry in entries]


def entry_records(entries: Sequence[AuditEntry], later: Sequence[AuditEntry]) -> list[dict[str, Any]]:
    """Return entries of the audit log as JSON has them, each with the command that takes the action back."""
    records: list[dict[str, Any]] = []
    for entry, opposite in zip(entries, opposites(entries, later), strict=True):
        name = None if opposite is None else opposite.command_name
        undo = None if opposite is None else {"command": name, **msgspec.to_builtins(opposite)}
        records.append({**plain(entry), "opposite": undo})
    return records


def _touches(entry: AuditEntry) -> list[Touch]:
    """Return what an action changed, so far as something takes such a change back."""
    # A repair's own steps change it, too.
    kinds = [OfRepair] if entry.action.startswith("repair: ") else BY_ACTION.get(entry.action, ())
    return next(filter(None, (kind.touches(entry.queue, entry.detail) for kind in kinds)), [])
