"""The journal of a drill: one line for each thing that a task does, appended by whichever process runs it."""

from __future__ import annotations

import dataclasses
import enum
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path


class Event(enum.Enum):
    """What a task reports about itself."""

    START = "start"
    DONE = "done"
    FAILED = "failed"
    DYING = "dying"
    HANGING = "hanging"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line of the journal.

    `number`: of the message. `pid`: of the process that runs the task. `time`: of the monotonic clock,
    which all processes share. `attempt`: which one the system says it is, from 1.
    """

    event: Event
    number: int
    pid: int
    time: float
    attempt: int


def encode(line: Line) -> bytes:
    """Return a line as it stands in the file."""
    return f"{line.event.value} {line.number} {line.pid} {line.time:.6f} {line.attempt}\n".encode()


def decode(text: bytes) -> Line:
    """Return the line that `encode` wrote. Raises ValueError for anything else."""
    event, number, pid, moment, attempt = text.decode().split()
    return Line(Event(event), int(number), int(pid), float(moment), int(attempt))


class Writer:
    """Appends lines to a journal. A process that is forked with it goes on appending to the same file."""

    def __init__(self, path: Path) -> None:
        # One write of a short line to a file opened like this is never mixed with another's.
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def add(self, event: Event, number: int, attempt: int) -> None:
        """Append a line about this process, at this moment."""
        os.write(self._file, encode(Line(event, number, os.getpid(), time.monotonic(), attempt)))


class Reader:
    """Reads what was appended to a journal since it last looked. The file need not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> list[Line]:
        """Return the whole lines that are new."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        return [decode(text) for text in whole]


def running(lines: Iterable[Line]) -> Iterator[tuple[int, int]]:
    """Yield (number, pid) of each message whose last line is not an end: its task runs, or died."""
    last: dict[int, Line] = {}
    for line in lines:
        last[line.number] = line
    for line in last.values():
        if line.event not in (Event.DONE, Event.FAILED):
            yield line.number, line.pid


def alive(pid: int) -> bool:
    """Return whether a process runs; one that ended and was not collected does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
