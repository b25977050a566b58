"""`python -m bench.web`: pages of the console of a large store, and REST beside aio.

Pages are asked for while a host completes 1,000 messages a second beside the server. REST and aio send, and
receive and complete, one message at a time and then 100, each with so many connections or coroutines. The
server is a process of its own.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import lazaretto
import lazaretto.aio
from bench.crew import crew
from bench.figures import Figure, percentile
from bench.rounds import options, private, run
from bench.servers import Served, serving
from lazaretto import Message

_BODY = b"x" * 1024
_RATE = 1_000
_CAUSES = 200
PAGES = {
    "overview": "/",
    "failures": "/failures?queue=orders",
    "one cause": "/failures/7?queue=orders",
    "one letter": "/dead-letters/500?queue=orders",
    "queues": "/queues",
    "queues, page 200": "/queues?after=shop/q09949",
    "API: page 1 of letters": "/api/v1/dead-letters?queue=orders",
    "API: overview": "/api/v1/overview",
    "metrics": "/metrics",
}


class Connection:
    """One connection that is kept: the least that a client can do."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def ask(self, method: str, path: str, body: bytes = b"", accept: str = "*/*") -> bytes:
        """Return the body of an answer. Raises RuntimeError for an error."""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        told = await self._reader.readuntil(b"\r\n\r\n")
        size, chunked, status = 0, False, int(told.split(b" ", 2)[1])
        for line in told.split(b"\r\n"):
            name, _, value = line.partition(b": ")
            match name.lower():
                case b"content-length":
                    size = int(value)
                case b"transfer-encoding":
                    chunked = value == b"chunked"
        content = await self._chunks() if chunked else await self._reader.readexactly(size)
        if status >= 300:
            raise RuntimeError(f"{path}: {told[:40]!r} {content[:200]!r}")
        return content

    async def _chunks(self) -> bytes:
        content = bytearray()
        while size := int(await self._reader.readline(), 16):
            content += await self._reader.readexactly(size + 2)
        await self._reader.readline()
        return bytes(content)


# -- a large store -------------------------------------------------------------------------------


def fill(path: Path, letters: int, queues: int) -> None:
    """Make a store with so many letters in one queue, and so many queues."""
    with lazaretto.connect(path) as broker:
        broker.create_queues([f"shop/q{n:05}" for n in range(queues)])
        broker.create_queue("orders")
        broker.sender("orders").send([Message(b'{"n": %d}' % n + b" " * 290) for n in range(_CAUSES)])
        receiver = broker.receiver("orders")
        for n, message in enumerate(receiver.receive(_CAUSES)):
            receiver.dead_letter(message, reason=f"reason {chr(97 + n % 26)}{chr(97 + n // 26)}")
        broker.triage("orders")
    with sqlite3.connect(path) as connection:
        for table in ("lazaretto_messages", "lazaretto_dead_letters"):
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            others = ", ".join(name for name in names if name != "key")
            step = _CAUSES
            while step < letters:
                more = min(step, letters - step)
                connection.execute(
                    f"INSERT INTO {table} (key, {others}) SELECT key + {step}, {others} FROM {table} "
                    f"WHERE (key & 0x3ffffffffff) <= {more}"
                )
                step += more
        connection.execute(
            "UPDATE lazaretto_fingerprints SET waiting = ?, total = ?", 2 * (letters // _CAUSES,)
        )
    connection.close()


def work(ready: Callable[[], None], path: Path) -> None:
    """Send and complete so many messages a second, until killed."""
    with lazaretto.connect(path) as broker:
        sender, receiver = broker.sender("shop/q00001"), broker.receiver("shop/q00001")
        step, due = _RATE // 20, time.monotonic()
        ready()
        while True:
            sender.send([Message(_BODY) for _ in range(step)])
            receiver.complete(receiver.receive(step))
            due = max(due + 0.05, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))


async def _ask_for_page(server: Served, name: str, times: int) -> list[float]:
    """Return how long a page takes, again and again."""
    connection = await Connection(server.port).open()
    accept = "application/json" if "API" in name else "text/html"
    taken: list[float] = []
    for _ in range(times + 1):
        began = time.perf_counter()
        await connection.ask("GET", PAGES[name], accept=accept)
        taken.append(time.perf_counter() - began)
    return taken[1:]


def pages(path: Path, times: int) -> Iterator[Figure]:
    """Ask for each page again and again, while a host works."""
    with crew(1, work, path) as host, serving(path, "http", "--no-login") as server:
        host.start()
        for name in PAGES:
            taken = asyncio.run(_ask_for_page(server, name, times))
            for what, share in (("p50", 0.5), ("p95", 0.95)):
                yield Figure(f"{name}: {what}", "console", percentile(taken, share) * 1e3, "ms", less=True)


# -- REST beside aio -----------------------------------------------------------------------------


async def _in_turn(work: list[Callable[[], Awaitable[object]]], seconds: float) -> float:
    """Return how many calls a second some loops make together."""
    count, end = 0, time.perf_counter() + seconds

    async def go_on(call: Callable[[], Awaitable[object]]) -> None:
        nonlocal count
        while time.perf_counter() < end:
            await call()
            count += 1

    await asyncio.gather(*map(go_on, work))
    return count / seconds


async def by_rest(port: int, width: int, seconds: float, batch: int) -> tuple[float, float]:
    """Return messages sent a second, and received and completed a second, so many in a request."""
    pool = [await Connection(port).open() for _ in range(width)]
    rows = [{"body": _BODY.decode()}] * batch
    body = json.dumps(rows if batch > 1 else rows[0]).encode()

    def send(one: Connection) -> Callable[[], Awaitable[object]]:
        return lambda: one.ask("POST", "/api/v1/messages?queue=rest", body)

    def take(one: Connection) -> Callable[[], Awaitable[object]]:
        async def cycle() -> None:
            found = json.loads(await one.ask("POST", f"/api/v1/messages/receive?queue=rest&limit={batch}"))
            if len(found) != batch:
                raise RuntimeError(f"expected {batch} messages, got {len(found)}")
            verdict = {"verb": "complete", "lock_tokens": [message["lock_token"] for message in found]}
            await one.ask("POST", "/api/v1/messages/settle?queue=rest", json.dumps(verdict).encode())

        return cycle

    sends = await _in_turn([send(one) for one in pool], seconds)
    takes = await _in_turn([take(one) for one in pool], _shorter(seconds, sends * batch))
    return sends * batch, takes * batch


async def by_aio(path: Path, width: int, seconds: float, batch: int) -> tuple[float, float]:
    """Return the same of as many coroutines."""
    async with await lazaretto.aio.connect(path) as broker:
        sender = broker.sender("aio")
        messages = [Message(_BODY)] * batch

        async def cycle() -> None:
            async with broker.receiver("aio") as receiver:
                await receiver.complete(await receiver.receive(batch))

        sends = await _in_turn([lambda: sender.send(messages)] * width, seconds)
        takes = await _in_turn([cycle] * width, _shorter(seconds, sends * batch))
        return sends * batch, takes * batch


def _shorter(seconds: float, rate: float) -> float:
    """Return how long to receive what was sent at a rate: it must not run out."""
    return min(seconds, seconds * rate / 10_000) / 2


def beside(folder: Path, width: int, seconds: float, batch: int) -> Iterator[Figure]:
    """Measure REST and aio, with so many messages in each call."""
    with private(folder) as home:
        path = home / "rest.db"
        with lazaretto.connect(path) as broker:
            broker.create_queues(["rest", "aio"])
        with serving(path, "http", "--no-login") as server:
            ways = {
                "REST": functools.partial(by_rest, server.port, width, seconds, batch),
                "aio": functools.partial(by_aio, path, width, seconds, batch),
            }
            for name, way in ways.items():
                sends, takes = asyncio.run(way())
                yield Figure(f"send, {batch} each", name, sends, "/s")
                yield Figure(f"receive, complete, {batch} each", name, takes, "/s")


def main() -> int:
    """Measure and print."""
    parser = options("bench.web", __doc__, 3)
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--only", choices=["pages", "rest"])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn of REST and of aio")
    parser.add_argument("--width", type=int, default=16, help="connections, and coroutines")
    given = parser.parse_args()
    letters, seconds = (2_000, 0.5) if given.quick else (given.letters, given.seconds)
    logging.disable()

    def measure(folder: Path, _number: int) -> Iterator[Figure]:
        if given.only != "rest":
            path = folder / "large.db"
            if not path.exists():
                fill(path, letters, given.queues)
            yield from pages(path, 60)
        if given.only != "pages":
            for batch in (1, 100):
                yield from beside(folder, given.width, seconds, batch)

    return run(given, measure)


if __name__ == "__main__":
    raise SystemExit(main())
