"""Answers that take long, and are cut off when the client may not have the rest."""

from __future__ import annotations

import logging

from starlette.responses import StreamingResponse
from starlette.types import Send

from lazaretto.errors import QueryTooLong, ServerOverloaded
from lazaretto.web.refusals import NotAuthenticated, NotPermitted

_log = logging.getLogger("lazaretto.web")


class LastingResponse(StreamingResponse):
    """A stream that has an end, which a client must not take a part of it for."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except (NotAuthenticated, NotPermitted, QueryTooLong, ServerOverloaded) as error:
            # Without its end the server closes the connection.
            _log.warning("an answer was cut off: %s", error or type(error).__name__)
