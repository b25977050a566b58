"""litequeue: a table in SQLite, popped and marked done one message at a time."""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.systems.contract import ATTEMPTS, BUSY_SECONDS, DEAD, QUEUE, Client, Handler, System, peer, poll


def _open(path: Path, queue: str = QUEUE) -> Any:
    # A connection for each thread: one connection cannot hold two threads' transactions.
    lite = peer("litequeue").LiteQueue(str(path), queue_name=queue, timeout=BUSY_SECONDS)
    # Its own choice is NORMAL, which in WAL mode does not sync at commit.
    lite.conn.execute("PRAGMA synchronous = FULL")
    return lite


class _LitequeueClient(Client[Any]):
    def __init__(self, lite: Any) -> None:
        self._lite = lite

    def send(self, body: bytes) -> None:
        self._lite.put(body.decode())

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        with self._lite.transaction(mode="IMMEDIATE"):
            for body in bodies:
                self._lite.put(body.decode())

    def receive(self, limit: int, wait: float) -> Sequence[Any]:
        return poll(self._lite.pop, wait)

    def complete(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            self._lite.done(handle.message_id)

    def body(self, handle: Any) -> bytes:
        data: str = handle.data
        return data.encode()

    def close(self) -> None:
        self._lite.close()


class LitequeueSystem(System[Any]):
    """litequeue with synchronous=FULL, a connection for each thread."""

    name = "litequeue"
    package = "litequeue"
    workloads = frozenset({"W1", "W2", "W3", "W4", "W6", "W7", "wake", "processes"})

    def open(self) -> None:
        self._path = self.home / "litequeue.db"
        _open(self._path).close()

    def client(self, held: int = 1) -> Client[Any]:
        return _LitequeueClient(_open(self._path))

    def drill(self, handler: Handler, total: int, poison: int) -> None:
        lite, dead = _open(self._path), _open(self._path, DEAD)
        # The library counts nothing, so this count is lost with the process.
        attempts: Counter[str] = Counter()
        while (message := lite.pop()) is not None:
            try:
                handler(message.data.encode())
            except Exception as error:
                attempts[message.message_id] += 1
                if attempts[message.message_id] < ATTEMPTS:
                    lite.retry(message.message_id)
                    continue
                record = {"reason": repr(error), "stack": traceback.format_exc(), "data": message.data}
                dead.put(json.dumps(record))
                lite.mark_failed(message.message_id)
            else:
                lite.done(message.message_id)
        lite.close()
        dead.close()

    def set_aside(self) -> int:
        dead = _open(self._path, DEAD)
        count: int = dead.qsize()
        dead.close()
        return count
