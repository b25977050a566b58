"""Indivisible letters: those of a session that is received as one unit go in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lazaretto.engine.outcome.dead_letter_operations import holder
from lazaretto.engine.routing.forwards import forwards
from lazaretto.model.entities import EntityKind, EntityPath
from lazaretto.model.headers import decode_headers
from lazaretto.model.keys import dead_key, lower_bound
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.transaction import Transaction

#: The most messages of a unit.
MOST_IN_UNIT = 100_000
#: Letters whose sessions are looked up at once.
_PAGE = 10_000


def takes_units(tx: Transaction, queue: QueueRecord) -> bool:
    """Return whether what goes to an entity can come to a queue whose sessions are units."""
    ahead, seen = [queue], {queue.queue_id}
    while ahead:
        entity = ahead.pop()
        following: Sequence[QueueRecord] = ()
        if entity.kind is EntityKind.TOPIC:
            following = tx.topics.subscriptions(entity.queue_id)
        elif forwards(entity):
            target = tx.queues.by_path((entity.options.forward_to or "").lower())
            following = [] if target is None else [target]
        elif entity.options.whole_sessions:
            return True
        ahead += [one for one in following if one.queue_id not in seen]
        seen.update(one.queue_id for one in following)
    return False


def goes_to_units(tx: Transaction, path: EntityPath) -> bool:
    """Return the same for the entity at a path, if there is one."""
    queue = tx.queues.by_path(path.key)
    return queue is not None and takes_units(tx, queue)


def sessions_of(tx: Transaction, keys: Iterable[int]) -> dict[int, str | None]:
    """Return the session ids of messages, by their keys; those that are gone are left out."""
    headers = tx.repairs.headers(list(keys))
    return {key: decode_headers(encoded).session_id for key, encoded in headers.items()}


def portions(
    tx: Transaction,
    path: EntityPath,
    target: EntityPath,
    numbers: Sequence[int],
    most: int,
    edited: Mapping[int, str | None] | None = None,
) -> list[Sequence[int]]:
    """Return numbers of dead letters by the commit in which they go to a target, so many in each.

    The letters of a session that is one unit there are in one of them, however many they are. `edited`: the
    sessions of letters, by number, that an edit changes.
    """
    changed = edited or {}
    queue, to = holder(tx, path), tx.queues.by_path(target.key)
    if to is None or len(numbers) <= most or not takes_units(tx, to):
        return [numbers[start : start + most] for start in range(0, len(numbers), most)]
    first = lower_bound(queue.queue_id)
    units: dict[object, list[int]] = {}
    for start in range(0, len(numbers), _PAGE):
        keys = {number: dead_key(first + number, path.subqueue) for number in numbers[start : start + _PAGE]}
        sessions = sessions_of(tx, keys.values())
        for number, key in keys.items():
            # A letter without a session is a unit of its own.
            units.setdefault(changed.get(number, sessions.get(key)) or number, []).append(number)
    return list(_filled(units.values(), most))


def _filled(units: Iterable[list[int]], most: int) -> Iterator[list[int]]:
    portion: list[int] = []
    for unit in units:
        if portion and len(portion) + len(unit) > most:
            yield portion
            portion = []
        portion += unit
    if portion:
        yield portion
