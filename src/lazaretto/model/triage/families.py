"""Merges causes whose texts differ in one word, if one difference explains them in fewer bits."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Hashable, Sequence
from typing import Any

from lazaretto.model.triage.conditions import cost
from lazaretto.model.triage.differences import Found, find_difference
from lazaretto.model.triage.features import Group

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
