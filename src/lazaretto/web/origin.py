"""Requests of another site's pages, which are refused, and redirects, which stay on the host asked."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lazaretto.model.loopback import host_name
from lazaretto.web.refusals import HttpError

#: Methods that change nothing.
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_LOCATION = b"location"


def check_host(host: str | None, names: Set[str]) -> None:
    """Raise HttpError unless a request names a host that this is: that stops DNS rebinding."""
    if not names & {(host or "").lower(), host_name(host or "")}:
        raise HttpError("wrong_host", "expected the name of this host in Host, got another")


def check_origin(method: str, headers: Mapping[str, str], *, from_browser: bool = False) -> None:
    """Raise HttpError for a request that changes something and that another site's page has made.

    Programs send neither header; browsers send at least one with such requests: `from_browser` demands it.
    """
    if method in SAFE or is_own_page(headers, unless=not from_browser):
        return
    raise HttpError("cross_site", "expected a request of this site's own page, got one of another site")


def is_own_page(headers: Mapping[str, str], *, unless: bool = False) -> bool:
    """Return whether a page of this site made a request, as its headers say; `unless` if they say nothing."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site == "same-origin"
    if origin is not None:
        return origin.partition("://")[2].lower() == (headers.get("host") or "").lower()
    return unless


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
