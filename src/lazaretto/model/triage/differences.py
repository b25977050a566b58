"""Finds the smallest difference between failed and good messages, by description length.

A difference is a conjunction of conditions. It is reported only if it saves more bits than it takes to select
it among all possible conditions. This corrects for testing thousands of conditions: a chance finding costs
more bits than it saves.

Workers come and go. So good messages of last week were completed by other workers than today's letters,
whatever made these fail. Only messages that were tried in the same hours tell whether a worker is to blame.

Causes whose texts differ in one word are merged if one difference explains them in fewer bits.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from typing import Any, NamedTuple

from lazaretto.model.filters.sql import LONGEST as LONGEST_FILTER
from lazaretto.model.filters.sql import names_attempts
from lazaretto.model.filters.view import host_of
from lazaretto.model.triage.conditions import HOST, WORKER, Condition, conditions_of, cost
from lazaretto.model.triage.features import Features, Group, rows_of

#: Minimum gain of a difference in bits: by chance, at most one in 2^8 groups reaches it.
LEAST_GAIN = 8.0
#: Minimum gain of a further condition, in bits and as a share of the gain without it.
_WORTH = 0.02
_BEAM = 24
MOST_CONDITIONS = 3
#: Maximum number of differences for one cause, and the share that may stay unexplained.
MOST_PARTS = 3
_LEFT = 0.05
#: How many equivalent conditions are reported, and how far their messages may differ.
_MOST_ALSO = 5
_ALSO = 0.002

_HOUR = 3_600_000_000


class Found(NamedTuple):
    """A difference found in samples of both sides.

    `filter`: an SQL filter. `failing`, `good`: the rows that it holds for, as bit masks. `gain`: bits saved.
    `cost`: bits that encode which messages failed, given the difference. `also`: conditions that hold for the
    same messages.
    """

    filter: str
    failing: int
    good: int
    gain: float
    cost: float
    also: tuple[str, ...]


class _Path(NamedTuple):
    """A conjunction of conditions, in the order in which they were added."""

    ids: tuple[int, ...]
    gain: float
    failing: int
    good: int
    bits: float


class ByWorker(NamedTuple):
    """A difference that names a worker or host, and the good messages that it was found among."""

    found: Found
    good: Group


def find_difference(failing: Group, good: Group, told: str = "") -> Found | None:
    """Return the smallest difference, or None if none is better than chance."""
    if not failing.count or not good.count:
        return None
    conditions = conditions_of(failing, good, told)
    sizes = failing.count, good.count
    nothing = cost(0, 0, *sizes)

    def weighed(ids: tuple[int, ...], in_failing: int, in_good: int, bits: float) -> _Path | None:
        a, b = in_failing.bit_count(), in_good.bit_count()
        # A difference describes what failed messages have, not what they lack.
        if a * sizes[1] <= b * sizes[0]:
            return None
        return _Path(ids, nothing - cost(a, b, *sizes) - bits, in_failing, in_good, bits)

    single = (weighed((i,), c.failing, c.good, c.bits) for i, c in enumerate(conditions))
    front = sorted(filter(None, single), key=lambda path: (-path.gain, path.ids))[:_BEAM]
    if not front:
        return None
    best = front[0]
    for _ in range(1, MOST_CONDITIONS):
        longer: dict[tuple[int, ...], _Path] = {}
        for path in front:
            if not path.good:
                continue
            for i, condition in enumerate(conditions):
                if i in path.ids or not _goes_with(conditions, path.ids, condition):
                    continue
                bits = path.bits + condition.bits + 1
                # It cannot gain more than the bits that remain.
                if nothing - bits <= path.gain + max(LEAST_GAIN, _WORTH * path.gain):
                    continue
                ids = tuple(sorted((*path.ids, i)))
                made = weighed(ids, path.failing & condition.failing, path.good & condition.good, bits)
                if made and ids not in longer and _is_worth(made.gain, path.gain):
                    longer[ids] = made
        front = sorted(longer.values(), key=lambda path: (-path.gain, path.ids))[:_BEAM]
        if not front:
            break
        fitting = next((p for p in front if len(_text(conditions, p.ids)) <= LONGEST_FILTER), None)
        if fitting is not None and _is_worth(fitting.gain, best.gain):
            best = fitting
    if best.gain <= LEAST_GAIN:
        return None
    also = _also(conditions, best, sizes[1])
    return Found(_text(conditions, best.ids), best.failing, best.good, best.gain, nothing - best.gain, also)


def find_differences(
    failing: Group, good: Group, told: str = "", first: Found | None = None
) -> tuple[list[Found], list[int]]:
    """Return differences that together cover the failed messages, and the rows that none covers.

    The strongest comes first, and is usually the only one. Further ones cover the remaining rows, numbered
    among all failed messages. `first`: the first one, if it is known.
    """
    differences: list[Found] = []
    rows = list(range(failing.count))
    group = failing
    while (
        rows
        and len(differences) < MOST_PARTS
        and (not differences or len(rows) >= max(8, _LEFT * failing.count))
    ):
        difference = first if first and not differences else find_difference(group, good, told)
        if difference is None:
            break
        covered = set(rows_of(difference.failing, group.count))
        differences.append(difference)
        rows = [row for place, row in enumerate(rows) if place not in covered]
        group = Group([failing.rows[row] for row in rows])
    return differences, rows


def _is_worth(gain: float, before: float) -> bool:
    return gain > before + max(LEAST_GAIN, _WORTH * before)


def _goes_with(conditions: list[Condition], ids: tuple[int, ...], new: Condition) -> bool:
    """Return whether a condition is on a new field, or is the other end of a range."""
    for i in ids:
        old = conditions[i]
        if old.field == new.field and {old.edge, new.edge} != {"low", "high"}:
            return False
    return True


def _text(conditions: list[Condition], ids: tuple[int, ...]) -> str:
    # Ordered by their text, so that the result depends only on the difference.
    return " AND ".join(sorted(conditions[i].text for i in ids))


def _also(conditions: list[Condition], best: _Path, all_good: int) -> tuple[str, ...]:
    if len(best.ids) != 1:
        return ()
    mine = conditions[best.ids[0]]
    same = [
        other
        for other in conditions
        if other.field != mine.field
        and other.failing == mine.failing
        and (other.good ^ mine.good).bit_count() <= _ALSO * all_good
    ]
    return tuple(other.text for other in sorted(same, key=lambda c: (c.bits, c.text))[:_MOST_ALSO])


def find_by_worker(
    failing: Group, good: Group, told: str = "", leave_out: Collection[str] = ()
) -> ByWorker | None:
    """Return the smallest difference among messages of the same time, if it names a worker or host."""
    workers = {row.worker for row in failing.rows}
    if workers == {None} or len(workers | {row.worker for row in good.rows if row.worker}) < 2:
        return None
    pairs = _same_time(failing.rows, good.rows)
    skipped = set(map(str.lower, leave_out))
    bad, well = (Group([_with_worker(row, skipped) for row in rows]) for rows in pairs)
    difference = find_difference(bad, well, told)
    if difference is None or not names_attempts(difference.filter):
        return None
    return ByWorker(difference, well)


def _same_time(
    failing: Sequence[Features], good: Sequence[Features]
) -> tuple[list[Features], list[Features]]:
    """Return as many rows of one side as of the other in each hour, all between its failing ones."""
    hours: defaultdict[int, tuple[list[Features], list[Features]]] = defaultdict(lambda: ([], []))
    for side, rows in enumerate((failing, good)):
        for row in rows:
            if row.worker is not None and row.when is not None:
                hours[row.when // _HOUR][side].append(row)
    sides: tuple[list[Features], list[Features]] = [], []
    for _, (bad, well) in sorted(hours.items()):
        if not bad:
            continue
        times = [row.when or 0 for row in bad]
        first, last = min(times), max(times)
        meanwhile = [row for row in well if first <= (row.when or 0) <= last]
        number = min(len(bad), len(meanwhile))
        sides[0].extend(_spread(bad, number))
        sides[1].extend(_spread(meanwhile, number))
    return sides


def _spread(rows: list[Features], number: int) -> list[Features]:
    """Return a number of rows, spread evenly over their times."""
    rows = sorted(rows, key=lambda row: row.when or 0)
    return [rows[at * len(rows) // number] for at in range(number)]


def _with_worker(row: Features, skipped: Collection[str]) -> Features:
    made, worker = Features(row), row.worker or ""
    for name, value in ((HOST, host_of(worker)), (WORKER, worker)):
        if name.lower() not in skipped:
            made[name] = value
    return made


#: Placeholder for the part of a text in which siblings differ.
HOLE = "✱"
#: Maximum rows of all siblings together, and minimum rows of each.
_MOST_ROWS, _LEAST_ROWS = 2_000, 20
_MOST_WORDS = 60
_MOST_CAUSES = 200
_PIECE = re.compile(r"\w+|[^\w\s]")


@dataclasses.dataclass(slots=True)
class Cause:
    """Dead letters that failed for the same reason: their name, a sample, and their difference.

    `kind`: what siblings have in common, such as reason and error type. `members`: keys of merged causes.
    """

    kind: Hashable
    text: str
    letters: int
    sample: Group
    members: tuple[Any, ...]
    difference: Found | None = None


def unite(causes: Sequence[Cause], good: Group) -> list[Cause]:
    """Return the causes with their differences, siblings merged."""
    rest: dict[int, Cause] = dict(enumerate(causes))
    for text, members in sorted(_families(causes), key=lambda family: (-len(family[1]), family[0])):
        alive = [i for i in members if i in rest]
        if len(alive) > 1:
            united = _united(text, [rest[i] for i in alive], good)
            if united is not None:
                for i in alive:
                    del rest[i]
                rest[alive[0]] = united
    return list(rest.values())


def _united(text: str, parts: Sequence[Cause], good: Group) -> Cause | None:
    """Return the merged cause if its difference takes fewer bits than the separate ones."""
    most = max(_LEAST_ROWS, _MOST_ROWS // len(parts))
    parts = [_cut(part, most, good) for part in parts]
    together = Group([row for part in parts for row in part.sample.rows])
    difference = find_difference(together, good, text)
    apart = sum(
        part.difference.cost if part.difference else cost(0, 0, part.sample.count, good.count)
        for part in parts
    )
    if difference is None or difference.cost >= apart:
        return None
    members = tuple(key for part in parts for key in part.members)
    return Cause(parts[0].kind, text, sum(part.letters for part in parts), together, members, difference)


def _cut(part: Cause, most: int, good: Group) -> Cause:
    """Return a cause with a smaller sample and its difference, so that equal rows are compared."""
    if part.sample.count <= most:
        return part
    sample = Group(part.sample.rows[:most])
    return dataclasses.replace(part, sample=sample, difference=find_difference(sample, good, part.text))


def _families(causes: Sequence[Cause]) -> list[tuple[str, list[int]]]:
    """Return texts with a placeholder that several causes of one kind share, and these causes."""
    around: dict[tuple[Hashable, tuple[str, ...]], tuple[str, dict[int, None]]] = {}
    for i, cause in enumerate(causes[:_MOST_CAUSES]):
        text = cause.text[:4096]
        pieces = list(itertools.islice(_PIECE.finditer(text), _MOST_WORDS))
        words = [piece[0] for piece in pieces]
        for place, piece in enumerate(pieces):
            if piece[0][0].isalnum() or piece[0] == HOLE:
                key = cause.kind, (*words[:place], HOLE, *words[place + 1 :])
                shown = f"{text[: piece.start()]}{HOLE}{text[piece.end() :]}"
                # A text with two placeholders is its own sibling at both; it counts once.
                around.setdefault(key, (shown, {}))[1][i] = None
    return [(text, list(members)) for text, members in around.values() if len(members) > 1]
