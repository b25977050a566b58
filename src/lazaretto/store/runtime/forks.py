"""Keeps the process from being forked in the midst of what a broker's own threads do.

A fork copies the locks of a library, such as those within SQLite, as they are, but not the threads that would
release them: a child of a fork at a bad moment waits for ever. A program knows when its own threads are at
work, but not when ours are. So a fork waits until they rest.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Final

#: The longest that a fork waits, in seconds: a thread of ours may itself wait for what the forking one holds.
_PATIENCE: Final = 1.0


class _Forks:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._at_work = 0
        self._forking = 0

    def begin(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            self._at_work += 1

    def end(self) -> None:
        with self._changed:
            self._at_work -= 1
            self._changed.notify_all()

    def await_rest(self) -> None:
        with self._changed:
            self._forking += 1
            self._changed.wait_for(lambda: not self._at_work, _PATIENCE)

    def go_on(self) -> None:
        with self._changed:
            self._forking -= 1
            self._changed.notify_all()


_forks = _Forks()


def _start_anew() -> None:
    # The child has none of the threads, and one of them may have held the lock.
    global _forks
    _forks = _Forks()


os.register_at_fork(
    before=lambda: _forks.await_rest(), after_in_parent=lambda: _forks.go_on(), after_in_child=_start_anew
)


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """Hold up forks of the process within a block, and wait for one that is under way."""
    _forks.begin()
    try:
        yield
    finally:
        _forks.end()


@contextlib.contextmanager
def at_rest() -> Iterator[None]:
    """Let forks go ahead within a block that stands within `at_work`."""
    _forks.end()
    try:
        yield
    finally:
        _forks.begin()
