"""What an explanation says: of each cause how many letters it has, and what they have that good ones lack."""

from __future__ import annotations

import dataclasses
from enum import StrEnum


class ComparedWith(StrEnum):
    """What the letters of a cause were compared with."""

    GIVEN = "given messages"
    COMPLETED = "completed messages"
    WAITING = "waiting messages"
    OTHER_CAUSES = "letters of other causes"
    NOTHING = "nothing"


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """A condition that letters of a cause meet and good messages do not, counted over all of both.

    `filter` is a condition of `SqlFilter`. `letters` and `good` are how many of either it holds for. `also`
    are other conditions that hold for the same messages.
    """

    filter: str
    letters: int
    good: int
    also: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """The letters of one cause, and their differences from good messages: none, if none was found.

    `causes` are the numbers that `triage` gives: several, where one difference explains more than theirs do.
    `text` is of the error, with ✱ for what differs. `differences` are mostly one; a further
    one was found among the letters that those before it do not hold for. `unexplained` counts the letters
    that none holds for. `good` counts the messages that were compared, which `compared_with` names.
    """

    reason: str | None
    error_type: str | None
    text: str
    letters: int
    causes: tuple[int, ...]
    examples: tuple[int, ...]
    differences: tuple[Difference, ...]
    unexplained: int
    good: int
    compared_with: ComparedWith

    @property
    def filter(self) -> str | None:
        """The condition of the first difference; None: no difference was found."""
        return self.differences[0].filter if self.differences else None
