"""System calls of a sandbox's processes: to die together, to take signals, to bury a child."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from lazaretto.tools.signals import ENDING

#: Requests to prctl.
_DIE_WITH_PARENT, _ADOPT_ORPHANS = 1, 36


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of the processes that one's children leave behind."""
    _prctl(_ADOPT_ORPHANS, 1)


def die_with(parent: int) -> None:
    """Be killed when the parent dies."""
    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before that was asked for.
        os._exit(0)


def ignore_signals() -> None:
    """Go on when the whole group is told to end: our parent was told too, and ends us when it is time.

    By a handler, because what the function starts would inherit that they are ignored.
    """
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _do_nothing)
            signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def heed_signals() -> None:
    """Take signals as other processes do."""
    for number in ENDING:
        if signal.getsignal(number) is _do_nothing:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


class _Held(threading.local):
    """The signals that this thread held back before it forks."""

    before: set[int] | None = None


_held = _Held()


def hold_signals() -> None:
    """Hold signals back until the child that is forked now has set how it takes them."""
    _held.before = set(signal.pthread_sigmask(signal.SIG_BLOCK, ENDING))


def release_signals() -> None:
    """Take the signals that were held back before a fork."""
    if _held.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _held.before)


def _do_nothing(number: int, frame: FrameType | None) -> None: ...


def count_threads() -> int:
    """Return how many threads this process has, Python's and others."""
    try:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - runs after every round
    except OSError:
        return threading.active_count()


def count_descriptors() -> int:
    """Return how many descriptors this process has open."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(folder))  # noqa: PTH208
    # Not even these can be opened any more.
    return 1_000_000


def flush() -> None:
    """Write what was printed."""
    for stream in (sys.stdout, sys.stderr):
        # A handler may have put anything in their place.
        with contextlib.suppress(BaseException):
            stream.flush()


def read_all(fd: int, size: int) -> bytes | None:
    """Return so many bytes, None when nobody will write any more."""
    data, readable = b"", select.poll()
    readable.register(fd, select.POLLIN)
    while len(data) < size:
        # An item may have told the pipe not to wait.
        readable.poll()
        part = os.read(fd, size - len(data))
        if not part:
            return None
        data += part
    return data


def bury(pid: int) -> int:
    """Wait for the runner's death, end what it leaves behind, and return its wait status."""
    if hasattr(os, "waitid"):
        # Not reaped yet, so that its number, which is its group's, cannot be another's already.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    else:
        # Free for a moment, but systems give numbers out in turn.
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    for _ in range(100):
        for orphan in _children():
            with contextlib.suppress(OSError):
                os.kill(orphan, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    return status


def _children() -> list[int]:
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]
