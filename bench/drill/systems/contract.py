"""What a system offers to a drill: a queue, a worker to start, and its own word on failed messages."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from bench.drill.drills import HELD, RETRIES
from bench.drill.work import Message

QUEUE = "drill"
_TERMS = "terms.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a drill asks of a system.

    `retries` of a message whose task raises; `deadline` of a task in seconds, None for none; `held`: how
    many messages one worker takes at a time, where the system lets it; `sessions`: what becomes of a
    session with a poison message, None for a queue without sessions; `at_once`: of them.
    """

    deadline: float | None = None
    retries: int = RETRIES
    held: int = HELD
    sessions: str | None = None
    at_once: int = 1


class Drilled(ABC):
    """A system under the drill: made once for each drill on a folder of its own, and once in each worker.

    `address` is what `setup` returned: where the worker finds the server, if there is one.
    """

    name: ClassVar[str]
    #: The Python packages it needs.
    packages: ClassVar[Sequence[str]]
    #: The settings it runs with, for the report.
    settings: ClassVar[str]
    #: Whether it counts hand-overs that ended with the worker.
    counts: ClassVar[bool] = False

    def __init__(self, home: Path, terms: Terms, address: str = "") -> None:
        self.home = home
        self.terms = terms
        self.address = address

    @classmethod
    def missing(cls) -> str | None:
        """Return why this system cannot run here, or None if it can."""
        for package in cls.packages:
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed"
        return None

    @classmethod
    def version(cls) -> str:
        """Return the version that is drilled."""
        return importlib.metadata.version(cls.packages[0])

    @abstractmethod
    def setup(self) -> str:
        """Make the queue, starting the server first if there is one, and return its address."""

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """End everything that `setup` started."""

    @abstractmethod
    def enqueue(self, messages: Sequence[Message]) -> None:
        """Send messages, durably if the system can."""

    @abstractmethod
    def set_aside(self) -> Mapping[int, str]:
        """Return number -> reason of the messages that are on record as failed for good.

        The reason is empty if none is on record.
        """

    @abstractmethod
    def waiting(self) -> frozenset[int]:
        """Return the numbers of the messages that the system still has, handed over or not."""

    @abstractmethod
    def work(self) -> None:
        """Be the worker: run the task for each message, until killed."""


def worker_command(system: Drilled) -> list[str]:
    """Return the command that starts a worker of this system; what it needs is left in its folder."""
    said = {"name": system.name, "address": system.address, "terms": dataclasses.asdict(system.terms)}
    (system.home / _TERMS).write_text(json.dumps(said))
    return [sys.executable, "-m", "bench.drill.worker", str(system.home)]


def worker_terms(home: Path) -> tuple[str, Terms, str]:
    """Return name, terms and address, as `worker_command` left them."""
    said = json.loads((home / _TERMS).read_text())
    return said["name"], Terms(**said["terms"]), said["address"]
