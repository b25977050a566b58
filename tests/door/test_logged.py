"""What an operator reads in the log of clients that are refused, and of letters that say nothing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from door.client import connected, opened, run
from lazaretto import Message
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.events import MessageReceived
from lazaretto.servicebus.amqp.performatives import Rejected
from lazaretto.testing import assert_no_dead_letters


async def ask(port: int, method: str, path: str, body: str = "") -> int:
    """Ask over HTTP, and return the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = body.encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


ENTRY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">{}</QueueDescription>'
    "</content></entry>"
)


def test_a_refused_change_is_logged_with_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lazaretto.door")

    async def work() -> None:
        async with opened(tmp_path) as (_, door):
            nowhere = ENTRY.format("<ForwardTo>nowhere</ForwardTo>")
            for method, path, body, status in (
                ("PUT", "/new", nowhere, 404),
                ("PUT", "/q", ENTRY.format(""), 409),
                ("PUT", "/new", "<no", 400),
                ("DELETE", "/none", "", 404),
                ("POST", "/q", "", 405),
            ):
                assert await ask(door.port, method, path, body) == status
                (told,) = [one for one in caplog.records if one.name == "lazaretto.door"]
                assert told.levelno == logging.INFO
                assert told.getMessage().startswith(f"{method} {path!r} is refused with {status}: ")
                caplog.clear()
            # What is done, and who only looks, is no news.
            assert await ask(door.port, "PUT", "/new", ENTRY.format("")) == 201
            assert await ask(door.port, "GET", "/none/none/Subscriptions/x/y") == 400
            assert not [one for one in caplog.records if one.name == "lazaretto.door"]

    run(work)


def test_a_dead_letter_without_a_reason_is_told_as_such(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (broker, door), connected(door) as client:
            await broker.sender("q").send([Message(b"x"), Message(b"y", message_id="y")])
            link = await client.link(sends=False)
            link.session.grant(link, 1)
            found = await client.until(MessageReceived)
            link.session.settle(found.delivery_id, found.delivery_id, encode_composite(Rejected()))
            link.session.grant(link, 1)
            await client.until(MessageReceived)
            inner = broker._inner  # type: ignore[attr-defined]
            with pytest.raises(AssertionError, match="no reason was given"):
                assert_no_dead_letters(inner, "q")
            moments = inner.message_history("q", 1).moments()
            assert moments[-1].what == "dead-lettered: no reason was given"

    run(work)
    told = [one.getMessage() for one in caplog.records if "is a dead letter" in one.getMessage()]
    assert [text.endswith("is a dead letter: no reason was given") for text in told] == [True]
