"""Marks in time, such as releases: which one came last before something happened. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

#: The action in the audit log that is a mark.
MARK: Final = "mark"
#: The most characters of a mark.
LONGEST_MARK: Final = 200


class TimeMark(NamedTuple):
    """A moment that somebody has marked."""

    time: datetime
    text: str
    actor: str


def mark_before(marks: Sequence[TimeMark], moment: datetime) -> TimeMark | None:
    """Return the last of some marks that is not later than a moment; None if there is none."""
    return max((one for one in marks if one.time <= moment), default=None, key=lambda one: one.time)
