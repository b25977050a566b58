"""Suggests what somebody may have meant who names an entity that is not there."""

from __future__ import annotations

from collections.abc import Collection

from lazaretto.errors import EntityNotFound
from lazaretto.model.checks import not_found
from lazaretto.model.entities import EntityKind
from lazaretto.store.sql.transaction import Transaction

#: How many entities before and behind a path are compared with it, and with one that has a slip mended.
_NEAR, _NEAR_SLIP = 100, 20


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
