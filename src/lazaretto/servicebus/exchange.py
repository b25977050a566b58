"""Bodies of requests and answers over HTTP at the door."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from lazaretto.servicebus.atom.feeds import Refusal
from lazaretto.serving.http import Receive, Send

#: Seconds in which a client must have sent its request's body.
_LONGEST_BODY: Final = 20.0


async def body_of(
    receive: Receive, most: int, hold: Callable[[int], Awaitable[object]] | None = None
) -> bytes:
    """Return the body of a request, of at most so many bytes. Raises Refusal.

    `hold`: is awaited with how many have come, before more are read.
    """
    parts, size = [], 0
    try:
        async with asyncio.timeout(_LONGEST_BODY):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "expected a whole request, got a part of one")
                body = message.get("body", b"")
                size += len(body)
                if size <= most:
                    parts.append(body)
                    if hold is not None:
                        await hold(size)
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise Refusal(408, "expected a whole request in time, got a part of one") from None
    if size > most:
        raise Refusal(413, f"expected a body of at most {most} bytes, got {size}")
    return b"".join(parts)


async def send_answer(
    send: Send, status: int, body: bytes, kind: bytes, more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send an answer. `kind`: the type of its body; `more`: further headers."""
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *more,
    ]
    if status == 204:
        headers = headers[2:]
    if status == 408:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
