"""Names of entities: what somebody may have meant, and creation where something exists already."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Sequence
from typing import Any

from lazaretto.errors import EntityExists, EntityNotFound
from lazaretto.model.checks import not_found, shown
from lazaretto.model.entities import EntityKind
from lazaretto.model.filters.rules import Rule
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.transaction import Transaction

#: How many entities before and behind a path are compared with it, and with one that has a slip mended.
_NEAR, _NEAR_SLIP = 100, 20


def already(what: str) -> EntityExists:
    """Return the error for something that exists where nothing is expected."""
    return EntityExists(f"{what}; with exist_ok=True it is taken as it is if its options are the same")


def require_same(what: str, record: QueueRecord, kind: EntityKind, options: Any) -> None:
    """Raise EntityExists, with the differences, unless an entity is of a kind and has these options.

    `options`: only those that this object has count.
    """
    if record.kind is not kind:
        raise EntityExists(f"a {record.kind.value} already exists at {record.path!r}, and no {kind.value}")
    refuse_differences(what, _differences(record.options, options))


def require_same_rules(what: str, exist: Sequence[Rule], expected: Sequence[Rule]) -> None:
    """Raise EntityExists, with the differences, unless rules are the same, in whatever order."""
    have, want = ({rule.name.lower(): rule for rule in rules} for rules in (exist, expected))
    differences = [f"it has the rule {have[name].name!r} too" for name in have.keys() - want.keys()]
    differences += [f"it has no rule {want[name].name!r}" for name in want.keys() - have.keys()]
    for name in sorted(have.keys() & want.keys()):
        differences += [f"rule {have[name].name!r}: {one}" for one in _differences(have[name], want[name])]
    refuse_differences(what, differences)


def refuse_differences(what: str, differences: Sequence[str]) -> None:
    """Raise EntityExists if there are differences."""
    if differences:
        raise EntityExists(
            f"{what} already exists with other options, and is left as it is: {'; '.join(differences)}. "
            "Change it by its update, or ask for what is there"
        )


def _differences(have: Any, want: Any, prefix: str = "") -> list[str]:
    """Return what two objects of options do not have in common, by name; only fields of `want` count."""
    differences = []
    for field in dataclasses.fields(want):
        mine, other = getattr(have, field.name), getattr(want, field.name)
        name = f"{prefix}{field.name}"
        if mine == other and type(mine) is type(other):
            continue
        if dataclasses.is_dataclass(mine) and type(mine) is type(other):
            differences += _differences(mine, other, f"{name}.")
        elif mine != other:
            differences.append(f"{name} is {_shown(mine)}, expected {_shown(other)}")
    return differences


def _shown(value: object) -> str:
    return str(value.value) if isinstance(value, enum.Enum) else shown(value)


def no_entity(
    tx: Transaction, plain: str, path: str, kinds: Collection[EntityKind] = tuple(EntityKind)
) -> EntityNotFound:
    """Return the error for a path where no entity of some kinds is, with the path most like it.

    It is looked for among those that stand near it in order, also but for a slip in its first letters: that
    takes no longer where there are many.
    """
    key = path.lower()
    around = tx.queues.near(key, _NEAR)
    before = sum(name.lower() < key for name, _ in around)
    more = max(before, len(around) - before) >= _NEAR
    slips = {key[1:], f"{key[1:2]}{key[:1]}{key[2:]}"} - {"", key} if more else ()
    around += [one for slip in sorted(slips) for one in tx.queues.near(slip, _NEAR_SLIP)]
    names = dict.fromkeys(name for name, kind in around if kind in kinds)
    return not_found(plain, path, names, more=more)
