"""The processes above a Python worker of Spark: its daemon, and the JVM above that."""

from __future__ import annotations

import os
import time
from pathlib import Path

#: In a process's flags: it is on its way out.
_EXITING = 0x4
#: In the signals that a process is about to get: it is killed.
_KILLED = 1 << 8
#: How long a process that is dying may take for it, in seconds.
_LONGEST = 60.0


class Parents:
    """The parent of this process, and the parent's parent, as they are now."""

    def __init__(self) -> None:
        daemon = os.getppid()
        above = _parent_of(daemon)
        self._chain = [(daemon, above)] if above is None else [(os.getpid(), daemon), (daemon, above)]

    def are_dying(self) -> bool:
        """Return whether one of them is gone, or was killed and is not gone yet."""
        return any(_parent_of(child) != parent or _is_dying(parent) for child, parent in self._chain)

    def wait_if_dying(self) -> None:
        """Do not return if this process will be ended with them."""
        end = time.monotonic() + _LONGEST
        while self.are_dying():
            if time.monotonic() >= end:
                os._exit(1)
            time.sleep(0.01)


def _parent_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def _is_dying(pid: int | None) -> bool:
    if pid is None:
        return False
    fields = _stat(pid)
    if fields is None or fields[0] in ("Z", "X") or int(fields[6]) & _EXITING:
        return True
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    pending = (line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:")))
    return any(int(mask, 16) & _KILLED for mask in pending)


def _stat(pid: int) -> list[str] | None:
    """Return the fields of a process behind its name: state, parent, and so on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()
