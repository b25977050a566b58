"""Stores as Spark's processes see them.

Arrow's driver brings a SQLite of its own, and two SQLites in one process must not have the same file
open: when one closes it, the other's locks are gone. So a task has a broker only while it needs it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext

import lazaretto

if TYPE_CHECKING:
    from lazaretto import Broker

_FILES = Path("/proc/self/fd")


@contextlib.contextmanager
def broker_at(url: str) -> Iterator[Broker]:
    """Open the store at a URL for a while. Raises StoreError."""
    log = logging.getLogger("lazaretto.messages")
    if not log.handlers:
        # Without a handler, Python would print each failed attempt among Spark's own output.
        log.addHandler(logging.NullHandler())
    with lazaretto.connect(url, create=False) as broker:
        yield broker


def task_number() -> int:
    """Return the number of the task of this process, its own in a driver; 0 outside Spark."""
    context = TaskContext.get()
    return 0 if context is None else int(context.taskAttemptId())


def is_open_here(path: str) -> bool:
    """Return whether this process has a file open; True where that cannot be told."""
    try:
        names = [entry.name for entry in _FILES.iterdir()]
    except OSError:
        return True
    real = os.path.realpath(path)
    for name in names:
        with contextlib.suppress(OSError):
            if os.readlink(_FILES / name) == real:  # noqa: PTH115 - a path that need not exist
                return True
    return False
