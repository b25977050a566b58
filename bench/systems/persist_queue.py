"""persist-queue: SQLiteAckQueue, one object shared by all threads of a process."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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

#: Without pruning, every get scans past all rows acknowledged before it.
_PRUNE_EVERY = 500
_DEAD = "dead"


class _Acks:
    """Acknowledges, and prunes the acknowledged rows now and then, in the time that is measured."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._count = 0

    def ack(self, key: int) -> None:
        self._queue.ack(id=key)
        with self._lock:
            self._count += 1
            due = self._count % _PRUNE_EVERY == 0
        if due:
            self._queue.clear_acked_data(max_delete=2 * _PRUNE_EVERY, keep_latest=0)


class _PersistSender(Sender):
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def send(self, body: bytes) -> None:
        self._queue.put(body)


class _PersistReceiver(Receiver[dict[str, Any]]):
    def __init__(self, queue: Any, acks: _Acks) -> None:
        self._queue = queue
        self._acks = acks
        self._empty: type[Exception] = peer("persistqueue").Empty

    def _take(self) -> dict[str, Any] | None:
        try:
            taken: dict[str, Any] = self._queue.get(block=False, raw=True)
        except self._empty:
            return None
        return taken

    def receive(self, limit: int, wait: float) -> Sequence[dict[str, Any]]:
        # Polled: in its blocking get a consumer that clears the event can lose another's wake-up.
        return poll(self._take, wait)

    def complete(self, handles: Sequence[dict[str, Any]]) -> None:
        for handle in handles:
            self._acks.ack(handle["pqid"])

    def body(self, handle: dict[str, Any]) -> bytes:
        data: bytes = handle["data"]
        return data


class PersistQueueSystem(System[dict[str, Any]]):
    """persist-queue's SQLiteAckQueue with synchronous=FULL, pruned every 500 acknowledgements."""

    name = "persist-queue"
    package = "persistqueue"
    workloads = frozenset({"W1", "W2", "W4", "W6", "W6-paced", "W7"})
    marks: ClassVar[Mapping[str, str]] = {"W4": "d", "W6": "d", "W6-paced": "d", "W7": "de"}
    settings = "SQLiteAckQueue, synchronous=FULL, multithreading=True, one object for all threads"

    def version(self) -> str:
        version: str = peer("persistqueue").__version__
        return version

    def _make(self, name: str) -> Any:
        queue = peer("persistqueue").SQLiteAckQueue(
            str(self.home), name=name, multithreading=True, timeout=BUSY_SECONDS, db_file_name="persist.db"
        )
        queue._putter.execute("PRAGMA synchronous = FULL")
        return queue

    def open(self) -> None:
        self._queue = self._make(QUEUE)
        self._acks = _Acks(self._queue)

    def close(self) -> None:
        self._queue.close()

    def fill(self, bodies: Iterable[bytes]) -> None:
        # It has no batches; only this untimed fill goes without the sync.
        self._queue._putter.execute("PRAGMA synchronous = OFF")
        for body in bodies:
            self._queue.put(body)
        self._queue._putter.execute("PRAGMA synchronous = FULL")
        self._queue._putter.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def sender(self) -> Sender:
        return _PersistSender(self._queue)

    def receiver(self) -> Receiver[dict[str, Any]]:
        return _PersistReceiver(self._queue, self._acks)

    def drill(self, handler: Handler, total: int, poison: int) -> None:
        empty: type[Exception] = peer("persistqueue").Empty
        self._dead = self._make(_DEAD)
        # The library counts nothing, so this count is lost with the process.
        attempts: Counter[int] = Counter()
        while True:
            try:
                message = self._queue.get(block=False, raw=True)
            except empty:
                return
            key, body = message["pqid"], message["data"]
            try:
                handler(body)
            except Exception as error:
                attempts[key] += 1
                if attempts[key] < ATTEMPTS:
                    self._queue.nack(id=key)
                    continue
                self._dead.put({"reason": repr(error), "stack": traceback.format_exc(), "data": body})
                self._queue.ack_failed(id=key)
            else:
                self._acks.ack(key)

    def set_aside(self) -> int:
        count: int = self._dead.qsize()
        self._dead.close()
        return count
