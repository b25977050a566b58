"""Explanations of causes: how many dead letters each has, and how they differ from good messages."""

from __future__ import annotations

import dataclasses
from enum import StrEnum


class ComparedWith(StrEnum):
    """The messages that the dead letters of a cause were compared with."""

    GIVEN = "given messages"
    COMPLETED = "completed messages"
    WAITING = "waiting messages"
    OTHER_CAUSES = "letters of other causes"
    NOTHING = "nothing"


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """A condition that holds for dead letters of a cause and not for good messages, with exact counts.

    `filter` is a condition of `SqlFilter`. `letters` and `good`: the number of dead letters and good messages
    that it holds for. `also`: other conditions that hold for the same messages.
    """

    filter: str
    letters: int
    good: int
    also: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """The dead letters of one cause, and their differences from good messages, if any were found.

    `causes`: numbers from `triage`, several if one difference explains them better than separate ones.
    `text`: the error's text, with ✱ in place of what differs. `differences`: usually one; each further one
    was found among the dead letters that earlier ones do not hold for. `unexplained`: the number of dead
    letters that no difference holds for. `good`: the number of messages compared, which `compared_with`
    names.
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
        """The condition of the first difference, or None if no difference was found."""
        return self.differences[0].filter if self.differences else None
