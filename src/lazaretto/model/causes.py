"""How a cause of dead letters stands: new, rising, steady, regressed or over, and what explains it."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

#: The highest number of a cause.
LAST_CAUSE = (1 << 31) - 1
#: Hours whose mean an hour is compared with.
HOURS = 24
#: Days, as UTC has them, over which a cause is told.
DAYS = 28
#: A cause is rising if an hour has at least so many letters, so many times the mean, and that is so unlikely.
_FEWEST, _TIMES, _CHANCE = 10, 2, 1e-6
#: Terms of a sum of which each is at most half the one before.
_TERMS = 64

#: The action in the audit log that is a mark.
MARK: Final = "mark"
#: The most characters of a mark.
LONGEST_MARK: Final = 200


class CauseState(enum.Enum):
    """The state of a cause."""

    #: First seen of late.
    NEW = "new"
    #: More letters in this hour than chance explains.
    RISING = "rising"
    #: None of the others.
    STEADY = "steady"
    #: It was over, and is back.
    REGRESSED = "regressed"
    #: No letter of it waits.
    OVER = "over"


class TimeMark(NamedTuple):
    """A moment that somebody has marked."""

    time: datetime
    text: str
    actor: str


@dataclasses.dataclass(frozen=True, slots=True)
class CauseDifference:
    """The difference between a cause's letters and good messages, as it was found last.

    `filter`: a condition of `SqlFilter`; None: no difference was found. `letters`: how many of the `counted`
    letters it holds for; `good`: how many of the `compared` messages, which `compared_with` names. `also`:
    other conditions that hold for the same messages. `causes`: the causes that it was counted over.
    `waiting`: how many letters the cause had then.
    """

    filter: str | None
    letters: int
    counted: int
    good: int
    compared: int
    compared_with: str
    also: tuple[str, ...]
    causes: tuple[int, ...]
    waiting: int

    def outdated(self, letters: int) -> bool:
        """Return whether the cause has so many letters now that this is to be found anew."""
        return not self.waiting <= 2 * letters <= 4 * self.waiting


def poisson_tail(count: int, mean: float) -> float:
    """Return how likely `count` or more are where `mean` are expected. Good above the mean; below it, 1."""
    if count <= mean:
        return 1.0
    if mean <= 0:
        return 0.0
    term = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    total = 0.0
    for step in range(1, _TERMS + 1):
        total += term
        term *= mean / (count + step)
    # What is left is less than a geometric series.
    return min(1.0, total + term / (1 - mean / (count + _TERMS + 1)))


def is_rising(count: int, before: Sequence[int]) -> bool:
    """Return whether an hour's count is more than chance makes of the counts of the hours before."""
    mean = sum(before) / HOURS
    return count >= _FEWEST and count >= _TIMES * mean and poisson_tail(count, mean) < _CHANCE


def state_of(
    waiting: int, first: int, began: int, hours: Sequence[int], mark: int, *, was_over: bool
) -> CauseState:
    """Return how a cause stands.

    `first`: when its first letter ever came; `began`: the first of those that wait. `hours`: how many came in
    each of the 24 hours before, and in this one. `mark`: from when on it counts as new, or as back.
    """
    if not waiting:
        return CauseState.OVER
    if was_over and began >= mark:
        return CauseState.REGRESSED
    if not was_over and first >= mark:
        return CauseState.NEW
    return CauseState.RISING if is_rising(hours[-1], hours[:-1]) else CauseState.STEADY


def mark_before(marks: Sequence[TimeMark], moment: datetime) -> TimeMark | None:
    """Return the last of some marks that is not later than a moment; None if there is none."""
    return max((one for one in marks if one.time <= moment), default=None, key=lambda one: one.time)
