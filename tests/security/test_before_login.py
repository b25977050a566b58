"""Before login everything is small, on every door: bytes, frames, seconds, connections.

Nor does a wrong key lock out who has the right one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from door.client import connected, run, token

from lazaretto import aio
from lazaretto.servicebus import AccessPolicy, DoorLimits, open_door
from lazaretto.servicebus.amqp.frames import AMQP_HEADER, HEARTBEAT
from lazaretto.serving.guard import Guard, Refusals, Reports
from lazaretto.serving.http import Stall
from lazaretto.web import Access, Grant, Identity, Role, open_web

OWNER = "right-token-of-the-owner"
WRONG = "HTTP/1.1 401 Unauthorized"


class Doors:
    """Both doors of a server, which share a guard."""

    def __init__(self, guard: Guard, http: int, amqp: Any) -> None:
        self.guard, self.http, self.amqp = guard, http, amqp


@contextlib.asynccontextmanager
async def doors(folder: Path, **limits: Any) -> AsyncIterator[Doors]:
    """Serve a store with keys at both doors. `limits`: those that are smaller than usual."""
    given = DoorLimits(**{"refusal_seconds": 0.0, **limits})
    guard = Guard(given)
    access = Access([(OWNER, Identity("owner", (Grant(Role.ADMIN),)))])
    async with (
        await aio.connect(str(folder / "store.db")) as broker,
        open_web(broker, access, port=0, guard=guard) as web,
        open_door(broker, port=0, policies=[AccessPolicy("p", "key")], limits=given, guard=guard) as door,
    ):
        await broker.create_queue("q")
        yield Doors(guard, web.port, door)


def asked(path: str, token: str | None = None) -> bytes:
    """Return a request over HTTP."""
    lines = [f"GET {path} HTTP/1.1", "Host: localhost"]
    lines += [] if token is None else [f"Authorization: Bearer {token}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the server hangs up."""
    async with asyncio.timeout(120):
        found = b""
        with contextlib.suppress(ConnectionError):
            while some := await reader.read(65_536):
                found += some
        return found


async def status(reader: asyncio.StreamReader) -> str:
    """Return the status of an answer, once all of the answer has come."""
    async with asyncio.timeout(120):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.lower().split("\r\n")
        (length,) = (int(one.partition(":")[2]) for one in lines if one.startswith("content-length"))
        await reader.readexactly(length)
    return head.partition("\r\n")[0]


