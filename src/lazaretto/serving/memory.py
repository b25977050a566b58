"""Whether a server takes so much memory that it must not begin anything new."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

#: Where Linux says how much memory a container may take, and how much a process takes.
_CONTAINER: Final = Path("/sys/fs/cgroup/memory.max")
_PROCESS: Final = Path("/proc/self/statm")
#: Of what a container may take; and of the bound of the alarm, below which it is over.
_SHARE: Final = 0.8
_OVER: Final = 0.9


def taken() -> int:
    """Return the bytes that this process has in memory; 0 where the system does not say it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_PROCESS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def allowed(most: int) -> int:
    """Return the bytes above which the alarm rings: `most`, or less in a small container."""
    with contextlib.suppress(OSError, ValueError):
        return min(most, int(int(_CONTAINER.read_text()) * _SHARE))
    return most


class MemoryAlarm:
    """Rings above some bytes, until they are clearly fewer."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.rings = False

    def look(self, size: int) -> bool:
        """Note how many bytes the process takes; return whether the alarm has begun or ended just now."""
        before = self.rings
        self.rings = size > (self.most * _OVER if before else self.most)
        return self.rings is not before
