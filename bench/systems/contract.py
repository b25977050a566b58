"""What a system under measurement offers: clients for threads, a quick fill and the poison drill."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from servers import postgres_programs

from bench.servers import PostgresServer

H = TypeVar("H")
T = TypeVar("T")

QUEUE = "orders"
DEAD = "dead"
#: Attempts a failing message gets in the poison drill.
ATTEMPTS = 5
#: How long a system without a blocking receive sleeps after finding nothing.
POLL_SECONDS = 0.001
#: How long the SQLite systems wait for the write lock: longer than any measurement, so that none fails on it.
BUSY_SECONDS = 120.0

#: What the handler of the poison drill takes: a payload. It raises for the messages that fail.
Handler = Callable[[bytes], None]


class Client(ABC, Generic[H]):
    """Sends to the queue and receives from it; used by one thread. `H` is what the system hands over."""

    @abstractmethod
    def send(self, body: bytes) -> None:
        """Send one message; durable when this returns."""

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        """Send several messages in one commit; durable when this returns."""
        raise NotImplementedError

    @abstractmethod
    def receive(self, limit: int, wait: float) -> Sequence[H]:
        """Return up to `limit` messages; wait up to `wait` seconds while there is none."""

    @abstractmethod
    def complete(self, handles: Sequence[H]) -> None:
        """Settle messages as done; durable when this returns, unless the system is marked otherwise."""

    @abstractmethod
    def body(self, handle: H) -> bytes:
        """Return the payload of a message handed over."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what this client holds."""


class System(ABC, Generic[H]):
    """A queue to measure. Made once for each measurement, on an empty directory of its own."""

    name: ClassVar[str]
    #: Whether it needs a PostgreSQL, as one of those that are measured by "served".
    served: ClassVar[bool] = False
    #: The Python package it needs.
    package: ClassVar[str]
    #: The workloads it can run; the others are n/a.
    workloads: ClassVar[frozenset[str]]

    def __init__(self, home: Path) -> None:
        self.home = home

    @classmethod
    def missing(cls) -> str | None:
        """Return why this system cannot run here, or None if it can."""
        return None if importlib.util.find_spec(cls.package) else "not installed"

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

    @abstractmethod
    def client(self, held: int = 1) -> Client[H]:
        """Return a client for one thread, which receives up to `held` messages at a time."""

    def fill(self, bodies: Iterable[bytes]) -> None:
        """Put messages in the queue as fast as can be, outside any measurement."""
        client = self.client()
        for chunk in chunks(bodies, 1_000):
            client.send_batch(chunk)
        client.close()

    @abstractmethod
    def drill(self, handler: Handler, total: int, poison: int) -> None:
        """Handle `total` messages, until the `poison` ones of them are set aside after ATTEMPTS tries."""

    @abstractmethod
    def set_aside(self) -> int:
        """Return how many messages the drill left set aside."""


class PostgresSystem(System[H]):
    """A queue on a PostgreSQL server of its own, which `open` starts."""

    served: ClassVar[bool] = True
    server: PostgresServer

    @classmethod
    def missing(cls) -> str | None:
        return "PostgreSQL is not installed" if postgres_programs() is None else super().missing()

    def close(self) -> None:
        self.server.stop()


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
