"""This process: its identity, whether another one is alive, and random numbers of its own."""

from __future__ import annotations

import functools
import itertools
import os
import random
import secrets
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

# The module's own functions share one generator, which the program may have seeded to repeat what it does.
_OWN: Final = random.SystemRandom()


class Process(NamedTuple):
    """A process, distinguished from all others that ever have its number.

    `machine` is the same for processes that can see each other's numbers: a container is its own machine.
    `born` is the start time in the machine's own units, or empty if unknown.
    """

    machine: str
    pid: int
    born: str


@functools.cache
def program() -> str:
    """Return the name of this process's program, as people know it: a module's, or its file's."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0]).name
    return name or "python"


def this_process() -> Process:
    """Return the process that calls."""
    return Process(_machine(), os.getpid(), _born(os.getpid()) or "")


def is_gone(process: Process) -> bool | None:
    """Return whether a process has ended; None if it cannot be seen from here."""
    if process.machine != _machine():
        return None
    if process.pid == os.getpid() and not process.born:
        return False
    if os.name == "nt":
        # The call below would end that process.
        return None
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    born = _born(process.pid)
    return born is not None and process.born != "" and born != process.born


@functools.cache
def _machine() -> str:
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        # Elsewhere than on Linux the name is all there is.
        return parts[0]
    return "/".join(parts)


def _born(pid: int) -> str | None:
    """Return when a process started; "gone" if it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name, in parentheses, may hold anything.
    fields = text.rpartition(")")[2].split()
    return "gone" if fields[0] in "ZX" else fields[19]


def draw() -> float:
    """Return a random number from 0 to below 1, as for a jitter."""
    return _OWN.random()


def message_ids() -> Callable[[], str]:
    """Return what gives ids that no other message has; threads and transactions share it."""
    write = f"{secrets.token_hex(8)}{{:08x}}".format
    # Each message takes one, so no function of Python's stands between.
    return map(write, itertools.count(1)).__next__
