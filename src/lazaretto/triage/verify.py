"""Counts exactly how many messages each difference holds for, one message at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lazaretto.errors import FilterError
from lazaretto.filters.sql import compile_filter
from lazaretto.filters.values import Truth
from lazaretto.filters.view import MessageView


class Tally:
    """Number of messages, of those that each filter holds for, and of those that none holds for."""

    def __init__(self, filters: Sequence[str]) -> None:
        self._conditions = [compile_filter(text) for text in filters]
        self.messages = 0
        self.held = [0] * len(self._conditions)
        self.left = 0

    def add(self, view: MessageView) -> None:
        """Count a message. A filter that cannot be evaluated on it does not hold."""
        self.messages += 1
        any_held = False
        for i, condition in enumerate(self._conditions):
            if _holds(condition, view):
                self.held[i] += 1
                any_held = True
        self.left += not any_held


def _holds(condition: Callable[[MessageView], Truth], view: MessageView) -> bool:
    try:
        return condition(view) is True
    except FilterError:
        return False
