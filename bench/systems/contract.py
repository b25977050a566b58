"""What a system under measurement offers: senders, receivers, a quick fill and the poison drill."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

H = TypeVar("H")
T = TypeVar("T")

QUEUE = "orders"
#: Attempts a failing message gets in the poison drill.
ATTEMPTS = 5
#: How long a system without a blocking receive sleeps after finding nothing.
POLL_SECONDS = 0.001
#: How long the SQLite systems wait for the write lock: longer than any measurement, so that none fails on it.
BUSY_SECONDS = 120.0

#: What the handler of the poison drill takes: a payload. It raises for the messages that fail.
Handler = Callable[[bytes], None]


class Sender(ABC):
    """Sends to the queue; used by one thread at a time."""

    @abstractmethod
    def send(self, body: bytes) -> None:
        """Send one message; durable when this returns."""

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        """Send several messages in one commit; durable when this returns."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most senders hold nothing of their own
        """Let go of what this sender holds."""


class Receiver(ABC, Generic[H]):
    """Receives from the queue; used by one thread at a time. `H` is what the system hands over."""

    @abstractmethod
    def receive(self, limit: int, wait: float) -> Sequence[H]:
        """Return up to `limit` messages; wait up to `wait` seconds while there is none."""

    @abstractmethod
    def complete(self, handles: Sequence[H]) -> None:
        """Settle messages as done; durable when this returns, unless the system is marked otherwise."""

    @abstractmethod
    def body(self, handle: H) -> bytes:
        """Return the payload of a message handed over."""

    def close(self) -> None:
        """Let go of what this receiver holds."""


class System(ABC, Generic[H]):
    """A queue to measure. Made once for each measurement, on an empty directory of its own."""

    name: ClassVar[str]
    #: Whether it needs a PostgreSQL, as one of those that are measured by "served".
    served: ClassVar[bool] = False
    #: Whether it is measured if nobody asks for it by name.
    by_default: ClassVar[bool] = True
    #: The Python package it needs, and the program, if any.
    package: ClassVar[str | None] = None
    program: ClassVar[str | None] = None
    #: The workloads it can run; the others are n/a.
    workloads: ClassVar[frozenset[str]]

    def __init__(self, home: Path) -> None:
        self.home = home

    @classmethod
    def missing(cls) -> str | None:
        """Return why this system cannot run here, or None if it can."""
        if cls.package is not None and importlib.util.find_spec(cls.package) is None:
            return "not installed"
        return None

    @abstractmethod
    def open(self) -> None:
        """Make the queue, starting the server first if there is one."""

    @property
    def place(self) -> str | None:
        """Where another process finds it, if not in its directory."""
        return None

    def join(self, place: str | None) -> None:
        """Open what another process has opened at a place."""
        self.open()

    def close(self) -> None:
        """End everything that `open` started."""

    def fill(self, bodies: Iterable[bytes]) -> None:
        """Put messages in the queue as fast as can be, outside any measurement."""
        sender = self.sender()
        for chunk in chunks(bodies, 1_000):
            sender.send_batch(chunk)
        sender.close()

    @abstractmethod
    def sender(self) -> Sender:
        """Return a sender for one thread."""

    def shared_sender(self) -> Sender:
        """Return a sender for one of many threads that send at the same time."""
        return self.sender()

    @abstractmethod
    def receiver(self) -> Receiver[H]:
        """Return a receiver for one thread, which is to settle what it receives."""

    def batch_receiver(self) -> Receiver[H]:
        """Return a receiver that is asked for 100 at a time."""
        return self.receiver()

    def fill_drill(self, bodies: Iterable[bytes]) -> None:
        """Put messages in the queue for the drill."""
        self.fill(bodies)

    def drill(self, handler: Handler, total: int, poison: int) -> None:
        """Handle `total` messages, until the `poison` ones of them are set aside after ATTEMPTS tries."""
        raise NotImplementedError

    def set_aside(self) -> int:
        """Return how many messages the drill left set aside."""
        raise NotImplementedError


def peer(name: str) -> Any:
    """Import a peer's package.

    By name, because the peers have no type stubs and need not be there for the types to be checked.
    """
    return importlib.import_module(name)


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield `items` in lists of `size`."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def poll(take: Callable[[], T | None], wait: float) -> Sequence[T]:
    """Return what `take` gives as soon as it gives something, in a list; empty after `wait` seconds."""
    deadline = time.monotonic() + wait
    while (item := take()) is None:
        if time.monotonic() >= deadline:
            return ()
        time.sleep(POLL_SECONDS)
    return (item,)
