"""Which requests come from a page of another site, and are refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from lazaretto.web.refusals import HttpError

#: Methods that change nothing.
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def check_host(given: str | None, names: Set[str]) -> None:
    """Raise HttpError unless a request names a host that this is: that stops DNS rebinding."""
    if (given or "").lower() in names:
        return
    name, colon, port = (given or "").rpartition(":")
    if not colon or not port.isdigit() or name.lower() not in names:
        raise HttpError("wrong_host", "expected the name of this host in Host, got another")


def check_origin(method: str, headers: Mapping[str, str], *, from_browser: bool = False) -> None:
    """Raise HttpError for a request that changes something and that another site's page has made.

    Programs send neither header; browsers send at least one with such requests: `from_browser` demands it.
    """
    if method in SAFE:
        return
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        same = site == "same-origin"
    elif origin is not None:
        same = origin.partition("://")[2].lower() == (headers.get("host") or "").lower()
    else:
        same = not from_browser
    if not same:
        raise HttpError("cross_site", "expected a request of this site's own page, got one of another site")
