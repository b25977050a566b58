"""Freezes the set of a repair: which dead letters, in which order, and which of them go first."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import heapq
import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Sequence

from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter, holder
from lazaretto.engine.repairs.course import KeyList
from lazaretto.engine.repairs.preview import LetterEditor, sessions_after
from lazaretto.model.entities import EntityPath
from lazaretto.model.fingerprint import plain_fingerprint
from lazaretto.model.headers import decode_headers
from lazaretto.model.keys import dead_key, sequence_of
from lazaretto.model.repairs import BY_SESSION
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.transaction import Transaction

#: How many letters are looked at at once.
_PAGE = 100_000
#: How many are edited at once, to know their sessions.
_EDITED = 1_000
#: An odd number near 2^64 / 1.618: multiplied by it, neighbouring keys lie far apart.
_SPREAD, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
#: What a product is multiplied by to have the key again.
_BACK = pow(_SPREAD, -1, 1 << 64)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen set. `canary`: how many of its first letters are the canary. Times in microseconds."""

    queue: QueueRecord
    keys: KeyList
    digest: str
    first: int
    last: int
    frozen_at: int
    fingerprints: dict[str, int]
    sessions: int | None
    canary: int


def freeze(
    tx: Transaction,
    path: EntityPath,
    which: DeadLetterFilter,
    order: str,
    canary: int,
    limit: int | None = None,
    editor: LetterEditor | None = None,
) -> Frozen:
    """Return the dead letters that a filter selects now, or the first of them up to a limit.

    `editor`: what may put them into other sessions, which then count.

    The letters of the canary come first: those with the lowest hashes within each fingerprint, or whole
    sessions. Memory stays flat, except that sessions are put in order with some bytes for each letter.
    """
    queue = holder(tx, path)
    keys, prints, latest = array("q"), Counter[int | None](), 0
    few = _Few(canary if order != BY_SESSION else 0)
    after = 0
    while True:
        page = _PAGE if limit is None else min(_PAGE, limit - len(keys))
        if not page:
            break
        looked_at = 0
        for frozen in tx.repairs.frozen(which.criteria(tx, queue, path.subqueue, after), page):
            looked_at += len(frozen)
            some, of_prints, times = zip(*frozen, strict=True)
            after = sequence_of(some[-1])
            selected = which.selects(tx, path.subqueue, some)
            if len(selected) < len(some):
                numbers = set(selected)
                chosen_ = [row for row in frozen if row[0] in numbers]
                some, of_prints, times = zip(*chosen_, strict=True) if chosen_ else ((), (), ())
            if some:
                keys.extend(some)
                prints.update(of_prints)
                latest = max(latest, max(times))
                few.look_at(some, of_prints)
        if looked_at < page:
            break
    packed, sessions = KeyList(), None
    if order == BY_SESSION:
        moved = (
            None if editor is None else functools.partial(sessions_after, tx, queue, path.subqueue, editor)
        )
        ordered, sessions, chosen = _by_session(tx, keys, path, canary, moved)
        packed.extend(ordered)
    else:
        leading = few.chosen(len(keys))
        packed.extend(leading)
        behind = 0
        for key in leading:
            place = bisect.bisect_left(keys, key, behind)
            packed.extend(keys[behind:place])
            behind = place + 1
        packed.extend(keys[behind:])
        chosen = len(leading)
    return Frozen(
        queue=queue,
        keys=packed,
        digest=packed.finish(),
        first=sequence_of(keys[0]) if keys else 0,
        last=sequence_of(keys[-1]) if keys else 0,
        # A clock that was put back since lets letters seem to come from the future.
        frozen_at=max(tx.now, latest),
        fingerprints={
            "" if number is None else plain_fingerprint(number): count
            for number, count in prints.most_common()
        },
        sessions=sessions,
        canary=chosen,
    )


def _hash(key: int) -> int:
    return key * _SPREAD & _MASK


class _Few:
    """Chooses some letters: in turn those of each fingerprint, the lowest hash first."""

    def __init__(self, most: int) -> None:
        self._wanted = most
        #: The lowest hashes of the letters of each fingerprint.
        self._lowest: dict[int | None, list[int]] = {}

    def look_at(self, keys: Sequence[int], prints: Sequence[int | None]) -> None:
        """Consider more letters."""
        if not self._wanted:
            return
        alike: dict[int | None, list[int]] = {}
        hashes = [key * _SPREAD & _MASK for key in keys]
        if len(set(prints)) == 1:
            alike[prints[0]] = hashes
        else:
            for hashed, print_ in zip(hashes, prints, strict=True):
                alike.setdefault(print_, []).append(hashed)
        for print_, theirs in alike.items():
            lowest = self._lowest.get(print_, [])
            self._lowest[print_] = heapq.nsmallest(self._wanted, itertools.chain(lowest, theirs))

    def chosen(self, number: int) -> list[int]:
        """Return the chosen ones of a number of letters, in their order."""
        groups = [[hash_ * _BACK & _MASK for hash_ in lowest] for lowest in self._lowest.values()]
        groups.sort(key=len, reverse=True)
        turns = (group[turn] for turn in range(self._wanted) for group in groups if turn < len(group))
        numbers: list[int] = []
        for key in turns:
            if len(numbers) >= min(self._wanted, number):
                break
            numbers.append(key)
        return sorted(numbers)


def _by_session(
    tx: Transaction,
    keys: Sequence[int],
    path: EntityPath,
    canary: int,
    moved: Callable[[Sequence[int]], dict[int, str | None]] | None,
) -> tuple[array[int], int, int]:
    """Return the letters session by session, how many sessions there are, and the canary's size.

    Sessions come in the order of their first letters, those of the canary before all others. A canary is
    made of whole sessions, because what is sent later would come behind what is sent first.
    """
    # A name can be long, and a hash of it has few bytes.
    numbers: dict[int | None, int] = {}
    sessions = array("q")
    sizes = array("q")
    page = _PAGE if moved is None else _EDITED
    for start in range(0, len(keys), page):
        some = keys[start : start + page]
        headers = tx.repairs.headers([dead_key(key, path.subqueue) for key in some])
        others = {} if moved is None else moved(some)
        for key in some:
            name = decode_headers(headers.get(dead_key(key, path.subqueue))).session_id
            name = others.get(key, name)
            number = numbers.setdefault(None if name is None else _hash_of(name), len(numbers))
            if number == len(sizes):
                sizes.append(0)
            sizes[number] += 1
            sessions.append(number)
    leading = _some_sessions(sizes, canary)
    first = set(leading)
    starts, start = array("q", bytes(8 * len(sizes))), 0
    for number in itertools.chain(leading, (one for one in range(len(sizes)) if one not in first)):
        starts[number], start = start, start + sizes[number]
    ordered = array("q", bytes(8 * len(keys)))
    for key, number in zip(keys, sessions, strict=True):
        ordered[starts[number]] = key
        starts[number] += 1
    return ordered, len(sizes), sum(sizes[number] for number in leading)


def _hash_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


def _some_sessions(sizes: Sequence[int], most: int) -> list[int]:
    """Return sessions that have as many letters as wanted together, or a few less; at least one."""
    if not most or not sizes:
        return []
    numbers: list[int] = []
    room = most
    for number in sorted(range(len(sizes)), key=_hash):
        if sizes[number] <= room:
            numbers.append(number)
            room -= sizes[number]
            if not room:
                break
    return sorted(numbers) or [min(range(len(sizes)), key=lambda number: (sizes[number], _hash(number)))]
