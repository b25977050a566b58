"""What a task does with a message, the same for every system."""

from __future__ import annotations

import enum
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

from bench.drill.journal import Event, Writer

_A_LONG_TIME = 3_600.0


class Kind(enum.Enum):
    """What becomes of the task that gets a message."""

    #: It works and is done.
    GOOD = "good"
    #: It kills the process that runs it.
    KILLER = "killer"
    #: It sleeps for ever.
    HANG = "hang"
    #: It raises while the dependency is down, and is done otherwise.
    DEPENDENT = "dependent"


class Message(NamedTuple):
    """A message of a drill. `work`: how many seconds its task takes."""

    number: int
    kind: Kind
    work: float = 0.0


class Task:
    """The task that a worker runs. `home`: the folder of the drill, with its journal."""

    def __init__(self, home: Path) -> None:
        self._journal = Writer(journal_path(home))
        self._down = dependency_path(home)

    def __call__(self, number: int, kind: str, work: float, attempt: int) -> None:
        """Do what messages of this kind do. `attempt`: which one the system says it is, from 1."""
        say = self._journal.add
        say(Event.START, number, attempt)
        match Kind(kind):
            case Kind.KILLER:
                say(Event.DYING, number, attempt)
                os.kill(os.getpid(), signal.SIGKILL)
            case Kind.HANG:
                say(Event.HANGING, number, attempt)
                while True:
                    time.sleep(_A_LONG_TIME)
            case Kind.DEPENDENT if self._down.exists():
                say(Event.FAILED, number, attempt)
                raise ConnectionError("the dependency is down")
            case _:
                time.sleep(work)
                say(Event.DONE, number, attempt)


def journal_path(home: Path) -> Path:
    """Return where the journal of a drill is."""
    return home / "journal"


def dependency_path(home: Path) -> Path:
    """Return the file that is there while the dependency is down."""
    return home / "dependency-is-down"
