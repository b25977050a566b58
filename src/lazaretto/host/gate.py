"""Lets a suspect be tried alone, while nothing else runs in the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """A lock: many threads work at the same time, or one works alone."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._working = 0
        self._alone = 0

    @contextmanager
    def working(self, *, alone: bool) -> Iterator[None]:
        """Work with others, or wait for them to finish and work alone."""
        with self._condition:
            if alone:
                self._alone += 1
                # Announced first, so that later threads wait behind this one.
                self._condition.wait_for(lambda: self._working == 0)
            else:
                self._condition.wait_for(lambda: self._alone == 0)
            self._working += 1
        try:
            yield
        finally:
            with self._condition:
                self._working -= 1
                if alone:
                    self._alone -= 1
                self._condition.notify_all()
