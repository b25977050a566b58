"""What a system offers to a drill: a queue, a worker to start, and its own word on failed messages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bench.drill.work import Message, Task

QUEUE = "drill"


class Drilled(ABC):
    """A system under the drill: made once for each drill on a folder of its own, and once in each worker.

    `deadline`: seconds that a task may take, None for no limit. `address`: what `serve` returned.
    """

    name: ClassVar[str]
    #: The Python packages it needs.
    packages: ClassVar[Sequence[str]]
    #: The settings it runs with, for the report.
    settings: ClassVar[str]
    #: Whether it counts hand-overs that ended with the worker.
    counts: ClassVar[bool] = False
    #: What a worker does with each message.
    task: Task

    def __init__(self, home: Path, deadline: float | None, address: str = "") -> None:
        self.home = home
        self.deadline = deadline
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

    def serve(self) -> str:
        """Start the server, if there is one, and return its address."""
        return ""

    def open(self) -> None:  # noqa: B027 - some open it as they make it, and as they work
        """Open the queue, in the drill or in a worker."""

    def create(self) -> None:  # noqa: B027 - some make it as they open it
        """Make the queue."""

    @abstractmethod
    def close(self) -> None:
        """End everything that was started and opened."""

    @abstractmethod
    def enqueue(self, messages: Sequence[Message]) -> None:
        """Send messages, durably if the system can."""

    @abstractmethod
    def set_aside(self) -> frozenset[int]:
        """Return the numbers of the messages that are on record as failed for good."""

    @abstractmethod
    def waiting(self) -> frozenset[int]:
        """Return the numbers of the messages that the system still has, handed over or not."""

    @abstractmethod
    def work(self) -> None:
        """Be the worker: run the task for each message, until killed."""
