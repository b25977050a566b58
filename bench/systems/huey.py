"""huey: SqliteStorage for the plain workloads, tasks with retries for the poison drill."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from bench.systems.contract import (
    ATTEMPTS,
    BUSY_SECONDS,
    QUEUE,
    Handler,
    Receiver,
    Sender,
    System,
    peer,
    poll,
)


class _HueySender(Sender):
    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def send(self, body: bytes) -> None:
        self._storage.enqueue(body)


class _HueyReceiver(Receiver[bytes]):
    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def receive(self, limit: int, wait: float) -> Sequence[bytes]:
        return poll(self._storage.dequeue, wait)

    def complete(self, handles: Sequence[bytes]) -> None:
        # Nothing to do: the hand-over deleted the row.
        return

    def body(self, handle: bytes) -> bytes:
        return bytes(handle)


class HueySystem(System[bytes]):
    """huey's SqliteStorage with fsync, one object shared by all threads of a process."""

    name = "huey"
    package = "huey"
    workloads = frozenset({"W1", "W2", "W4", "W6", "W6-paced", "W7", "wake-paced", "processes"})
    marks: ClassVar[Mapping[str, str]] = {"W4": "§", "W6": "§", "W6-paced": "§", "W7": "§f"}
    settings = (
        "SqliteStorage(fsync=True), one object for all threads; W7: SqliteHuey, task(retries=4), one thread"
    )

    def open(self) -> None:
        # Its log would print a stack for each failure of the drill.
        logging.getLogger("huey").setLevel(logging.CRITICAL)
        self._huey = peer("huey").SqliteHuey(
            QUEUE, filename=str(self.home / "huey.db"), fsync=True, timeout=BUSY_SECONDS
        )
        self._storage = self._huey.storage
        self._handler: Handler | None = None
        self._task = self._huey.task(retries=ATTEMPTS - 1)(self._handle)

    def close(self) -> None:
        self._storage.close()

    def fill(self, bodies: Iterable[bytes]) -> None:
        with self._unsynced():
            for body in bodies:
                self._storage.enqueue(body)

    def fill_drill(self, bodies: Iterable[bytes]) -> None:
        with self._unsynced():
            for body in bodies:
                self._task(body)

    @contextlib.contextmanager
    def _unsynced(self) -> Iterator[None]:
        # It has no batches; only the untimed fill goes without the sync.
        self._storage.conn.execute("PRAGMA synchronous = OFF")
        yield
        self._storage.conn.execute("PRAGMA synchronous = FULL")
        self._storage.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def sender(self) -> Sender:
        return _HueySender(self._storage)

    def receiver(self) -> Receiver[bytes]:
        return _HueyReceiver(self._storage)

    def _handle(self, body: bytes) -> None:
        assert self._handler is not None
        self._handler(body)

    def drill(self, handler: Handler, total: int, poison: int) -> None:
        self._handler = handler
        while (task := self._huey.dequeue()) is not None:
            self._huey.execute(task)

    def set_aside(self) -> int:
        # The errors in the result store; the messages themselves are gone.
        count: int = self._huey.result_count()
        return count
