"""The server: `python -m bench.web` measures pages, metrics, exports, viewers, and REST beside aio.

Pages are asked for in a large store while a host completes 1,000 messages a second beside the server. REST
and aio send, and receive and complete, one message at a time and then 100, by turns, each with so many
connections or coroutines; clients are processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import lazaretto
import lazaretto.aio
from bench.scratch import scratch
from bench.status import fill
from lazaretto import Message

_TICKS = os.sysconf("SC_CLK_TCK")
_BODY = b"x" * 1024
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


class Server(NamedTuple):
    """A running `lazaretto serve`."""

    process: subprocess.Popen[bytes]
    port: int

    def cpu(self) -> float:
        """Return the seconds of CPU that it has taken."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICKS

    def memory(self) -> float:
        """Return its resident memory, in MB."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096 / 1e6


@contextlib.contextmanager
def serving(path: Path) -> Iterator[Server]:
    """Serve a store to everybody on this machine."""
    words = [sys.executable, "-m", "lazaretto", "serve", "--store", str(path), "--http", "0", "--json"]
    process = subprocess.Popen([*words, "--no-login"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield Server(process, json.loads(process.stdout.readline())["http_port"])
    finally:
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.wait(30)
        print(f"{'the server ends after SIGTERM':44} {time.monotonic() - began:8.2f} s", flush=True)


class Connection:
    """One connection that is kept: the least that a client can do.

    `tag`: the entity tag of the last answer. `fresh`: whether that had a body, and not only the news that
    nothing changed.
    """

    tag = ""
    fresh = True

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def ask(
        self, method: str, path: str, body: bytes = b"", accept: str = "*/*", known: str = ""
    ) -> bytes:
        """Return the body of an answer. Raises RuntimeError for an error. `known`: a tag that one has."""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n"
        head += f"If-None-Match: {known}\r\n" if known else ""
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        told = await self._reader.readuntil(b"\r\n\r\n")
        size, chunked, status = 0, False, int(told.split(b" ", 2)[1])
        self.tag = ""
        for line in told.split(b"\r\n"):
            name, _, value = line.partition(b": ")
            match name.lower():
                case b"content-length":
                    size = int(value)
                case b"transfer-encoding":
                    chunked = value == b"chunked"
                case b"etag":
                    self.tag = value.decode()
        content = await self._chunks() if chunked else await self._reader.readexactly(size)
        self.fresh = status != 304
        if status >= 300 and self.fresh:
            raise RuntimeError(f"{path}: {told[:40]!r} {content[:200]!r}")
        return content

    async def _chunks(self) -> bytes:
        content = bytearray()
        while size := int(await self._reader.readline(), 16):
            content += await self._reader.readexactly(size + 2)
        await self._reader.readline()
        return bytes(content)

    async def follow(self, path: str) -> asyncio.StreamReader:
        """Ask for a stream that does not end, and return what reads it."""
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await self._reader.readuntil(b"\r\n\r\n")
        return self._reader


def show(name: str, seconds: list[float]) -> None:
    """Print how long something took."""
    seconds.sort()
    p50, p95 = 1e3 * statistics.median(seconds), 1e3 * seconds[int(0.95 * len(seconds))]
    print(f"{name:44} p50 {p50:8.2f} ms  p95 {p95:8.2f} ms", flush=True)


# -- a large store -------------------------------------------------------------------------------


def work(path: str, rate: int) -> None:
    """Send and complete so many messages a second, until killed."""
    with lazaretto.connect(path) as broker:
        sender, receiver = broker.sender("shop/q00001"), broker.receiver("shop/q00001")
        step, due = rate // 20, time.monotonic()
        while True:
            sender.send([Message(_BODY) for _ in range(step)])
            receiver.complete(receiver.receive(step))
            due = max(due + 0.05, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))


async def ask_for_pages(server: Server, times: int) -> None:
    """Ask for each page again and again."""
    connection = await Connection(server.port).open()
    for name, path in PAGES.items():
        accept = "application/json" if "API" in name else "text/html"
        taken: list[float] = []
        for _ in range(times + 1):
            began = time.perf_counter()
            content = await connection.ask("GET", path, accept=accept)
            taken.append(time.perf_counter() - began)
        show(f"{name} ({len(content) / 1024:.0f} KiB)", taken[1:])


async def ask_again(server: Server, times: int) -> None:
    """Ask for each page again and again with the tag that it had, while nothing changes."""
    connection = await Connection(server.port).open()
    for name, path in PAGES.items():
        if path.startswith(("/api", "/metrics")):
            continue
        await connection.ask("GET", path, accept="text/html")
        taken: list[float] = []
        for _ in range(times):
            began = time.perf_counter()
            await connection.ask("GET", path, accept="text/html", known=connection.tag)
            # Once a minute it is drawn anew.
            if not connection.fresh:
                taken.append(time.perf_counter() - began)
        show(f"{name}, nothing changed", taken)


async def export(server: Server) -> None:
    """Export all letters as JSON lines."""
    connection, before = await Connection(server.port).open(), server.memory()
    began = time.perf_counter()
    content = await connection.ask("GET", "/api/v1/dead-letters/export?queue=orders")
    count, taken = content.count(b"\n"), time.perf_counter() - began
    grown = f"memory {before:.0f} to {server.memory():.0f} MB"
    print(f"{'export':44} {count / taken:,.0f} rows/s of {count:,}; {grown}", flush=True)


async def watch(server: Server, viewers: int, path: Path, seconds: float = 10.0) -> None:
    """Have so many browsers follow the store, and measure what that costs and when they hear of a change."""
    # A connection closes when nothing refers to it.
    connections = [await Connection(server.port).open() for _ in range(viewers)]
    readers = [await connection.follow("/api/v1/events/stream") for connection in connections]
    await asyncio.sleep(2)
    cpu, began = server.cpu(), time.monotonic()
    heard: list[float] = []
    async with await lazaretto.aio.connect(path) as broker:
        while time.monotonic() - began < seconds:
            sent = time.perf_counter()
            await broker.create_queue(f"made/{os.getpid()}/{viewers}/{len(heard)}")

            async def hear(reader: asyncio.StreamReader, sent: float = sent) -> float:
                while not (line := await reader.readline()).startswith(b"data:"):
                    if not line:
                        raise RuntimeError("a stream of events ended")
                return time.perf_counter() - sent

            heard.append(max(await asyncio.gather(*map(hear, readers))))
            await asyncio.sleep(1)
    share = 100 * (server.cpu() - cpu) / (time.monotonic() - began)
    print(f"{f'{viewers} viewers':44} {share:.1f} % of a core, {server.memory():.0f} MB", flush=True)
    show(f"{viewers} viewers: a change until all know", heard)


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


def beside(folder: Path, width: int, seconds: float, turns: int, batch: int) -> None:
    """Print REST and aio by turns, with so many messages in each call."""
    path = folder / f"rest-{batch}.db"
    with lazaretto.connect(path) as broker:
        broker.create_queues(["rest", "aio"])
    ratios: tuple[list[float], list[float]] = ([], [])
    with serving(path) as server:
        for _ in range(turns):
            cpu = server.cpu()
            rest = asyncio.run(by_rest(server.port, width, seconds, batch))
            cpu = server.cpu() - cpu
            aio = asyncio.run(by_aio(path, width, seconds, batch))
            for kept, one, other in zip(ratios, rest, aio, strict=True):
                kept.append(one / other)
            print(
                f"{f'REST {width} wide, {batch} each: send, receive + complete':54} {rest[0]:,.0f} and "
                f"{rest[1]:,.0f}/s; aio {aio[0]:,.0f} and {aio[1]:,.0f}/s; server's CPU {cpu:.1f} s",
                flush=True,
            )
    sends, cycles = map(statistics.median, ratios)
    print(f"{'REST of aio, medians':44} send {sends:.2f}, receive + complete {cycles:.2f}", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description="Measure the server: pages, viewers, exports, REST.")
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--store", type=Path, help="folder with a store that is filled already, or will be")
    parser.add_argument("--only", choices=["pages", "rest"])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn of REST and of aio")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--width", type=int, default=16, help="connections, and coroutines")
    given = parser.parse_args()
    logging.disable()
    with contextlib.ExitStack() as stack:
        measure(given, given.store or stack.enter_context(scratch(Path(tempfile.gettempdir()), "web-")))


def measure(given: argparse.Namespace, folder: Path) -> None:
    """Measure what is asked for."""
    if given.only != "rest":
        path = folder / "status.db"
        if not path.exists():
            fill(path, given.letters, given.queues)
        with serving(path) as server:
            asyncio.run(ask_again(server, 200))
        worker = multiprocessing.get_context("spawn").Process(target=work, args=(str(path), 1_000))
        worker.start()
        try:
            with serving(path) as server:
                asyncio.run(ask_for_pages(server, 60))
                asyncio.run(export(server))
                for viewers in (50, 500):
                    asyncio.run(watch(server, viewers, path))
        finally:
            worker.kill()
    if given.only != "pages":
        with scratch(Path(tempfile.gettempdir()), "web-") as empty:
            for batch in (1, 100):
                beside(empty, given.width, given.seconds, given.turns, batch)


if __name__ == "__main__":
    main()
