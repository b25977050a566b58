"""Redis Streams: a consumer group on a server that syncs its append-only file before every answer."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from typing import Any

from bench.servers import RedisServer, redis_program
from bench.systems.contract import ATTEMPTS, DEAD, QUEUE, Client, Handler, System, peer

_GROUP = "bench"
_FIELD = b"body"

#: The id of a stream's entry, and its fields.
_Entry = tuple[bytes, dict[bytes, bytes]]


def _read(client: Any, consumer: str, limit: int, wait: float) -> list[_Entry]:
    # BLOCK 0 would be for ever.
    block = max(1, int(wait * 1_000)) if wait > 0 else None
    answer = client.xreadgroup(_GROUP, consumer, {QUEUE: ">"}, count=limit, block=block)
    if not answer:
        return []
    entries: list[_Entry] = answer[0][1]
    return entries


def _finish(pipeline: Any, ids: Sequence[bytes]) -> None:
    # Acknowledged entries stay in the stream; a message that is done must be gone.
    pipeline.xack(QUEUE, _GROUP, *ids)
    pipeline.xdel(QUEUE, *ids)


class _RedisClient(Client[_Entry]):
    def __init__(self, client: Any, consumer: str) -> None:
        self._client = client
        self._consumer = consumer

    def send(self, body: bytes) -> None:
        self._client.xadd(QUEUE, {_FIELD: body})

    def send_batch(self, bodies: Sequence[bytes]) -> None:
        with self._client.pipeline(transaction=True) as pipeline:
            for body in bodies:
                pipeline.xadd(QUEUE, {_FIELD: body})
            pipeline.execute()

    def receive(self, limit: int, wait: float) -> Sequence[_Entry]:
        return _read(self._client, self._consumer, limit, wait)

    def complete(self, handles: Sequence[_Entry]) -> None:
        with self._client.pipeline(transaction=False) as pipeline:
            _finish(pipeline, [entry for entry, _ in handles])
            pipeline.execute()

    def body(self, handle: _Entry) -> bytes:
        return handle[1][_FIELD]

    def close(self) -> None:
        self._client.close()


class RedisSystem(System[_Entry]):
    """Redis Streams with appendfsync always, over a Unix socket, a connection for each thread."""

    name = "redis"
    package = "redis"
    workloads = frozenset({"W1", "W2", "W3", "W4", "W5", "W6", "W7", "wake", "processes"})

    @classmethod
    def missing(cls) -> str | None:
        return super().missing() if redis_program() is not None else "not installed"

    def open(self) -> None:
        self._server = RedisServer(self.home)
        self.join(self._server.address)
        self._client().xgroup_create(QUEUE, _GROUP, id="0", mkstream=True)

    @property
    def place(self) -> str | None:
        return self._address

    def join(self, place: str | None) -> None:
        assert place is not None
        self._address = place
        self._consumers = 0

    def close(self) -> None:
        if hasattr(self, "_server"):
            self._server.stop()

    def _client(self) -> Any:
        # RESP2, so that the shape of the answers does not hang on the version of the client. A thread has
        # a client of its own, which need not ask a pool for its connection at each command.
        return peer("redis").Redis(unix_socket_path=self._address, protocol=2, single_connection_client=True)

    def client(self, held: int = 1) -> Client[_Entry]:
        self._consumers += 1
        return _RedisClient(self._client(), f"consumer-{os.getpid()}-{self._consumers}")

    def drill(self, handler: Handler, total: int, poison: int) -> None:
        client, consumer = self._client(), "drill"
        while entries := _read(client, consumer, 100, 0):
            self._handle(client, handler, entries, {})
        # What failed is pending. The server counts how often it was handed over; one must ask.
        while pending := client.xpending_range(QUEUE, _GROUP, "-", "+", 100):
            seen = {entry["message_id"]: entry["times_delivered"] for entry in pending}
            claimed = client.xclaim(QUEUE, _GROUP, consumer, min_idle_time=0, message_ids=list(seen))
            self._handle(client, handler, claimed, seen)
        client.close()

    def _handle(self, client: Any, handler: Handler, entries: list[_Entry], seen: dict[bytes, int]) -> None:
        done: list[bytes] = []
        with client.pipeline(transaction=True) as pipeline:
            for entry, fields in entries:
                try:
                    handler(fields[_FIELD])
                except Exception as error:
                    if seen.get(entry, 0) + 1 < ATTEMPTS:
                        continue
                    why = {b"reason": repr(error).encode(), b"stack": traceback.format_exc().encode()}
                    pipeline.xadd(DEAD, fields | why)
                done.append(entry)
            if done:
                _finish(pipeline, done)
                pipeline.execute()

    def set_aside(self) -> int:
        count: int = self._client().xlen(DEAD)
        return count
