"""Counts exactly how many messages each difference holds for, one message at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lazaretto.errors import FilterError
from lazaretto.model.filters.body import LazyBody
from lazaretto.model.filters.sql import compile_filter, names_attempts, reads_body_alone
from lazaretto.model.filters.values import Truth
from lazaretto.model.filters.view import MessageView

#: What a tally counted: messages, those that each filter holds for, and those that none holds for.
Counted = tuple[int, tuple[int, ...], int]


class Tally:
    """Number of messages, of those that each filter holds for, and of those that none holds for."""

    def __init__(self, filters: Sequence[str]) -> None:
        self.filters = tuple(filters)
        self._conditions = [compile_filter(text) for text in filters]
        #: Whether it has to be known who tried the messages.
        self.asks_workers = any(map(names_attempts, filters))
        #: Whether the messages' bodies are enough.
        self.reads_bodies_alone = all(map(reads_body_alone, filters))
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

    def add_bodies(self, bodies: Iterable[bytes | None], decode: Callable[[bytes], Any] | None) -> None:
        """Count messages of which nothing but the body is known."""
        lazy = LazyBody(None, decode)
        view = MessageView(body=lazy)
        for body in bodies:
            lazy.put(body or b"")
            self.add(view)

    def merge(self, other: Counted) -> None:
        """Add what another tally of the same filters counted."""
        messages, counts, rest = other
        self.messages += messages
        self.held = [mine + theirs for mine, theirs in zip(self.held, counts, strict=True)]
        self.left += rest

    def counted(self) -> Counted:
        """Return what it counted."""
        return self.messages, tuple(self.held), self.left


def _holds(condition: Callable[[MessageView], Truth], view: MessageView) -> bool:
    try:
        return condition(view) is True
    except FilterError:
        return False