async def ended(port: int, first: bytes, more: bytes = b"") -> int:
    """Send bytes, and more of them until the server hangs up; return how many it took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = len(first)
    try:
        async with asyncio.timeout(120):
            writer.write(first)
            while more and not reader.at_eof():
                writer.write(more)
                await writer.drain()
                sent += len(more)
                await asyncio.sleep(0)
            await rest(reader)
    except ConnectionError:
        pass
    finally:
        writer.close()
    return sent


@pytest.mark.parametrize("door", ["http", "amqp"])
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nX: ", AMQP_HEADER])
def test_whoever_says_too_little_is_hung_up_on(tmp_path: Path, door: str, said: bytes) -> None:
    async def work() -> None:
        async with doors(tmp_path, opening_seconds=0.1) as served:
            port = served.http if door == "http" else served.amqp.port
            await ended(port, said)
            assert served.guard.connections == 0

    run(work)


@pytest.mark.parametrize(
    "more",
    [b"X-Header: " + b"x" * 500 + b"\r\n", b"x" * 500],
    ids=["many headers", "one header without end"],
)
@pytest.mark.parametrize("door", ["http", "amqp"])
def test_a_head_without_end_is_ended(tmp_path: Path, door: str, more: bytes) -> None:
    async def work() -> None:
        async with doors(tmp_path, head_size=4_096) as served:
            port = served.http if door == "http" else served.amqp.port
            # What sockets hold on both sides comes to it.
            assert await ended(port, b"GET / HTTP/1.1\r\nX: x", more) < 32 << 20

    run(work)


def test_trailers_without_end_and_endless_requests_at_once_are_ended(tmp_path: Path) -> None:
    async def work() -> None:
        async with doors(tmp_path, head_size=4_096) as served:
            chunked = b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
            await ended(served.http, chunked, b"X: " + b"x" * 500 + b"\r\n")
            await ended(served.http, asked("/events/stream", OWNER) + asked("/healthz") * 50)

    run(work)


def test_amqp_takes_kilobytes_before_a_token(tmp_path: Path) -> None:
    async def work() -> None:
        async with doors(tmp_path, opening_size=8_192) as served, connected(served.amqp) as client:
            link = await client.link(sends=True, address="$cbs")
            assert link.attached
            with contextlib.suppress(ConnectionError):
                while not client.reader.at_eof():
                    client.write(HEARTBEAT * 100)
                    await client.writer.drain()
                    await asyncio.sleep(0)
            assert served.guard.connections == 0

    run(work)


def test_a_connection_without_a_token_does_not_stay(tmp_path: Path) -> None:
    async def work() -> None:
        async with doors(tmp_path) as served, connected(served.amqp) as client:
            served.guard.look(time.monotonic() + 9)
            assert served.guard.strangers == 1
            served.guard.look(time.monotonic() + 11)
            await rest(client.reader)
            assert served.guard.connections == 0

    run(work)


def test_who_has_logged_in_has_connections_that_strangers_cannot_take(tmp_path: Path) -> None:
    async def work() -> None:
        async with doors(tmp_path, connections=8) as served, contextlib.AsyncExitStack() as stack:
            crowd = []
            for _ in range(30):
                reader, writer = await asyncio.open_connection("127.0.0.1", served.http)
                stack.callback(writer.close)
                crowd.append(reader)
            # The oldest have gone, so whoever comes now is let in, and stays.
            assert await rest(crowd[0]) == b""
            known = []
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", served.http)
                stack.callback(writer.close)
                writer.write(asked("/api/v1/queues", OWNER))
                assert await status(reader) == "HTTP/1.1 200 OK"
                known.append((reader, writer))
            for _ in range(30):
                reader, writer = await asyncio.open_connection("127.0.0.1", served.amqp.port)
                stack.callback(writer.close)
            for reader, writer in known:
                writer.write(asked("/api/v1/queues", OWNER))
                assert await status(reader) == "HTTP/1.1 200 OK"
            assert served.guard.strangers <= 6

    run(work)


def test_a_right_key_is_taken_whatever_wrong_ones_came_from_its_address(tmp_path: Path) -> None:
    async def work() -> None:
        async with doors(tmp_path) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.http)
            for _ in range(20):
                writer.write(asked("/api/v1/queues", "wrong"))
                assert await status(reader) == WRONG
            writer.write(asked("/api/v1/queues", OWNER))
            assert await status(reader) == "HTTP/1.1 200 OK"
            writer.write(b"POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n")
            writer.write(b"Content-Length: 9\r\n\r\ntoken=bad")
            assert await status(reader) == WRONG
            writer.close()
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", served.amqp.port)
                writer.write(
                    b"GET /q HTTP/1.1\r\nHost: localhost\r\nAuthorization: SharedAccessSignature sr=x\r\n\r\n"
                )
                assert await status(reader) == WRONG
                writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", served.amqp.port)
            right = token("p", "key", f"http://localhost:{served.amqp.port}/q")
            writer.write(f"GET /q HTTP/1.1\r\nHost: localhost\r\nAuthorization: {right}\r\n\r\n".encode())
            assert await status(reader) == "HTTP/1.1 200 OK"
            writer.close()
            assert served.guard.refusals.count == 41

    run(work)


def test_each_wrong_key_of_an_address_is_answered_later() -> None:
    refusals = Refusals(1.0)
    waits = [refusals.note("a", now) for now in (0.0, 1.0, 2.0)]
    assert waits == [1.0, 2.0, 3.0]
    assert refusals.note("b", 2.0) == 1.0
    # No answer comes so late that its connection is ended first.
    assert max(refusals.note("a", 3.0) for _ in range(50)) <= 8.0
    assert refusals.note("a", 100.0) == 1.0
    for number in range(20_000):
        refusals.note(f"{number}", 101.0)
    assert refusals.note("a", 101.0) == 1.0


def test_refusals_are_logged_once_a_minute_by_address(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        guard = Guard(DoorLimits(refusal_seconds=0.0))
        with caplog.at_level(logging.WARNING, "lazaretto.serving"):
            for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
                await guard.refuse_login(address)
            for now in (100.0, 101.0):
                guard.look(now)
            await guard.refuse_login("10.0.0.1")
            guard.look(159.0)
        assert [one.getMessage() for one in caplog.records] == [
            "wrong keys, tokens or passwords: 2 from 10.0.0.1",
            "wrong keys, tokens or passwords: 1 from 10.0.0.2",
        ]

    run(work)


def test_strangers_cannot_fill_the_log() -> None:
    reports = Reports()
    for number in range(1_000):
        reports.note("refused", f"address {number}")
    told = reports.take(0.0)
    assert len(told) <= 101
    assert sum(one.times for one in told) == 1_000


def test_who_reads_a_byte_now_and_then_reads_nothing() -> None:
    stall = Stall(30.0)
    assert not stall.lasts(0.0, 1_000_000)
    assert not stall.lasts(29.0, 999_971)
    assert stall.lasts(31.0, 999_969)
    assert not stall.lasts(32.0, 900_000)
    assert not stall.lasts(62.0, 900_001)
    assert not stall.lasts(93.0, 0)
