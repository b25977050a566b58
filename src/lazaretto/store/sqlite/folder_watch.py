"""Tells at almost no cost whether a file in some folders was removed or renamed. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lazaretto.store.runtime.forks import on_fork

#: Events: a file was renamed away, renamed to here, or removed; the folder itself was removed or renamed.
_MOVED_FROM, _MOVED_TO, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x40, 0x80, 0x200, 0x400, 0x800
_EVENTS = _MOVED_FROM | _MOVED_TO | _DELETE | _DELETE_SELF | _MOVE_SELF
_MOST_BYTES = 1 << 16
_NONE = bytes(4)


class FolderWatch:
    """The folders that this process watches: all in one, as a system allows each user only about 100."""

    def __init__(self) -> None:
        # Not every system has these.
        import fcntl
        import termios

        self._ioctl: Callable[..., Any] = fcntl.ioctl
        self._unread_bytes = termios.FIONREAD
        libc = ctypes.CDLL(None, use_errno=True)
        self._add = libc.inotify_add_watch
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        self._lock = threading.Lock()
        self._unread = bytearray(4)
        self._events = 0

    def add(self, folder: Path) -> None:
        """Watch one more folder, until the process ends. A folder in which nothing happens costs nothing."""
        if self._add(self._fd, os.fsencode(folder), _EVENTS) < 0:
            raise OSError(ctypes.get_errno(), f"{folder} cannot be watched")

    def count(self) -> int:
        """Return a number that rises when something happens in a folder. Raises OSError."""
        # Threads share the buffer: whoever finds 0 in it finds the number that was raised before.
        self._ioctl(self._fd, self._unread_bytes, self._unread)
        if self._unread != _NONE:
            with self._lock:
                self._events += 1
                with contextlib.suppress(BlockingIOError):
                    os.read(self._fd, _MOST_BYTES)
        return self._events

    def close(self) -> None:
        """Watch nothing any more."""
        os.close(self._fd)


@functools.cache
def _of_process() -> FolderWatch | None:
    """Return the watch of this process, None where the system has none to give."""
    if sys.platform != "linux":
        return None
    try:
        return FolderWatch()
    except (ImportError, AttributeError, OSError):
        return None


def _forget() -> None:
    """Leave the events of the parent to the parent."""
    if _of_process.cache_info().currsize:
        inherited = _of_process()
        _of_process.cache_clear()
        if inherited is not None:
            inherited.close()


on_fork(after_in_child=_forget)


def watch(folders: Iterable[Path]) -> FolderWatch | None:
    """Watch these folders too; return None if the system cannot."""
    shared = _of_process()
    if shared is None:
        return None
    try:
        for folder in folders:
            shared.add(folder)
    except OSError:
        return None
    return shared
