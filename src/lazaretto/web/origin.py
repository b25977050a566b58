"""Where requests come from: proxies that name people, and pages of other sites; and redirects."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Set
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.grants import GROUP, KEY, LONGEST_PERSON
from lazaretto.model.loopback import host_name
from lazaretto.web.refusals import HttpError, NotAuthenticated

#: An address with its port, or an IPv6 one in brackets.
_WITH_PORT: Final = re.compile(r"\[([^][]+)\](?::\d{1,5})?|([^:]+):\d{1,5}", re.ASCII)
#: The most groups of a person that count.
MOST_GROUPS: Final = 100


class Proxies:
    """Proxies in front of the server that say who asks: from other addresses their headers mean nothing.

    `networks`: where they are, such as "127.0.0.1" or "10.0.0.0/8". `user`: the header with a person's name;
    `groups`: that with the names of groups, between commas. A header that is not named means nothing, since
    a proxy that does not set it passes on what clients send. Raises InvalidOption.
    """

    def __init__(self, networks: Iterable[str], user: str | None = None, groups: str | None = None) -> None:
        try:
            self._networks = [ipaddress.ip_network(network) for network in networks]
        except ValueError as error:
            raise InvalidOption(f"expected the address or network of a proxy: {error}") from None
        for header in (user, groups):
            if header is not None and not (header.replace("-", "").isalnum() and header.isascii()):
                raise InvalidOption(f"expected the name of a header, got {shown(header)}")
        self._user, self._groups = user, groups

    def trusts(self, peer: str) -> bool:
        """Return whether an address is that of a proxy."""
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def address_of(self, peer: str, headers: Headers) -> str:
        """Return where a request comes from: as the last proxy says, if the peer is one."""
        hops = [_portless(hop) for line in headers.getlist("x-forwarded-for") for hop in line.split(",")]
        while self.trusts(peer) and hops:
            peer = hops.pop()
        try:
            return str(ipaddress.ip_address(peer))
        except ValueError:
            return ""

    def names_of(self, peer: str, headers: Headers) -> list[str]:
        """Return the person whom a proxy names, and the person's groups; nobody: an empty list."""
        name = _value_of(headers, self._user) if self.trusts(peer) else ""
        if not name:
            return []
        groups = _value_of(headers, self._groups)
        return vouched_names(name, [group.strip() for group in groups.split(",")])


def _value_of(headers: Headers, name: str | None) -> str:
    """Return what a header says; "" where none is named. Raises NotAuthenticated.

    Of several, some may be the client's own.
    """
    values = [] if name is None else headers.getlist(name)
    if len(values) > 1:
        raise NotAuthenticated(f"expected one header {name}, got several")
    return values[0].strip() if values else ""


def _portless(hop: str) -> str:
    """Return an address of a header without the port that some proxies add."""
    match = _WITH_PORT.fullmatch(hop.strip())
    return hop.strip() if match is None else match[1] or match[2]


def vouched_names(person: str, groups: Iterable[str]) -> list[str]:
    """Return the name of a person and those of the groups, as somebody else says them.

    Raises NotAuthenticated unless it can be a person's name.
    """
    # Nobody is let in under the name of a group or a key.
    reserved = person.lower().startswith((GROUP, KEY))
    if not person or reserved or len(person) > LONGEST_PERSON or not person.isprintable():
        raise NotAuthenticated("expected the name of a person, got another text")
    return [person, *(f"{GROUP}{group}" for group in list(groups)[:MOST_GROUPS] if group)]


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
