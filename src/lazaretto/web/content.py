"""The content of a request, read in parts, each of which is paid for before."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from lazaretto.model.limits import ServerLimits
from lazaretto.serving.http import seat_of, share_of
from lazaretto.web.bounded import COST
from lazaretto.web.ending import Begun
from lazaretto.web.refusals import HttpError

#: Bytes of a body for which nothing need be held, and those for which more is held at once.
_SMALL, _STEP = 65_536, 1 << 20
#: Bytes a second in which a body must come, and seconds that it may take beside.
_SLOWEST: Final = 16 * 1024
_PATIENCE: Final = 20.0


async def content_of(request: Request, most: int | None, cost: int = COST) -> bytes:
    """Return a request's body. Raises HttpError once it is over `most` bytes, or too slow.

    `most`: None for what the server's limits say. `cost`: what each byte takes of the server's memory.
    """
    seat = seat_of(request.scope)
    if most is None:
        most = (ServerLimits() if seat is None else seat.limits).body_size
    length = request.headers.get("content-length")
    if length is not None and (not length.isdigit() or int(length) > most):
        raise _too_large(most)
    first = Begun(request.receive())
    if first.over and first.answer["type"] == "http.request" and not first.answer.get("more_body"):
        # A small body comes with its request.
        content: bytes = first.answer.get("body", b"")
        if len(content) > most:
            raise _too_large(most)
        return content
    return await _content_in_parts(request, first, most, cost)


async def _content_in_parts(request: Request, first: Begun[Message], most: int, cost: int) -> bytes:
    parts, size, reserved, share = [], 0, _SMALL, share_of(request.scope)
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(_PATIENCE) as limit:
            message = await first
            while True:
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                part = message.get("body", b"")
                size += len(part)
                if size > most:
                    raise _too_large(most)
                if size > reserved:
                    reserved = size + _STEP
                    limit.reschedule(None)
                    await share.hold(cost * reserved)
                    began = asyncio.get_running_loop().time() - size / _SLOWEST
                    limit.reschedule(began + _PATIENCE + size / _SLOWEST)
                parts.append(part)
                if not message.get("more_body"):
                    return b"".join(parts)
                if size > _SLOWEST:
                    limit.reschedule(began + _PATIENCE + size / _SLOWEST)
                message = await request.receive()
    except TimeoutError:
        raise HttpError(
            "request_timeout", f"expected the body at {_SLOWEST} bytes a second or more"
        ) from None


def _too_large(most: int) -> HttpError:
    return HttpError("request_too_large", f"expected at most {most} bytes, got more")
