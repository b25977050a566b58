"""Forks: when they may happen, and what a child may do with the broker of its parent, which is nothing.

A fork copies the locks of a library, such as those within SQLite, as they are, but not the threads that would
release them: a child of a fork at a bad moment waits for ever. A program knows when its own threads are at
work, but not when ours are. So a fork waits until they rest.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Final

from lazaretto.errors import StoreError

#: The longest that a fork waits for threads, and a thread for a fork, in seconds: each may wait for what the
#: other one holds.
_PATIENCE: Final = 1.0


def on_fork(
    *,
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """Run functions at each fork of this process, on systems that have forks."""
    hooks = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
    register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
    if register is not None:
        register(**{name: hook for name, hook in hooks.items() if hook is not None})


class _Forks:
    """The threads that are at work, and those that are forking."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._at_work: set[int] = set()
        #: Those for which a fork has waited in vain.
        self._stuck: set[int] = set()
        self._forking: set[int] = set()

    def begin(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._forking, _PATIENCE)
            self._at_work.add(threading.get_ident())

    def end(self) -> None:
        with self._changed:
            self._at_work.discard(threading.get_ident())
            self._stuck.discard(threading.get_ident())
            self._changed.notify_all()

    def await_rest(self) -> None:
        try:
            with self._changed:
                self._forking.add(threading.get_ident())
                if not self._changed.wait_for(lambda: self._at_work <= self._stuck, _PATIENCE):
                    self._stuck |= self._at_work
        except KeyboardInterrupt:
            # Python drops what is raised while it forks.
            _follow_with(_thread.interrupt_main)

    def go_on(self) -> None:
        with self._changed:
            self._forking.discard(threading.get_ident())
            self._changed.notify_all()


_forks = _Forks()
#: Runs in the parent at last: nothing, or what interrupts it. Not a function of Python's, which it would
#: interrupt itself.
_then = functools.partial(int)


def _follow_with(function: Callable[[], object]) -> None:
    # The hook stays as it was registered, so it is set anew. Type checkers know no state of partial objects.
    _then.__setstate__((function, (), {}, None))  # type: ignore[attr-defined]


def _await_rest() -> None:
    _follow_with(int)
    _forks.await_rest()


def _start_anew() -> None:
    # The child has none of the threads, and one of them may have held the lock.
    global _forks
    _forks = _Forks()


# Hooks that run in the parent run in the order in which they are registered.
on_fork(before=_await_rest, after_in_parent=lambda: _forks.go_on(), after_in_child=_start_anew)
on_fork(after_in_parent=_then)


class Opener:
    """The process that has opened a store. Its forked children inherit that, and can use nothing of it."""

    def __init__(self) -> None:
        #: Its number. Hot paths compare it themselves, and ask `refuse_fork` if it differs.
        self.pid: Final = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that has opened it."""
        return self.pid != os.getpid()

    def refuse_fork(self) -> None:
        """Raise StoreError in a child: what it did would be done in the midst of what its parent does."""
        if self.forked:
            raise StoreError("this broker was opened before a fork; open a new one in each process")


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
