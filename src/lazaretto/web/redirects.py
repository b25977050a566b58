"""Redirects stay on the host that was asked, whatever a request calls it."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOCATION = b"location"


class RelativeRedirects:
    """Takes the host of a request out of where its answer leads: the framework takes it from `Host`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    (name, relative(value, host) if name.lower() == _LOCATION else value)
                    for name, value in message["headers"]
                ]
            await send(message)

        host = next((value for name, value in scope.get("headers", ()) if name == b"host"), b"")
        await self._app(scope, receive, answer)


def relative(location: bytes, host: bytes) -> bytes:
    """Return where a redirect leads, without a host if that is the one that was asked."""
    scheme, separator, rest = location.partition(b"://")
    if not separator or scheme not in (b"http", b"https") or not rest.startswith(host + b"/"):
        return location
    # Two slashes at the beginning would name another host.
    return b"/" + rest[len(host) :].lstrip(b"/")
